"""Restores of a partition three days after its newest snapshot, and checks of their outcome."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from icesize import failpoints
from icesize.environment import Environment
from icesize.maintenance.jobs.restore import restore
from icesize.planning.files import PartitionKey
from icesize.report import Report
from icesize.table.state.handle import TableHandle
from tests.support.jobs import context_of
from tests.support.tables import (
    append,
    check,
    compact,
    data_files_on_disk,
    local,
    make_table,
    metadata_files_on_disk,
    referenced_metadata,
    small_files,
)

A = PartitionKey(0, ("a",))
DAY_MS = 86_400_000
AGE_MS = 3 * DAY_MS
_numbers = itertools.count()


def restored(catalog: Catalog, snapshot_id: int, partition: PartitionKey = A) -> Report:
    """The call, three days after the newest snapshot was made, on the table as it is now and without waiting."""
    handle = TableHandle(catalog, ("db", "t"))
    current = handle.load()
    now_ms = current.table.metadata.last_updated_ms + AGE_MS
    environment = Environment(
        monotonic=lambda: 0.0,
        now_ms=lambda: now_ms,
        sleep=lambda seconds: None,
        new_id=lambda: f"restore-{next(_numbers)}",
    )
    return restore(context_of(handle, environment), current, partition, snapshot_id)


def with_history(catalog: Catalog, **properties: str) -> tuple[Table, int]:
    """Rows 1, 2 in `a` and 5 in `b`, the snapshot with these; then `a` is compacted, and 3 and 6 are appended."""
    make_table(catalog, properties=properties)
    append(catalog, [1])
    append(catalog, [2])
    table = append(catalog, [5], "b")
    snapshot_id = table.metadata.current_snapshot_id
    assert snapshot_id is not None
    compact(catalog, "a")
    append(catalog, [3])
    return append(catalog, [6], "b"), snapshot_id


def numbered_files(table: Table, kind: str) -> list[tuple[str, int]]:
    """Live files of a partition with their data sequence numbers."""
    return [(f.path, f.sequence_number) for f in small_files(table, kind)]


def files_at(catalog: Catalog, snapshot_id: int) -> set[str]:
    table = catalog.load_table("db.t")
    return {task.file.file_path for task in table.scan(snapshot_id=snapshot_id).plan_files()}


def contents(paths: set[str]) -> set[bytes]:
    """The bytes of some files."""
    return {local(path).read_bytes() for path in paths}


def data_files_needed(table: Table) -> set[str]:
    """Data and delete files that some snapshot of the table lists."""
    manifests = [m for s in table.metadata.snapshots for m in s.manifests(table.io)]
    return {entry.data_file.file_path for m in manifests for entry in m.fetch_manifest_entry(table.io)}


def assert_unchanged(catalog: Catalog, before: Table) -> Table:
    """The table has the head and the refs that it had, and nothing of a failed restore is on storage."""
    table = catalog.load_table("db.t")
    check(table)
    assert data_files_on_disk(table) <= data_files_needed(table), "copies were left"
    assert table.metadata.current_snapshot_id == before.metadata.current_snapshot_id
    assert table.metadata.refs == before.metadata.refs
    assert metadata_files_on_disk(table) == referenced_metadata(table)
    return table


@contextmanager
def before_swap(number: int, action: Callable[[], object], point: str = "before-swap") -> Iterator[None]:
    """What happens just before a swap, or after it: the first is that of the tag, the second that of the overwrite."""
    reached = itertools.count(1)

    def act() -> None:
        if next(reached) == number:
            action()

    with failpoints.armed(point, act):
        yield
