"""Private names of PyIceberg still do what icesize uses them for."""

from __future__ import annotations

from typing import Any

from pyiceberg.catalog.glue import GlueCatalog
from pyiceberg.catalog.hive import HiveCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import EqualTo
from pyiceberg.table.update import update_table_metadata
from pyiceberg.types import LongType
from requests.adapters import HTTPAdapter

from icesize.table.catalog.pyiceberg_internals import (
    changes_of,
    http_adapters,
    metrics_evaluator,
    removal_of,
    staged_by,
    thrift_client,
    with_own_writer,
)
from tests.support.rest_server import MiniRest
from tests.support.tables import append, make_table


def test_metrics_rule_files_out(lake: SqlCatalog) -> None:
    """The evaluator keeps a file whose bounds hold the value, and rules it out otherwise."""
    make_table(lake)
    [task] = append(lake, [3, 5]).scan().plan_files()
    schema = lake.load_table("db.t").schema()
    assert [metrics_evaluator(schema, EqualTo("id", value))(task.file) for value in (4, 6)] == [True, False]


def test_an_update_of_the_schema_is_returned_and_not_committed(lake: SqlCatalog) -> None:
    """The changes of a new column pass the catalog's commit, and nothing is committed before."""
    table = make_table(lake)
    update = table.transaction().update_schema().add_column("more", LongType())
    updates, requirements = changes_of(update)
    assert "more" not in lake.load_table("db.t").schema().column_names
    lake.commit_table(table, requirements, updates)
    assert "more" in lake.load_table("db.t").schema().column_names


def test_the_adapters_of_a_rest_catalog_send_its_requests(mini: MiniRest, lake: SqlCatalog) -> None:
    """A REST catalog has adapters of requests, other catalogs have none."""
    adapters = http_adapters(mini.catalog("lake"))
    assert {isinstance(each, HTTPAdapter) for each in adapters} == {True}
    assert http_adapters(lake) == []


def test_the_connection_of_a_hive_catalog_is_a_context() -> None:
    """Only entering the context opens the connection, whose client can show locks."""
    client = thrift_client(HiveCatalog("lake", uri="thrift://localhost:1"))
    assert {"__enter__", "__exit__"} <= set(dir(client))


def test_a_catalog_stages_and_writes_by_given_functions(lake: SqlCatalog) -> None:
    """A copy of a catalog commits what the functions stage and write, and the catalog itself stays unchanged."""
    table, calls = make_table(lake), list[str]()

    def stage(*commit: Any) -> Any:
        calls.append("stage")
        return staged_by(lake, *commit)

    def write(metadata: Any, io: Any, metadata_path: str, overwrite: bool = False) -> None:
        calls.append("write")
        with io.new_output(metadata_path).create(overwrite=overwrite) as stream:
            stream.write(metadata.model_copy(update={"properties": {"by": "us"}}).model_dump_json().encode())

    updates, requirements = changes_of(table.transaction().update_schema().add_column("more", LongType()))
    with_own_writer(lake, stage, write).commit_table(table, requirements, updates)
    assert (calls, lake.load_table("db.t").properties) == (["stage", "write"], {"by": "us"})


def test_glue_writes_by_the_names_that_are_replaced() -> None:
    """Glue has the two names of the writer, and takes the one without a check for S3 Tables."""
    assert {"_write_metadata", "_write_metadata_no_exist_check", "_update_and_stage_table"} <= set(dir(GlueCatalog))


def test_an_update_removes_snapshots(lake: SqlCatalog) -> None:
    """The metadata after the update lack these snapshots, and the update is sent like one that pydantic made."""
    make_table(lake)
    first = append(lake, [1]).metadata.current_snapshot_id
    metadata = append(lake, [2]).metadata
    removal = removal_of([first])  # type: ignore[list-item]
    after = update_table_metadata(metadata, (removal,))
    assert [each.snapshot_id for each in after.snapshots] == [metadata.current_snapshot_id]
    assert removal.model_dump_json() == type(removal)(snapshot_ids=[first]).model_dump_json()
