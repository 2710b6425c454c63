"""Bounds of what a table holds beside its rows: files, delete files, dead rows and manifests.

Rows can be right while all of these grow for ever, for example because each batch drops its merge. So they are checked
after each step, from the files alone. `growth.py` runs long streams under the same bounds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from pyiceberg.manifest import DataFileContent
from pyiceberg.table import Table

from icesize.planning.files import PartitionKey
from icesize.policy import SizePolicy
from icesize.report import Report
from tests.support.machine import Reader
from tests.support.tables import local

MOST_DEAD_SHARE = 0.2
"""The share of dead rows at which the next batch that hits a file rewrites it."""
MOST_MANIFESTS = 110
"""`commit.manifest.min-count-to-merge` is 100 by default. Those with delete files are a few more."""
_HELD_BACK = {"CONTESTED", "HAS_DELETES", "LISTED_TWICE", "NAN_PARTITION", "NO_ROW_IDS", "NOT_PARQUET", "OVER_BUDGET"}
"""Reasons for which a batch may leave files as they are."""


@dataclass(frozen=True)
class DataFile:
    """A live data file, its rows, and how many of them are dead; its delete files, vectors among them."""

    partition: PartitionKey
    size_bytes: int
    rows: int
    dead: int
    delete_files: int


@dataclass(frozen=True)
class Held:
    """What the newest snapshot of a table holds: data files by path, and numbers of manifests.

    `dangling` are position delete files and vectors of no live data file.
    """

    files: Mapping[str, DataFile] = field(default_factory=dict)
    dangling: Collection[str] = ()
    manifests: int = 0

    @classmethod
    def of(cls, table: Table, reader: Reader) -> Held:
        """What the table holds now."""
        snapshot = table.metadata.current_snapshot()
        if snapshot is None:
            return cls()
        entries = reader.entries(snapshot, table.io)
        data = {each.path: each for each in entries if each.content == DataFileContent.DATA}
        named, dangling = dict[str, list[tuple[bool, set[int]]]](), list[str]()
        for each in entries:
            if each.content != DataFileContent.POSITION_DELETES:
                continue
            by_path = {p: rows for p, rows in reader.deleted_by(each).items() if p in data}
            for path, rows in by_path.items():
                named.setdefault(path, []).append((each.offset is not None, rows))
            if not by_path:
                dangling.append(each.path)
        files = dict[str, DataFile]()
        for path, each in data.items():
            applied = named.get(path, [])
            # readers ignore position deletes beside a vector
            applied = [pair for pair in applied if pair[0]] or applied
            dead = set[int]().union(*(rows for _, rows in applied))
            rows, size_bytes = reader.stored_rows(path), local(path).stat().st_size
            files[path] = DataFile(each.partition, size_bytes, rows, len(dead), len(applied))
        return cls(files, dangling, len(snapshot.manifests(table.io)))

    @property
    def dead_share(self) -> float:
        """Dead rows as a share of all stored rows."""
        return sum(file.dead for file in self.files.values()) / max(1, sum(file.rows for file in self.files.values()))


def check_delete_files(held: Held, most: int) -> None:
    """At most so many delete files apply to a data file."""
    found = max((file.delete_files for file in held.files.values()), default=0)
    assert found <= most, f"{found} delete files of one data file"


def check_batch(before: Held, after: Held, report: Report, policy: SizePolicy, spec_id: int) -> None:
    """Check a batch that no other writer and no fault disturbed.

    Each partition that it changed holds at most `max-small-files` small files. Each file that it deleted rows of has
    few dead ones, or was rewritten. No merge failed, and no delete file was left without a data file.
    """
    dropped = [note for note in (*report.notes, *report.conflicts) if "dropped" in note]
    assert not dropped, f"nobody disturbed the batch, and it dropped merges: {dropped[0]}"
    spent = set(after.dangling).difference(before.dangling)
    assert not spent, f"the batch left delete files that apply to no data file: {sorted(spent)}"
    assert after.manifests <= MOST_MANIFESTS, f"{after.manifests} manifests"
    if not policy.merging or _HELD_BACK & {reason.upper() for reason in report.skipped}:
        return
    changed = {path for path, file in after.files.items() if before.files.get(path) != file}
    partitions = {after.files[path].partition for path in changed}
    small = Counter(f.partition for f in after.files.values() if f.size_bytes < policy.small_file_limit_bytes)
    for key in partitions:
        if key.spec_id == spec_id:
            most = max(policy.max_small_files, 1)
            assert small[key] <= most, f"{small[key]} small files in {key}, at most {most} may remain"
    for path in changed:
        file = after.files[path]
        if file.partition.spec_id == spec_id and path in before.files:
            assert file.dead <= MOST_DEAD_SHARE * file.rows, f"{file.dead} of {file.rows} rows of a file are dead"
