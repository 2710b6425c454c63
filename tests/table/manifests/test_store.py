"""The store of manifests: each is read once, in bounded memory, by as many threads as there are."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from threading import Event

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table

from icesize.parquet.files.data_file import NewDataFile
from icesize.planning.files import PartitionKey
from icesize.table.commit.snapshot_builder import SnapshotBuilder
from icesize.table.commit.steps.append import Append
from icesize.table.manifests.manifest_lists import manifests_of
from icesize.table.manifests.store import ManifestStore, Memory
from icesize.table.past.versions import versions
from icesize.table.state.handle import TableHandle
from icesize.table.state.layouts import LayoutReader
from icesize.table.state.partition_changes import touched
from tests.support.meeting import Meeting, MeetingIO, all_at_once
from tests.support.tables import LIMIT, NOW_MS, CountingIO, append, compact, layout_of, make_table, make_visible


def with_manifests(catalog: SqlCatalog, count: int, files: int = 50) -> Table:
    """A table of so many manifests with as many files each, which do not exist."""
    make_table(catalog)
    for number in range(count):
        table = catalog.load_table("db.t")
        paths = [f"{table.location()}/data/kind=a/{number}-{i}.parquet" for i in range(files)]
        added = [NewDataFile(path, 1000, 10, PartitionKey(0, (f"k{i % 5}",))) for i, path in enumerate(paths)]
        make_visible(catalog, table, [Append(tuple(added)).stage(SnapshotBuilder(table, NOW_MS + number), {})])
    return catalog.load_table("db.t")


def manifests(table: Table) -> list[ManifestFile]:
    return manifests_of(table.metadata.current_snapshot(), table.io, table.metadata.specs()).data


def value(of: object, size: int = 1) -> Callable[[], tuple[object, int]]:
    """Makes a value."""
    return lambda: (of, size)


def test_a_table_that_is_larger_than_the_store_keeps_what_fits(lake: SqlCatalog) -> None:
    """Layouts are right, memory stays within its limit, and what fits is not read again by the next passes."""

    def keep(manifest: ManifestFile) -> bool:
        """Take all manifests as a filter does: layouts without a filter are kept as a whole, beside the manifests."""
        return True

    table, whole = with_manifests(lake, 8), Memory()
    expected = LayoutReader(LIMIT, store=ManifestStore(whole)).read(table.metadata, table.io, keep)
    half, reads = Memory(whole.held_bytes // 2), list[int]()
    store = ManifestStore(half)
    for _ in range(4):
        io = CountingIO()
        assert LayoutReader(LIMIT, store=store).read(table.metadata, io, keep) == expected
        assert half.held_bytes <= half.max_bytes
        reads.append(len(io.manifests))
    assert reads[0] == 8
    assert all(3 <= again <= 6 for again in reads[1:])


def test_what_is_used_least_goes_first() -> None:
    """A pass keeps what it needs; what earlier ones used makes room, and a value without room is made each time."""
    memory = Memory(max_bytes=3)
    store = ManifestStore(memory)
    for path in "abc":
        store.get(path, "kind", value(path))
    store.follow("ab")
    assert [store.get(path, "kind", value("new")) for path in "abdc"] == ["a", "b", "new", "new"]
    assert [store.get(path, "kind", value("newer")) for path in "abdc"] == ["a", "b", "new", "newer"]
    assert store.get("large", "kind", value("large", 4)) == "large"
    assert (memory.held_bytes, store.get("a", "kind", value("newest"))) == (3, "a")


def test_what_a_table_needs_no_more_is_forgotten() -> None:
    """As soon as a newer state is followed; other files stay, and one of another version takes its place."""
    memory = Memory()
    store = ManifestStore(memory)
    for path in "abc":
        store.get(path, "kind", value(path))
    store.follow("ab")
    store.follow("b")
    assert [store.get(path, "kind", value("new")) for path in "abc"] == ["new", "b", "c"]
    assert store.get("b", "kind", value("newer"), version=2) == "newer"
    assert (store.get("b", "kind", value("newest"), version=2), memory.held_bytes) == ("newer", 3)


def test_values_of_other_policies_are_dropped_in_time() -> None:
    """Of one name the four newest values stay: each change of a policy would leave a layout in memory for ever."""
    memory = Memory()
    store = ManifestStore(memory)
    for policy in range(9):
        store.evolve(("layout", policy), 1, lambda before, policy=policy: (policy, 1))
    store.get("", ("listed twice", 0), value("other"))
    assert memory.held_bytes == 4 + 1
    assert [store.evolve(("layout", policy), 1, lambda before: ("new", 1)) for policy in (8, 5)] == [8, 5]
    assert store.evolve(("layout", 8), 2, lambda before: (before, 1)) == 8


def test_tables_share_one_memory() -> None:
    """A table sees no value of another one, and the table that was used least recently makes room for the next."""
    memory = Memory(max_bytes=4)
    one, two = ManifestStore(memory, "one"), ManifestStore(memory, "two")
    for path in "ab":
        one.get(path, "kind", value(f"one {path}"))
        assert two.get(path, "kind", value(f"two {path}")) == f"two {path}"
    one.follow("ab")
    two.follow("cd")
    assert two.get("c", "kind", value("two c", 2)) == "two c"
    assert [one.get(path, "kind", value("new")) for path in "ab"] == ["one a", "one b"]
    assert [two.get(path, "kind", value(f"two {path}", 2)) for path in "cdc"] == ["two c", "two d", "two c"]
    assert memory.held_bytes == 4
    assert [one.get(path, "kind", value("new")) for path in "ab"] == ["new", "new"]


def test_all_handles_of_a_table_share_its_store(lake: SqlCatalog) -> None:
    """What one of them has read no other one reads; a table that was dropped and recreated begins with nothing."""
    make_table(lake)
    append(lake, [1])
    first, second = (TableHandle(lake, ("db", "t")) for _ in range(2))
    read, again = CountingIO(), CountingIO()
    for handle, io in ((first, read), (second, again)):
        current = handle.load()
        assert handle.reader(current.policy).read(current.table.metadata, io).files == 1
    assert (len(read.manifests), len(again.manifests)) == (1, 0)
    lake.drop_table("db.t")
    make_table(lake)
    before = first.store
    first.load()
    assert (second.store is before, first.store is before) == (True, False)


def test_eight_threads_share_one_store(lake: SqlCatalog) -> None:
    """Layouts of two limits, changes and versions are those of a store of their own, and each manifest is read once."""
    make_table(lake)
    for number in range(5):
        append(lake, [number], "ab"[number % 2])
    table = compact(lake)
    store, io = ManifestStore(), MeetingIO()

    def layout(limit: int) -> object:
        return LayoutReader(limit, store=store).read(table.metadata, io)

    def changes(of: ManifestStore) -> object:
        return [touched(of, io, snapshot, table.metadata.specs()) for snapshot in table.metadata.snapshots]

    calls = [lambda: layout(LIMIT), lambda: layout(1), lambda: changes(store)] * 2
    found = all_at_once([*calls, *[lambda: versions(table.metadata, io, store)] * 2])
    one = LayoutReader(1).read(table.metadata, table.io)
    known = versions(table.metadata, table.io, ManifestStore())
    assert found == [layout_of(table), one, changes(ManifestStore())] * 2 + [known] * 2
    of_head = [m.manifest_path for m in manifests(table)]
    assert {path: io.manifests.count(path) for path in of_head}.keys() == set(of_head)


def test_threads_that_want_one_value_wait_for_the_first() -> None:
    """It is made once; if that fails, the next thread makes it by itself."""
    store, made, begun, meeting = ManifestStore(), list[int](), Event(), Meeting()

    def make() -> tuple[str, int]:
        made.append(1)
        if len(made) == 1:
            begun.set()
            raise OSError("storage is away")
        meeting.wait()
        return "value", 1

    def first() -> str:
        with pytest.raises(OSError, match="storage is away"):
            store.get("path", "kind", make)
        return "value"

    def later() -> str:
        begun.wait(10)
        return store.get("path", "kind", make)

    assert all_at_once([first, *[later] * 7]) == ["value"] * 8
    assert len(made) == 2


def test_memory_is_about_what_the_store_says(lake: SqlCatalog) -> None:
    """The limit holds for real: columns of 2,000 files, and values of all of them if somebody asks."""
    table = with_manifests(lake, 2, files=1_000)
    io = PyArrowFileIO()
    for limit in (1, LIMIT):
        memory = Memory()
        LayoutReader(limit).read(table.metadata, io)
        tracemalloc.start()
        try:
            layout = LayoutReader(limit, store=ManifestStore(memory)).read(table.metadata, io)
            assert layout.files == 2_000
            taken, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert 0.6 * taken < memory.held_bytes < 1.6 * taken
