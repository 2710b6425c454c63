"""Versions: each is what readers saw after a commit, can be read at its snapshot, and nothing else is one."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import EqualTo
from pyiceberg.manifest import ManifestContent
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType

from icesize.planning.files import PartitionKey
from icesize.planning.retention.ancestry import VERSION_TAG
from icesize.table.catalog.history import known_history
from icesize.table.manifests.entries import read_entries
from icesize.table.manifests.manifest_lists import manifests_of
from icesize.table.manifests.store import ManifestStore
from icesize.table.past.versions import Version, versions
from icesize.table.records.summary import RUN_ID
from icesize.table.state.partition_changes import touched
from tests.support.examples import examples
from tests.support.row_deletes import delete_rows
from tests.support.tables import (
    CountingIO,
    append,
    arrow,
    batch,
    commit_built,
    compact,
    expire,
    head_id,
    make_table,
    merged,
    overwritten,
    request_on,
    rewrite_manifests,
    run,
    small_files,
    sqlite_catalog,
    two_files,
    write,
)

A, B = PartitionKey(0, ("a",)), PartitionKey(0, ("b",))


def listed(catalog: Catalog, partition: PartitionKey | None = None) -> list[Version]:
    """The versions of the table as it is now, by a reader that remembers nothing."""
    table = catalog.load_table("db.t")
    return versions(table.metadata, table.io, ManifestStore(), partition)


def keep_only(catalog: Catalog, tagged: list[int], newest: int = 1) -> Table:
    """Expire all but the newest snapshots of main and some older ones, which get tags of ours."""
    table = catalog.load_table("db.t")
    manage = table.manage_snapshots()
    for snapshot_id in tagged:
        manage = manage.create_tag(snapshot_id, f"{VERSION_TAG}{snapshot_id}")
    manage.commit()
    table = catalog.load_table("db.t")
    kept = {*(ref.snapshot_id for ref in table.metadata.refs.values())}
    kept |= {s.snapshot_id for s in known_history(table.metadata)[:newest]}
    ids = [s.snapshot_id for s in table.metadata.snapshots if s.snapshot_id not in kept]
    table.maintenance.expire_snapshots().by_ids(ids).commit()
    return catalog.load_table("db.t")


def test_a_table_without_snapshots_has_no_versions(lake: SqlCatalog) -> None:
    """Nothing was ever written, so there is nothing to list."""
    make_table(lake)
    assert listed(lake) == []


@pytest.mark.parametrize("version", ["1", "2"])
def test_each_commit_that_touches_a_partition_makes_a_version(lake: SqlCatalog, version: str) -> None:
    """Totals are those of the partition then; other partitions' commits make none."""
    make_table(lake, properties={"format-version": version})
    first = append(lake, [1, 2], "a")
    second = append(lake, [3], "b")
    third = append(lake, [4], "a")
    fourth = compact(lake, "a")
    sizes = [sum(f.size_bytes for f in small_files(t, "a")) for t in (fourth, third, first)]
    found = listed(lake, A)
    assert [(v.snapshot_id, v.operation, v.files, v.rows, v.current) for v in found] == [
        (head_id(fourth), "replace", 1, 3, True),
        (head_id(third), "append", 2, 3, False),
        (head_id(first), "append", 1, 2, False),
    ]
    assert [v.size_bytes for v in found] == sizes
    assert [v.timestamp_ms for v in found] == [
        s.timestamp_ms for s in reversed(fourth.metadata.snapshots) if s.snapshot_id != head_id(second)
    ]
    assert {(v.label, v.key, v.partition["kind"]) for v in found} == {("kind=a", A, "a")}
    assert [v.snapshot_id for v in listed(lake, B)] == [head_id(second)]
    assert [v for v in listed(lake) if v.key == A] == found


