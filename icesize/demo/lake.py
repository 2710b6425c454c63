"""The lake of the demo: an embedded SQLite catalog with a warehouse beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import TableAlreadyExistsError
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from icesize.demo.events import SCHEMA
from icesize.errors import TableError

NAMESPACE = "demo"
EVENTS = "events"
TARGET = MappingProxyType({"write.target-file-size-bytes": str(2**20)})
"""A small target that a few batches reach: 20,000 events of an hour are about 1.2 MiB."""


@dataclass(frozen=True)
class Lake:
    """A directory with a catalog, tables, input files, checkpoints and a log."""

    directory: Path

    @property
    def uri(self) -> str:
        """URI of the catalog, as `--catalog-uri` takes it."""
        return f"sqlite:///{self.directory / 'catalog.db'}"

    @property
    def events(self) -> Path:
        """Directory of the generated files."""
        return self.directory / "events"

    @property
    def log(self) -> Path:
        """Log of Spark's drivers."""
        return self.directory / "spark.log"

    def catalog(self) -> Catalog:
        """Return the catalog; create it on first use."""
        return load_catalog("lake", type="sql", uri=self.uri, warehouse=(self.directory / "warehouse").as_uri())

    def create(
        self, table: str, schema: pa.Schema | Schema = SCHEMA, by: str = "hour", properties: Mapping[str, str] = TARGET
    ) -> None:
        """Create a table, partitioned `by` a column if one is given; raise TableError if it exists."""
        (self.directory / "warehouse").mkdir(parents=True, exist_ok=True)
        catalog = self.catalog()
        catalog.create_namespace_if_not_exists(NAMESPACE)
        try:
            made = catalog.create_table(f"{NAMESPACE}.{table}", schema, properties=dict(properties))
        except TableAlreadyExistsError as error:
            raise TableError(
                f"Cannot run the demo in '{self.directory}': it holds the tables of a demo already; "
                "choose another directory (--path)"
            ) from error
        if by:
            with made.update_spec() as spec:
                spec.add_identity(by)

    def load(self, table: str) -> Table:
        """Return the current state of a table."""
        return self.catalog().load_table(f"{NAMESPACE}.{table}")


def full_name(table: str) -> str:
    """Return `lake.demo.<table>`."""
    return f"lake.{NAMESPACE}.{table}"


def rows_and_exact(table: Table, expected: int) -> tuple[int, bool]:
    """Return the number of rows of the table, and True if their ids are 0 to `expected` - 1, each once."""
    ids = table.scan(selected_fields=("id",)).to_arrow()["id"]
    return len(ids), sorted(ids.to_pylist()) == list(range(expected))
