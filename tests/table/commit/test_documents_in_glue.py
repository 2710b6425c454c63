"""Metadata files of format v3 in a Glue catalog, of which PyIceberg writes the metadata as well."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pyiceberg.catalog.glue import GlueCatalog
from pyiceberg.table import Table
from pyiceberg.table.update import SetPropertiesUpdate

from icesize.table.commit.loaded import Loaded
from icesize.table.commit.pyiceberg_committer import PyIcebergCommitter
from tests.support.tables import NOW_MS, append, ids_of, two_files
from tests.support.v3_tables import as_v3, with_document


@pytest.fixture
def glue(endpoint: str, properties: dict[str, str], bucket: str) -> Iterator[GlueCatalog]:
    """A catalog of a Glue server, with a table of format v3 whose document has a field that no model knows."""
    names = {"access-key-id": "s3.access-key-id", "secret-access-key": "s3.secret-access-key", "region": "s3.region"}
    keys = {f"glue.{key}": properties[name] for key, name in names.items()}
    catalog = GlueCatalog("lake", warehouse=f"s3://{bucket}", **{"glue.endpoint": endpoint}, **keys, **properties)
    catalog.create_namespace("db")
    two_files(catalog)
    as_v3(catalog)
    with_document(catalog, lambda document: document.update({"x-unknown": {"a": 1}}))
    yield catalog
    catalog.drop_table("db.t")
    catalog.drop_namespace("db")


def document(table: Table) -> dict[str, Any]:
    with table.io.new_input(table.metadata_location).open() as stream:
        return dict(json.loads(stream.read()))


@pytest.mark.parametrize("federated", [False, True])
def test_a_commit_keeps_what_no_model_knows(glue: GlueCatalog, federated: bool) -> None:
    """Rows and a property are committed; in a database of S3 Tables, too, of which files are written differently."""
    if federated:
        tables = {"Name": "db", "FederatedDatabase": {"ConnectionType": "aws:s3tables"}}
        glue.glue.update_database(Name="db", DatabaseInput=tables)
    append(glue, [3])
    loaded = Loaded(glue.load_table("db.t"))
    staged = loaded.staged([SetPropertiesUpdate(updates={"owner": "me"})])
    PyIcebergCommitter(glue, loaded.table, lambda: NOW_MS).commit(loaded, staged)
    table = glue.load_table("db.t")
    assert (table.format_version, table.properties["owner"], ids_of(glue)) == (3, "me", [1, 2, 3])
    assert document(table)["x-unknown"] == {"a": 1}
    assert document(table)["next-row-id"] == 3
