"""A step that tests define is committed on a branch, together with a step of icesize; nothing in icesize knows it."""

from __future__ import annotations

import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyspark.sql import SparkSession

from icesize.table.catalog.history import head_of
from icesize.table.commit.protocol import Base, CommitRequest
from icesize.table.commit.pyiceberg_committer import PyIcebergCommitter
from icesize.table.commit.steps.append import Append
from tests.support.delete_files import equality_deletes
from tests.support.tables import NOW_MS, commit_by, write
from tests.support.upsert_step import Upsert, new_delete_file


def ids(spark: SparkSession, table: str) -> list[int]:
    return sorted(row.id for row in spark.sql(f"SELECT id FROM {table}").collect())


@pytest.mark.parametrize("behind_an_append", [False, True])
def test_new_rows_and_equality_deletes_on_a_branch(
    spark: SparkSession, rest: RestCatalog, namespace: str, behind_an_append: bool
) -> None:
    """Spark reads the new rows on the branch and the old ones on main, and goes on writing to both."""
    name = f"rest.{namespace}.t"
    spark.sql(f"CREATE TABLE {name} (id BIGINT, kind STRING, ts TIMESTAMP_NTZ) USING iceberg PARTITIONED BY (kind)")
    spark.sql(f"INSERT INTO {name} SELECT id, 'a', timestamp_ntz '2024-01-01' FROM range(4)")
    spark.sql(f"ALTER TABLE {name} CREATE BRANCH audit")
    table = rest.load_table(f"{namespace}.t")
    metadata = table.metadata
    new = write(table, [2, 9])
    deletes = new_delete_file(equality_deletes(table, ["id"], [(2,), (3,)], new.partition), new.partition)
    upsert = Upsert((new,), (deletes,))
    steps = (Append((write(table, [7]),)), upsert) if behind_an_append else (upsert,)
    base = Base(head_of(metadata, "audit"), metadata.schema(), metadata.spec(), metadata.format_version)
    request = CommitRequest(str(metadata.table_uuid), "own", base, steps)

    outcome = commit_by(PyIcebergCommitter(rest, table, lambda: NOW_MS, "audit"), request, table)

    spark.sql(f"REFRESH TABLE {name}")
    assert outcome.operations == ("append", "overwrite")[-len(steps) :]
    assert ids(spark, f"{name}.branch_audit") == [0, 1, 2, *([7] if behind_an_append else []), 9]
    assert ids(spark, name) == [0, 1, 2, 3]
    after = rest.load_table(f"{namespace}.t").metadata
    assert head_of(after) == head_of(metadata)
    assert head_of(after, "audit").snapshot_id == outcome.snapshot_ids[-1]
    assert outcome.done[-1].facts["test.upsert"] == outcome.done[-1].facts["added-equality-delete-files"] == "1"
    for branch, id in (("", 20), (".branch_audit", 21)):
        spark.sql(f"INSERT INTO {name}{branch} VALUES ({id}, 'a', timestamp_ntz '2024-01-01')")
    assert ids(spark, name) == [0, 1, 2, 3, 20]
    assert 21 in ids(spark, f"{name}.branch_audit")
