"""Tables of format v3, which PyIceberg cannot create in catalogs of which it writes the metadata, nor upgrade."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.table import Table
from pyiceberg.table.update import UpgradeFormatVersionUpdate


def with_document(catalog: Catalog, change: Callable[[dict[str, Any]], None], name: str = "db.t") -> Table:
    """The table after a change to its metadata document, as another client of the catalog would make it."""
    table = catalog.load_table(name)
    with table.io.new_input(table.metadata_location).open() as stream:
        document = json.loads(stream.read())
    log = {"metadata-file": table.metadata_location, "timestamp-ms": document["last-updated-ms"]}
    document.setdefault("metadata-log", []).append(log)
    change(document)
    number = int(table.metadata_location.rpartition("/")[2].partition("-")[0]) + 1
    location = f"{table.metadata.location}/metadata/{number:05d}-{table.metadata.table_uuid}.metadata.json"
    with table.io.new_output(location).create(overwrite=True) as stream:
        stream.write(json.dumps(document).encode())
    catalog.drop_table(name)
    return catalog.register_table(name, location)


def as_v3(catalog: Catalog, name: str = "db.t") -> Table:
    """The table after its upgrade to format v3, which changes nothing else."""
    if isinstance(catalog, RestCatalog):
        table: Table = catalog.load_table(name)
        catalog.commit_table(table, (), (UpgradeFormatVersionUpdate(format_version=3),))
        return table.refresh()

    def upgraded(document: dict[str, Any]) -> None:
        document["format-version"] = 3
        document.setdefault("last-sequence-number", 0)
        document.setdefault("next-row-id", 0)

    return with_document(catalog, upgraded, name)
