"""Two tables that live through the same: `kept`, which icesize keeps, and `twin`, which nobody does."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from py4j.protocol import Py4JJavaError
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import PrimitiveType

from icesize import failpoints
from icesize.table.manifests.entries import read_entries
from icesize.table.manifests.manifest_lists import manifests_of
from integration.evolution.engine import NAMESPACE, Engine
from integration.evolution.values import Row, Skip, as_json, ddl, for_spark, probed

FIELD = "\u0001"


class Broken(AssertionError):
    """A promise does not hold."""


class Over(Exception):
    """From here on there is nothing to compare, and nothing is wrong: the program ends."""


@dataclass(frozen=True)
class Side:
    """One of the two tables."""

    engine: Engine
    name: str

    @property
    def full_name(self) -> str:
        """As `icesize.open` and Spark take it."""
        return f"lake.{NAMESPACE}.{self.name}"

    @property
    def short_name(self) -> str:
        """Without the catalog, as procedures and PyIceberg take it."""
        return f"{NAMESPACE}.{self.name}"

    @property
    def java(self) -> Any:
        """Iceberg's table, as it is now."""
        return self.engine.table(self.name)

    @property
    def table(self) -> Table:
        """PyIceberg's table, as it is now."""
        return self.engine.catalog.load_table(self.short_name)

    @property
    def head(self) -> int | None:
        """The current snapshot."""
        snapshot = self.java.currentSnapshot()
        return None if snapshot is None else snapshot.snapshotId()

    def sql(self, statement: str) -> list[Any]:
        """Run SQL: `{t}` stands for the table, `{n}` for its name without the catalog."""
        return self.engine.spark.sql(statement.format(t=self.full_name, n=self.short_name)).collect()

    def frame(self, schema: Schema, found: Sequence[Row]) -> Any:
        """Rows as a DataFrame."""
        types = ", ".join(f"`{f.name}` {ddl(f.field_type)}" for f in schema.fields)
        data = [tuple(for_spark(f.field_type, row.get(f.name)) for f in schema.fields) for row in found]
        return self.engine.spark.createDataFrame(data, types).coalesce(1)

    def files_and_rows(self, snapshot_id: int = -1) -> list[tuple[str, str]]:
        """Each row as text, with its file; of a snapshot by its own columns."""
        found = self.engine.probe.rows(self.java, snapshot_id)
        return [tuple(line.split(FIELD, 1)) for line in found]

    def lineage(self, with_numbers: bool) -> list[str]:
        """Each row as text with its row id and the number of its last change; empty where rows have no ids."""
        if self.table.metadata.format_version < 3 or self.head is None:
            return []
        lines = [line.split(FIELD, 2) for line in self.engine.probe.lineage(self.java)]
        if any(row_id == "null" for row_id, *_ in lines):
            return []
        return sorted(FIELD.join((row_id, number if with_numbers else "", row)) for row_id, number, row in lines)

    def tells_numbers(self) -> bool:
        """Whether Iceberg 1.11 tells the numbers of last changes right.

        Where a file does not store them, it takes the number of the file's own commit for that of its data.
        """
        table = self.table
        entries = (
            e
            for m in manifests_of(table.current_snapshot(), table.io, table.metadata.specs()).data
            for e in read_entries(table.io, m)
        )
        odd = (entry.path for entry in entries if entry.sequence_number != entry.file_sequence_number)
        return all("_row_id" in pq.read_schema("/" + path.removeprefix("file:").lstrip("/")).names for path in odd)

    def rows(self, snapshot_id: int = -1) -> list[str]:
        """Each row as text, in order."""
        return sorted(row for _, row in self.files_and_rows(snapshot_id))


