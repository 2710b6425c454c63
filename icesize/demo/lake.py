"""The lake of the demo: an embedded SQLite catalog, a warehouse beside it, and what its tables came to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import TableAlreadyExistsError
from pyiceberg.table import Table

from icesize.demo.events import SCHEMA
from icesize.errors import TableError

CATALOG = "lake"
NAMESPACE = "demo"
TARGET_BYTES = 2**20
"""Small, so that a few minutes of events make files that reach it: 20,000 rows of a batch are about 1.2 MiB."""


@dataclass(frozen=True)
class Lake:
    """A directory with a catalog, tables, input files, checkpoints and logs."""

    directory: Path

    @property
    def uri(self) -> str:
        """Address of the catalog, as `--catalog-uri` takes it."""
        return f"sqlite:///{self.directory / 'catalog.db'}"

    @property
    def events(self) -> Path:
        """Where the generated files are."""
        return self.directory / "events"

    @property
    def logs(self) -> Path:
        """Where Spark's logs go."""
        return self.directory / "logs"

    def catalog(self) -> Catalog:
        """The catalog; made on first use."""
        return load_catalog(CATALOG, type="sql", uri=self.uri, warehouse=(self.directory / "warehouse").as_uri())

    def create(self, *tables: str) -> None:
        """Tables for the events, partitioned by hour. TableError when the directory holds a demo already."""
        for directory in (self.directory, self.logs, self.directory / "warehouse"):
            directory.mkdir(parents=True, exist_ok=True)
        catalog = self.catalog()
        catalog.create_namespace_if_not_exists(NAMESPACE)
        properties = {"write.target-file-size-bytes": str(TARGET_BYTES)}
        for table in tables:
            try:
                made = catalog.create_table(f"{NAMESPACE}.{table}", SCHEMA, properties=properties)
            except TableAlreadyExistsError as error:
                raise TableError(
                    f"Cannot run the demo in '{self.directory}': it holds the tables of a demo already; "
                    "choose another directory (--path)"
                ) from error
            with made.update_spec() as spec:
                spec.add_identity("hour")

    def load(self, table: str) -> Table:
        """A table as it is now."""
        return self.catalog().load_table(f"{NAMESPACE}.{table}")


def full_name(table: str) -> str:
    """`lake.demo.<table>`."""
    return f"{CATALOG}.{NAMESPACE}.{table}"


def newest_files(table: Table) -> int:
    """Data files that the newest snapshot added."""
    newest = table.current_snapshot()
    summary = newest.summary.additional_properties if newest and newest.summary else {}
    return int(summary.get("added-data-files", "0"))


def rows_and_exact(table: Table, expected: int) -> tuple[int, bool]:
    """How many rows the table has, and whether they are those generated: ids 0 to `expected` - 1, each once."""
    ids = table.scan(selected_fields=("id",)).to_arrow()["id"]
    return len(ids), sorted(ids.to_pylist()) == list(range(expected))
