"""What a table contains, read without icesize's readers, and what must hold of it at any time."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from pyiceberg.manifest import DataFileContent
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from icesize.maintenance.verify.verification import verify
from icesize.planning.files import PartitionKey
from integration.keyed.model import Row
from integration.keyed.shape import Shape
from tests.support.machine import Listed, Reader
from tests.support.row_lineage import LINEAGE, first_row_ids
from tests.support.tables import local, referenced_metadata

_LINEAGE_IDS = tuple(int(each.metadata[b"PARQUET:field_id"]) for each in LINEAGE)


class Live(NamedTuple):
    """One live row: where it is, and its row id and last change (None in format v2)."""

    row: Row
    path: str
    position: int
    partition: PartitionKey
    row_id: int | None
    last_updated: int | None


@dataclass
class Contents(Reader):
    """Reads rows by the field ids of a shape, with deletes of all kinds applied. Files are read once."""

    shape: Shape = field(default_factory=lambda: Shape(2, "none", "long", "long", {}, 16))
    _rows: dict[int, list[Live]] = field(default_factory=dict)

    def live_rows(self, snapshot: Snapshot | None, table: Table) -> list[Live]:
        """All live rows of a snapshot, which never change."""
        if snapshot is None:
            return []
        if snapshot.snapshot_id not in self._rows:
            self._rows[snapshot.snapshot_id] = list(self._live(snapshot, table))
        return self._rows[snapshot.snapshot_id]

    def _live(self, snapshot: Snapshot, table: Table) -> Iterator[Live]:
        entries = self.entries(snapshot, table.io)
        firsts = first_row_ids(table, snapshot) if table.metadata.format_version == 3 else {}
        gone = self._deleted(entries)
        by_key = [each for each in entries if each.content == DataFileContent.EQUALITY_DELETES]
        for data in entries:
            if data.content != DataFileContent.DATA:
                continue
            dead, first = gone[data.path], firsts.get(data.path, (None, 0))[0]
            keys = [self._keys(each) for each in by_key if self._reaches(each, data, table)]
            stored = self._columns(data.path, _LINEAGE_IDS)
            for position, values in enumerate(self._columns(data.path, self.shape.ids)):
                row = self.shape.row(values)
                if position in dead or any(row.key in some for some in keys):
                    continue
                row_id, last = stored[position]
                if row_id is None and first is not None:
                    row_id = first + position
                yield Live(row, data.path, position, data.partition, row_id, last or data.sequence_number)

    def _deleted(self, entries: Collection[Listed]) -> dict[str, set[int]]:
        """Deleted positions by data file: those of a vector alone, where there is one."""
        vectors, positions = dict[str, set[int]](), defaultdict[str, set[int]](set)
        numbers = {each.path: each for each in entries if each.content == DataFileContent.DATA}
        for each in entries:
            if each.content != DataFileContent.POSITION_DELETES:
                continue
            if each.offset is not None:
                assert each.referenced is not None
                assert each.referenced not in vectors, f"two vectors for {each.referenced}"
                assert each.referenced in numbers, f"a vector of {each.referenced}, which is not live"
                vectors[each.referenced] = set(self._vector(each))
                continue
            for path, position in self._pairs(each.path):
                data = numbers.get(path)
                if data and data.partition == each.partition and data.sequence_number <= each.sequence_number:
                    positions[path].add(position)
        return defaultdict(set, {**positions, **vectors})

    def _keys(self, delete: Listed) -> set[tuple[object, ...]]:
        return set(self._columns(delete.path, tuple(self.shape.key_ids)))

    @staticmethod
    def _reaches(delete: Listed, data: Listed, table: Table) -> bool:
        if delete.sequence_number <= data.sequence_number:
            return False
        return delete.partition == data.partition or table.specs()[delete.partition.spec_id].is_unpartitioned()


@dataclass
class Watch:
    """Checks a table after each step, and remembers what the steps before have shown.

    Attributes:
        folder: The folder of the catalog.
        contents: Reads the table.
        ever: Files that some snapshot has listed.
        left: Files that no snapshot lists, and that a killed process or an unknown outcome explains.
        lineage: Row id and last change of each row that was live after the last step.
        foreign_deletes: Whether other writers have added position delete files, which no promise bounds.
    """

    folder: Path
    contents: Contents
    ever: set[str] = field(default_factory=set)
    left: set[str] = field(default_factory=set)
    lineage: dict[Row, tuple[int | None, int | None]] = field(default_factory=dict)
    foreign_deletes: bool = False
    _seen: set[int] = field(default_factory=set)
    _position_files: set[str] = field(default_factory=set)

    def rows(self, table: Table) -> list[Live]:
        """The live rows of main."""
        return self.contents.live_rows(table.metadata.current_snapshot(), table)

    def look(self, table: Table, wanted: Collection[Row], *, may_leave_files: bool) -> list[Live]:
        """Check everything that holds after any step, and return the live rows."""
        live = self.rows(table)
        found, expected = Counter(each.row for each in live), Counter(wanted)
        assert found == expected, f"too many: {list(found - expected)[:5]}, missing: {list(expected - found)[:5]}"
        findings = verify("t", table.metadata, table.io).findings
        assert [each for each in findings if each.is_error] == []
        self.note(table)
        self._check_leaks(table, may_leave_files)
        self._check_row_ids(table, live)
        return live

    def note(self, table: Table) -> None:
        """Check the snapshots that are new, and remember their files."""
        for snapshot in table.metadata.snapshots:
            if snapshot.snapshot_id not in self._seen:
                self._seen.add(snapshot.snapshot_id)
                entries = self.contents.entries(snapshot, table.io)
                self.ever |= {each.path for each in entries}
                self._check_deletes(table, snapshot, entries)
        self.ever |= referenced_metadata(table)

    def _check_row_ids(self, table: Table, live: Collection[Live]) -> None:
        if table.metadata.format_version == 3:
            ids = [each.row_id for each in live if each.row_id is not None]
            assert len(set(ids)) == len(ids), "two rows have one row id"

    def _check_deletes(self, table: Table, snapshot: Snapshot, entries: Collection[Listed]) -> None:
        """No snapshot of ours adds equality deletes; in format v3, none adds position delete files."""
        facts = snapshot.summary.additional_properties if snapshot.summary else {}
        is_v3 = snapshot.first_row_id is not None
        files = {e.path for e in entries if e.content == DataFileContent.POSITION_DELETES and e.offset is None}
        if not is_v3:
            self._position_files |= files
        if "icesize.run-id" not in facts:
            return
        assert "added-equality-deletes" not in facts, "icesize added equality deletes"
        if snapshot.summary and snapshot.summary.operation == Operation.APPEND:
            assert "added-delete-files" not in facts
        if is_v3:
            assert files <= self._position_files, "a position delete file in format v3"
        elif not self.foreign_deletes:
            self._check_bound(table, entries)

    def _check_bound(self, table: Table, entries: Collection[Listed]) -> None:
        """At most `max-delete-files` delete files name a data file."""
        applying = Counter[str]()
        for each in entries:
            if each.content == DataFileContent.POSITION_DELETES:
                applying.update({path for path, _ in self.contents._pairs(each.path)})
        most = int(table.properties["icesize.policy.max-delete-files"])
        assert max(applying.values(), default=0) <= most, f"{max(applying.values())} delete files of one data file"

    def _check_leaks(self, table: Table, may_leave: bool) -> None:
        found = {
            f"file://{path}" for path in local(table.location()).rglob("*")
            if path.is_file() and not path.name.endswith(".metadata.json")
        }  # fmt: skip
        left = {path for path in found if path not in self.ever} - self.left
        if may_leave:
            self.left |= left
            return
        assert not left, f"{len(left)} files were left: {sorted(left)[0]}"