def test_the_snapshots_of_one_commit_are_one_version(lake: SqlCatalog) -> None:
    """A batch that appends and merges is one version, named by its last snapshot, with its stream and batch id."""
    two_files(lake)
    run(lake, batch(lake, 7), lake.load_table("db.t"))
    table = lake.load_table("db.t")
    newest, *older = listed(lake)
    assert newest == Version(
        partition={"kind": "a"},
        label="kind=a",
        key=A,
        snapshot_id=head_id(table),
        timestamp_ms=table.metadata.snapshots[-1].timestamp_ms,
        operation="append+replace",
        files=2,
        size_bytes=sum(f.size_bytes for f in small_files(table)),
        rows=3,
        stream_id="s",
        batch_id=7,
        current=True,
    )
    assert [(v.operation, v.batch_id, v.files) for v in older] == [("append", None, 2), ("append", None, 1)]
    data = newest.to_dict()
    assert data == {
        "partition": {"kind": "a"},
        "label": "kind=a",
        "snapshot_id": str(newest.snapshot_id),
        "timestamp_ms": newest.timestamp_ms,
        "operation": "append+replace",
        "files": 2,
        "size_bytes": newest.size_bytes,
        "rows": 3,
        "stream_id": "s",
        "batch_id": 7,
        "current": True,
    }


def test_a_partition_may_be_touched_by_one_snapshot_of_a_commit_only(lake: SqlCatalog) -> None:
    """Rows appended to one partition and files merged in another: both have a version at the commit's last snapshot."""
    two_files(lake)
    table = lake.load_table("db.t")
    run(lake, request_on(table, [write(table, [3], "b")], [merged(table, small_files(table, "a"))]), table)
    last = head_id(lake.load_table("db.t"))
    assert [(v.label, v.snapshot_id, v.operation, v.files) for v in listed(lake)[:2]] == [
        ("kind=a", last, "append+replace", 1),
        ("kind=b", last, "append+replace", 1),
    ]


def test_manifests_written_anew_make_no_version(lake: SqlCatalog) -> None:
    """Neither our own snapshot without changes nor an append that folds the manifests of other partitions."""
    make_table(lake, properties={"commit.manifest.min-count-to-merge": "2"})
    append(lake, [1], "a")
    append(lake, [2], "b")
    before = listed(lake, A)
    table = rewrite_manifests(lake)
    assert table.metadata.snapshots[-1].summary is not None
    assert table.metadata.snapshots[-1].summary.operation.value == "replace"
    append(lake, [3], "b")
    append(lake, [4], "b")
    assert listed(lake, A) == before
    assert [v.files for v in listed(lake, B)] == [3, 2, 1]


def test_files_added_again_are_a_version(lake: SqlCatalog) -> None:
    """An overwrite that brings an old file back in the place of a newer one."""
    make_table(lake)
    first = append(lake, [1])
    append(lake, [2])
    merged_files = small_files(compact(lake))
    head = first.metadata.current_snapshot()
    assert head is not None
    entries = [e for m in head.manifests(first.io) for e in read_entries(first.io, m)]
    table = commit_built(
        lake, lambda builder: overwritten(builder, [f.path for f in merged_files], [], entries, {RUN_ID: "restore"})
    )
    found = listed(lake, A)
    assert [(v.operation, v.files, v.rows) for v in found] == [
        ("overwrite", 1, 1),
        ("replace", 1, 2),
        ("append", 2, 2),
        ("append", 1, 1),
    ]
    assert found[0].snapshot_id == head_id(table)
    assert found[0].size_bytes == found[3].size_bytes


def test_an_emptied_partition_has_a_version_without_files(lake: SqlCatalog) -> None:
    """Its rows were deleted: that is what readers see, and it can be read."""
    make_table(lake)
    append(lake, [1], "b")
    append(lake, [2], "a").delete("kind = 'a'")
    newest, older = listed(lake, A)
    assert (newest.operation, newest.files, newest.rows, newest.size_bytes, newest.current) == ("delete", 0, 0, 0, True)
    assert (older.operation, older.files, older.current) == ("append", 1, False)


