"""The lake of the demo: an embedded SQLite catalog with a warehouse beside it, and the state of its tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import TableAlreadyExistsError
from pyiceberg.table import Table

from icesize.demo.events import SCHEMA
from icesize.errors import TableError

CATALOG = "lake"
NAMESPACE = "demo"
EVENTS = "events"
"""The table of the main demo."""
ACCOUNTS = "accounts"
"""The table of the demo of upserts."""
RACE_ICEBERG = "race_iceberg"
RACE_ICESIZE = "race_icesize"
"""Two tables that receive the same batches, one through Iceberg's own writer for Spark, one through icesize."""
TARGET_BYTES = 2**20
"""A small target that a few batches reach: 20,000 events of an hour are about 1.2 MiB."""


@dataclass(frozen=True)
class Lake:
    """A directory with a catalog, tables, input files, checkpoints and logs."""

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
    def changes(self) -> Path:
        """Directory of the changes of accounts."""
        return self.directory / "changes"

    @property
    def logs(self) -> Path:
        """Directory of Spark's logs."""
        return self.directory / "logs"

    def prepare(self) -> None:
        """Create the directories."""
        for directory in (self.directory, self.logs, self.directory / "warehouse"):
            directory.mkdir(parents=True, exist_ok=True)

    def catalog(self) -> Catalog:
        """Return the catalog; create it on first use."""
        return load_catalog(CATALOG, type="sql", uri=self.uri, warehouse=(self.directory / "warehouse").as_uri())

    def create(
        self, table: str, target_bytes: int = TARGET_BYTES, more: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Create a table for the events, partitioned by hour, with `more` properties; raise TableError if it exists."""
        self.prepare()
        catalog = self.catalog()
        catalog.create_namespace_if_not_exists(NAMESPACE)
        properties = {"write.target-file-size-bytes": str(target_bytes), **more}
        try:
            made = catalog.create_table(f"{NAMESPACE}.{table}", SCHEMA, properties=properties)
        except TableAlreadyExistsError as error:
            raise TableError(
                f"Cannot run the demo in '{self.directory}': it holds the tables of a demo already; "
                "choose another directory (--path)"
            ) from error
        with made.update_spec() as spec:
            spec.add_identity("hour")

    def register(self, table: str, metadata_location: str) -> None:
        """Register a table that another catalog has written in the lake's catalog."""
        self.catalog().register_table(f"{NAMESPACE}.{table}", metadata_location)

    def load(self, table: str) -> Table:
        """Return the current state of a table."""
        return self.catalog().load_table(f"{NAMESPACE}.{table}")


def full_name(table: str) -> str:
    """`lake.demo.<table>`."""
    return f"{CATALOG}.{NAMESPACE}.{table}"


def written_bytes(table: Table) -> int:
    """Return the bytes of all data files that a table's snapshots added, including files merged away since."""
    summaries = [s.summary.additional_properties for s in table.snapshots() if s.summary]
    return sum(int(summary.get("added-files-size", "0")) for summary in summaries)


def rows_and_exact(table: Table, expected: int) -> tuple[int, bool]:
    """Return the number of rows of the table, and True if their ids are 0 to `expected` - 1, each once."""
    ids = table.scan(selected_fields=("id",)).to_arrow()["id"]
    return len(ids), sorted(ids.to_pylist()) == list(range(expected))