@dataclass
class Pair:
    """The pair and what is known of it: `marks` are heads of both after each step, `seen` rows by kept snapshot,
    `before_replacing` kept snapshots of a table that was replaced since, `staged` appends that were staged, of both."""

    engine: Engine
    number: int
    marks: list[tuple[int | None, int | None]] = field(default_factory=list)
    seen: dict[int, list[str]] = field(default_factory=dict)
    ever: set[str] = field(default_factory=set)
    log: list[str] = field(default_factory=list)
    batch: int = 0
    before_replacing: set[int] = field(default_factory=set)
    staged: list[tuple[int, int]] = field(default_factory=list)
    was_interrupted: bool = False
    _incoming: tuple[Schema, Sequence[Row]] | None = None
    _replace: Callable[[Sequence[Row]], None] | None = None

    @property
    def kept(self) -> Side:
        return Side(self.engine, f"k{self.number}")

    @property
    def twin(self) -> Side:
        return Side(self.engine, f"t{self.number}")

    @property
    def sides(self) -> tuple[Side, Side]:
        """Both, in the order in which statements are applied: what Iceberg itself refuses, the twin tells."""
        return self.twin, self.kept

    @property
    def schema(self) -> Schema:
        return self.twin.table.schema()

    def both(self, action: Callable[[Side], object]) -> None:
        """The same on both tables; Skip when Iceberg refuses it on the twin, Broken when only on the kept one."""
        try:
            action(self.twin)
        except Skip:
            raise
        except Exception as error:
            raise Skip(f"Iceberg refuses: {brief(error)}") from error
        try:
            action(self.kept)
        except Exception as error:
            if "Cannot find source column for sort field" in str(error):
                raise Over("clustering has sorted the kept table by a column, which Iceberg does not drop") from error
            raise Broken(f"the twin takes the statement, the kept table does not: {brief(error)}") from error

    def mark(self) -> None:
        """Remember where both are."""
        self.marks.append((self.kept.head, self.twin.head))

    def marks_there(self) -> list[tuple[int, int, int]]:
        """(number, kept snapshot, twin snapshot) of the marks that both tables still have, not those they are at."""
        kept = {s.snapshot_id for s in self.kept.table.metadata.snapshots} - self.before_replacing
        twin = {s.snapshot_id for s in self.twin.table.metadata.snapshots}
        now = (self.kept.head, self.twin.head)
        there = {(k, t): i for i, (k, t) in enumerate(self.marks) if k in kept and t in twin and (k, t) != now}
        return [(i, k, t) for (k, t), i in there.items() if k is not None and t is not None]

    @contextmanager
    def incoming(
        self, schema: Schema, found: Sequence[Row], replace: Callable[[Sequence[Row]], None] | None = None
    ) -> Iterator[None]:
        """The twin gets these rows too, when the block ends well, or when `land` is called in it.

        `replace` gives the twin rows that take the place of others.
        """
        self._incoming, self._replace = (schema, found), replace
        try:
            yield
            self.land()
        finally:
            self._incoming = self._replace = None

    def land(self) -> None:
        """Give the twin the rows of a batch that is in the kept table, by the columns that it has now.

        Where columns were changed beside the batch, its values may follow their column's id or its name: files written
        before the change keep ids, a batch that is written again goes by names. Either is right.
        """
        if self._incoming is None:
            return
        (schema, found), self._incoming = self._incoming, None
        try:
            before = self.twin.rows()
        except Exception as error:
            # Iceberg reads no table in which a replacement gave the source of an old partition field another type
            raise Over(f"the twin cannot be read: {brief(error)}") from error
        now = self.schema
        by_id = [{now.find_column_name(schema.find_field(k).field_id): v for k, v in row.items()} for row in found]
        changed = _names(schema) != _names(now)
        landed = by_id if changed and self._came(before, now, by_id) else self._by_name(schema, found, now)
        try:
            if self._replace is not None:
                self._replace(landed)
            else:
                self.engine.probe.append(self.twin.java, as_json(now, landed), "append", None)
        except Exception as error:
            if "Cannot build accessor" in str(error):
                raise Over("Iceberg does not write where the column of an old partition field was dropped") from error
            raise

    def _came(self, before: Sequence[str], now: Schema, found: Sequence[Row]) -> bool:
        """Whether these rows are what the kept table has more than the twin had."""
        try:
            told = self.engine.probe.told(self.twin.java, as_json(now, found))
        except Exception:
            # values of the columns that were there do not fit the types of those that are there now
            return False
        return Counter(self.kept.rows()) - Counter(before) == Counter(told)

    def _by_name(self, schema: Schema, found: Sequence[Row], now: Schema) -> Sequence[Row]:
        """Rows by the names of the columns that there are now, values of another type as Spark casts them."""
        kinds = {f.name: f.field_type for f in schema.fields if isinstance(f.field_type, PrimitiveType)}
        changed = [f for f in now.fields if f.name in kinds and kinds[f.name] != f.field_type]
        changed = [f for f in changed if isinstance(f.field_type, PrimitiveType)]
        by_name = [{f.name: row.get(f.name) for f in now.fields} for row in found]
        if not changed:
            return by_name
        cast = self.kept.frame(schema, found).selectExpr(*(probed(f.name, f.field_type) for f in changed)).collect()
        return [row | values.asDict() for row, values in zip(by_name, cast, strict=True)]

    @contextmanager
    def interrupted(self, point: str, statement: Callable[[], object] | None) -> Iterator[None]:
        """Let a statement happen at a failpoint, the first time that it is reached; what it raises is raised after."""
        if statement is None:
            yield
            return
        raised: list[BaseException] = []
        fired: list[bool] = []

        def fire() -> None:
            if fired:
                return
            fired.append(True)
            self.was_interrupted = True
            try:
                if point == "after-swap":
                    self.land()
                statement()
            except BaseException as error:
                raised.append(error)

        with failpoints.armed(point, fire):
            yield
        for error in raised:
            if not isinstance(error, Skip):
                raise error

    def drop(self) -> None:
        """Remove both tables with their files."""
        for side in self.sides:
            self.engine.java.dropTable(self.engine.identifier(side.name), False)
            for folder in self.folders(side):
                shutil.rmtree(folder, ignore_errors=True)
        self.engine.probe.forget()

    def folders(self, side: Side) -> list[Path]:
        """Where a table's files lie."""
        root = self.engine.folder
        return [root / "lake" / NAMESPACE / side.name, root / "elsewhere" / side.name]


def _names(schema: Schema) -> list[tuple[int, str, str]]:
    return [(f.field_id, f.name, str(f.field_type)) for f in schema.fields]


def brief(error: BaseException) -> str:
    """The lines of an error that say something, on one."""
    lines = [line.strip() for line in str(error).splitlines()]
    lines = [line for line in lines if line and not line.startswith(("at ", "... ", "Suppressed"))]
    # Java's cause comes last, Spark's reason first
    said = lines[-2:] if isinstance(error, Py4JJavaError) else lines[:3]
    return f"{type(error).__name__}: {' / '.join(said)}"[:500]