def test_changes_are_counted_by_partition(lake: SqlCatalog) -> None:
    """Files, bytes and rows that came and went; of delete files the number; nothing for manifests written anew."""
    make_table(lake)
    append(lake, [1, 2], "a")
    before = small_files(append(lake, [3], "a"))
    delete_rows(lake, small_files(append(lake, [4], "b"), "b")[0])
    after = small_files(compact(lake, "a"), "a")
    table = rewrite_manifests(lake)
    store = ManifestStore()
    found = [touched(store, table.io, s, table.metadata.specs()) for s in table.metadata.snapshots]
    assert [list(changes) for changes in found] == [[A], [A], [B], [B], [A], []]
    deleted, replaced = found[3][B], found[4][A]
    assert (deleted.added.identity != 0, deleted.added[:3], deleted.net[:3]) == (True, (0, 0, 0), (0, 0, 0))
    assert (replaced.added.files, replaced.removed.files) == (1, 2)
    assert (replaced.added.rows, replaced.removed.rows) == (3, 3)
    assert replaced.added.size_bytes == after[0].size_bytes
    assert replaced.removed.size_bytes == sum(f.size_bytes for f in before)


def test_deletes_of_rows_make_a_version(lake: SqlCatalog) -> None:
    """A delete file changes what readers see; the data files stay what they are."""
    make_table(lake)
    delete_rows(lake, small_files(append(lake, [1, 2]))[0])
    assert [(v.operation, v.files, v.rows) for v in listed(lake, A)] == [("delete", 1, 2), ("append", 1, 2)]


def test_what_expired_commits_made_is_listed_where_it_is_still_shown(lake: SqlCatalog) -> None:
    """The oldest snapshot left stands for older versions, its own batch does not."""
    make_table(lake)
    append(lake, [1], "a", batch=1)
    append(lake, [2], "a", batch=2)
    base = head_id(append(lake, [3], "b", batch=3))
    append(lake, [4], "a", batch=4)
    expire(lake.load_table("db.t"), keep=2)
    last = head_id(lake.load_table("db.t"))
    assert [(v.label, v.snapshot_id, v.files, v.batch_id, v.current) for v in listed(lake)] == [
        ("kind=a", last, 3, 4, True),
        ("kind=a", base, 2, None, False),
        ("kind=b", base, 1, 3, True),
    ]
    expire(lake.load_table("db.t"))
    assert [(v.label, v.snapshot_id, v.files, v.batch_id) for v in listed(lake)] == [
        ("kind=a", last, 3, 4),
        ("kind=b", last, 1, None),
    ]


def test_snapshots_held_by_version_tags_are_read_behind_the_gap(lake: SqlCatalog) -> None:
    """What did not change across a gap is one version, at the oldest snapshot that shows it as far back as is known."""
    make_table(lake)
    append(lake, [1], "b")
    tagged = head_id(append(lake, [2], "a"))
    append(lake, [3], "a")
    newer = head_id(append(lake, [4], "a"))
    keep_only(lake, [tagged])
    assert [(v.label, v.snapshot_id, v.files, v.current) for v in listed(lake)] == [
        ("kind=a", newer, 3, True),
        ("kind=a", tagged, 1, False),
        ("kind=b", tagged, 1, True),
    ]


def test_a_batch_of_a_newer_release_is_left_out(lake: SqlCatalog) -> None:
    """A ledger entry that cannot be read does not keep versions from being listed."""
    make_table(lake)
    table = lake.load_table("db.t")
    run(lake, request_on(table, [write(table, [1])], summary={"icesize.ledger": '{"version": 99}'}), table)
    (version,) = listed(lake)
    assert (version.stream_id, version.batch_id, version.files) == (None, None, 1)


def test_a_second_listing_reads_new_snapshots_only(lake: SqlCatalog) -> None:
    """Snapshots never change: what was read once is not read again."""
    make_table(lake)
    store = ManifestStore()

    def newly_read(table: Table) -> list[str]:
        io = CountingIO()
        for snapshot in reversed(table.metadata.snapshots):
            touched(store, io, snapshot, table.metadata.specs())
        assert len(versions(table.metadata, table.io, store)) == len(known_history(table.metadata))
        return io.manifests

    first, second = append(lake, [1]), append(lake, [2])
    assert newly_read(second) == [manifest_of(second), manifest_of(first)]
    assert newly_read(second) == []
    expire(lake.load_table("db.t"))
    third = append(lake, [3])
    assert newly_read(third) == [manifest_of(third)]
    assert newly_read(second) == []


def manifest_of(table: Table) -> str:
    """The manifest that the newest snapshot wrote."""
    (manifest,) = (
        m
        for m in manifests_of(table.metadata.current_snapshot(), table.io, table.metadata.specs()).data
        if m.added_snapshot_id == head_id(table)
    )
    return manifest.manifest_path


KINDS = ("a", "b", "c")
State = dict[str, tuple[frozenset[str], frozenset[str]]]
NO_FILES: State = dict.fromkeys(KINDS, (frozenset(), frozenset()))


def state_at(table: Table, snapshot_id: int) -> State:
    """Data and delete files of each kind at a snapshot, as PyIceberg reads its manifests."""
    snapshot = table.metadata.snapshot_by_id(snapshot_id)
    assert snapshot is not None
    found: dict[str, tuple[set[str], set[str]]] = {kind: (set(), set()) for kind in KINDS}
    for manifest in snapshot.manifests(table.io):
        for entry in manifest.fetch_manifest_entry(table.io):
            files = found[entry.data_file.partition[0]]
            files[manifest.content == ManifestContent.DELETES].add(entry.data_file.file_path)
    return {kind: (frozenset(data), frozenset(deletes)) for kind, (data, deletes) in found.items()}


class History:
    """A table, and what really became of it: `commits` are the ids that readers of main saw, oldest first."""

    def __init__(self, folder: Path, version: str) -> None:
        self.catalog = sqlite_catalog(folder)
        self.version = version
        make_table(self.catalog, properties={"format-version": version, "commit.manifest.min-count-to-merge": "4"})
        self.commits: list[int] = []
        self.touched: dict[int, set[str]] = {}
        self.next_id = 0

    @property
    def table(self) -> Table:
        return self.catalog.load_table("db.t")

    def do(self, what: str, kind: str, number: int) -> None:
        """One step; steps that make no sense now do nothing."""
        before = {s.snapshot_id for s in self.table.metadata.snapshots}
        getattr(self, what)(kind, number)
        new = [s for s in self.table.metadata.snapshots if s.snapshot_id not in before]
        for snapshot in new[-1:] if what == "batch" else new:
            then = state_at(self.table, self.commits[-1]) if self.commits else NO_FILES
            now = state_at(self.table, snapshot.snapshot_id)
            self.commits.append(snapshot.snapshot_id)
            self.touched[snapshot.snapshot_id] = {kind for kind in KINDS if now[kind] != then[kind]}

    def append(self, kind: str, number: int) -> None:
        self.next_id += 1
        append(self.catalog, [self.next_id], kind)

    def batch(self, kind: str, number: int) -> None:
        self.next_id += 1
        table = self.table
        files = [f for f in small_files(table, KINDS[number % 3]) if f.obstacle is None]
        groups = [merged(table, files)] if len(files) > 1 else []
        run(self.catalog, request_on(table, [write(table, [self.next_id], kind)], groups), table)

    def merge(self, kind: str, number: int) -> None:
        table = self.table
        files = [f for f in small_files(table, kind) if f.obstacle is None]
        if len(files) > 1:
            run(self.catalog, request_on(table, groups=[merged(table, files)]), table)

    def drop(self, kind: str, number: int) -> None:
        if small_files(self.table, kind):
            self.table.delete(EqualTo("kind", kind))

    def overwrite(self, kind: str, number: int) -> None:
        self.next_id += 1
        if small_files(self.table, kind):
            self.table.overwrite(arrow([self.next_id], kind), EqualTo("kind", kind))

    def delete_row(self, kind: str, number: int) -> None:
        files = [f for f in small_files(self.table, kind) if not f.delete_files]
        if files and self.version == "2":
            delete_rows(self.catalog, files[0])

    def rewrite(self, kind: str, number: int) -> None:
        if self.commits:
            rewrite_manifests(self.catalog)

    def restore(self, kind: str, number: int) -> None:
        """A partition made what it was at some snapshot."""
        known = [s for s in self.commits if self.table.metadata.snapshot_by_id(s)]
        if not known:
            return
        table = self.table
        chosen = table.metadata.snapshot_by_id(known[number % len(known)])
        assert chosen is not None
        manifests = [m for m in chosen.manifests(table.io) if m.content == ManifestContent.DATA]
        entries = [e for m in manifests for e in read_entries(table.io, m) if e.values == (kind,)]
        now = {f.path for f in small_files(table, kind)}
        back = [e for e in entries if e.path not in now]
        gone = sorted(now - {e.path for e in entries})
        if back or gone:
            commit_built(self.catalog, lambda builder: overwritten(builder, gone, [], back, {RUN_ID: f"r{number}"}))

    def roll_back(self, kind: str, number: int) -> None:
        known = [s for s in self.commits if self.table.metadata.snapshot_by_id(s)]
        if not known:
            return
        target = known[number % len(known)]
        left = self.commits[self.commits.index(target) + 1 :]
        del self.commits[self.commits.index(target) + 1 :]
        with self.table.manage_snapshots() as manage:
            manage.set_current_snapshot(target)
            for name, ref in self.table.metadata.refs.items():
                if ref.snapshot_ref_type == SnapshotRefType.TAG and ref.snapshot_id in left:
                    manage.remove_tag(name)

    def expire(self, kind: str, number: int) -> None:
        """Some older commits are tagged, everything but those and the newest is gone."""
        known = [s for s in self.commits if self.table.metadata.snapshot_by_id(s)]
        held = {ref.snapshot_id for ref in self.table.metadata.refs.values()}
        tagged = [s for i, s in enumerate(known) if number >> i & 1 and s not in held]
        if known:
            keep_only(self.catalog, tagged, newest=1 + number % 3)

    def expected(self) -> list[tuple[int, str, int, bool]]:
        """(snapshot, kind, files, current), newest first: where a kind changed or differs from what is known before."""
        table, before = self.table, NO_FILES
        found: list[tuple[int, str, int]] = []
        for snapshot_id in self.commits:
            if table.metadata.snapshot_by_id(snapshot_id):
                now = state_at(table, snapshot_id)
                changed = {k for k in KINDS if now[k] != before[k]} | self.touched[snapshot_id]
                found += [(snapshot_id, k, len(now[k][0])) for k in sorted(changed, reverse=True)]
                before = now
        newest = {kind: snapshot_id for snapshot_id, kind, _ in found}
        return [(s, kind, files, newest[kind] == s) for s, kind, files in reversed(found)]


STEPS = ("append", "append", "batch", "merge", "drop", "overwrite", "delete_row", "rewrite", "restore", "roll_back")


@examples(10)
@given(
    version=st.sampled_from(["1", "2"]),
    steps=st.lists(
        st.tuples(st.sampled_from([*STEPS, "expire", "expire"]), st.sampled_from(KINDS), st.integers(0, 255)),
        min_size=4,
        max_size=14,
    ),
)
def test_any_history_is_listed_as_it_was(version: str, steps: list[tuple[str, str, int]]) -> None:
    """Exactly the commits that changed a partition, as far as they are known, and each readable where it is listed."""
    with tempfile.TemporaryDirectory() as folder:
        history = History(Path(folder), version)
        store = ManifestStore()
        for step in steps:
            history.do(*step)
            table = history.table
            found = versions(table.metadata, table.io, store)
            assert [(v.snapshot_id, v.key.values[0], v.files, v.current) for v in found] == history.expected()
        for version_ in found:
            scan = table.scan(EqualTo("kind", version_.key.values[0]), snapshot_id=version_.snapshot_id)
            files = [task.file for task in scan.plan_files()]
            assert len(files) == version_.files
            assert sum(f.record_count for f in files) == version_.rows
            assert sum(f.file_size_in_bytes for f in files) == version_.size_bytes
            deleted = sum(len(task.delete_files) for task in scan.plan_files())
            assert scan.to_arrow().num_rows == version_.rows - deleted, "each delete file of this test hits one row"
        for kind in KINDS:
            key = PartitionKey(0, (kind,))
            assert versions(table.metadata, table.io, ManifestStore(), key) == [v for v in found if v.key == key]
        history.catalog.close()
