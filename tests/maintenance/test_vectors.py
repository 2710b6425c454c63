"""Deletion vectors in tables: delete files become vectors, which go with their files, whatever others do meanwhile."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import ManifestContent
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import RemoveSnapshotsUpdate, SetSnapshotRefUpdate

import icesize
from icesize.environment import Environment
from icesize.failpoints import armed
from icesize.parquet.files.data_file import NewDeleteFile
from icesize.planning.files import DeleteFile, FileFact, PartitionKey
from icesize.sized_table import SizedTable
from icesize.table.commit.documents import lossless
from tests.support.delete_files import delete_equal, delete_positions, equality_deletes, live_deletes
from tests.support.puffin import add_deletes, vectors_in_puffin
from tests.support.tables import (
    append,
    commit_built,
    head_id,
    ids_of,
    layout_of,
    local,
    make_table,
    merged,
    request_on,
    run,
    small_files,
)
from tests.support.v3_tables import as_v3

A, B = PartitionKey(0, ("a",)), PartitionKey(0, ("b",))
POLICY = {"target_file_size_bytes": 1, "small_file_limit_bytes": 1, "close_file_cost_bytes": 0}
"""Every file is well sized, and one more file costs nothing."""


def opened(lake: SqlCatalog, **policy: object) -> SizedTable:
    """An hour after the newest commit: no partition is being changed by others."""
    environment = Environment(
        now_ms=lambda: lake.load_table("db.t").metadata.last_updated_ms + 3_600_000, sleep=lambda seconds: None
    )
    return icesize.open(None, "db.t", catalog=lake, policy={**POLICY, **policy}, environment=environment)


def seen(lake: SqlCatalog) -> list[int]:
    """The rows that PyIceberg reads of a table whose metadata agree with each other."""
    assert [finding for finding in opened(lake).verify().findings if finding.is_error] == []
    return ids_of(lake)


def files(lake: SqlCatalog) -> list[FileFact]:
    """The data files with deletes, in the order of their numbers."""
    found = (file for facts in layout_of(lake.load_table("db.t")).partitions.values() for file in facts.with_deletes)
    return sorted(found, key=lambda file: file.path)


def deletes(lake: SqlCatalog) -> list[DeleteFile]:
    """All delete files and vectors that may apply to a data file."""
    return list({delete.id: delete for file in files(lake) for delete in file.deletes}.values())


def delete_keys(lake: SqlCatalog, *ids: int) -> None:
    """Commit an equality delete in partition `a` of a table of format v3."""
    file = equality_deletes(lake.load_table("db.t"), ["id"], [(number,) for number in ids], A)
    key = NewDeleteFile(file.file_path, file.file_size_in_bytes, file.record_count, A, equality_ids=(1,))
    add_deletes(lake, [key])


def upserted(lake: SqlCatalog) -> list[int]:
    """Two files of a partition, with seven equality deletes that hit the first, and a position delete of both, in a
    table that was upgraded since; the rows that are left."""
    make_table(lake)
    append(lake, range(100))
    table = append(lake, range(100, 200))
    paths = [file.path for facts in layout_of(table).partitions.values() for file in facts.small]
    delete_positions(table, {path: [50] for path in paths}, A)
    for number in range(7):
        delete_equal(lake.load_table("db.t"), ["id"], [(3 * number,), (1_000 + number,)], A)
    as_v3(lake)
    return [row for row in range(200) if row not in {*range(0, 21, 3), 50, 150}]


def test_all_deletes_become_vectors(lake: SqlCatalog) -> None:
    """One for each data file, all in one Puffin file, of the greatest number; then PyIceberg reads the table, which it
    does not with equality deletes, and nothing is left to do."""
    rows = upserted(lake)
    newest = lake.load_table("db.t").metadata.last_sequence_number
    assert opened(lake).rewrite_deletes(dry_run=True).data_files == 2
    report = opened(lake).rewrite_deletes()
    assert seen(lake) == rows
    vectors = sorted(deletes(lake), key=lambda delete: -delete.rows)
    assert [(each.rows, each.sequence_number, each.file_format) for each in vectors] == [
        (8, newest, "PUFFIN"), (1, newest, "PUFFIN")
    ]  # fmt: skip
    assert len({each.path for each in vectors}) == 1
    assert (report.files_removed, report.files_added, report.rows) == (8, 2, 9)
    assert report.bytes_written == vectors[0].size_bytes == local(vectors[0].path).stat().st_size
    assert report.operations == ("delete",)
    head = lake.load_table("db.t").metadata.current_snapshot()
    assert head is not None
    assert head.summary is not None
    facts = head.summary.additional_properties
    names = ("added-dvs", "added-position-deletes", "removed-position-delete-files", "removed-equality-delete-files",
             "total-delete-files", "total-position-deletes", "total-equality-deletes")  # fmt: skip
    assert [int(facts[name]) for name in names] == [2, 9, 1, 7, 2, 9, 0]
    assert opened(lake).rewrite_deletes().snapshot_ids == ()
    assert opened(lake).maintain().succeeded
    assert seen(lake) == rows


def test_an_older_vector_is_taken_over(lake: SqlCatalog) -> None:
    """Its rows are in the new one, and those of a file that is not due stay where they are, in the same Puffin file."""
    make_table(lake)
    for start, kind in ((0, "a"), (100, "b")):
        append(lake, range(start, start + 100), kind)
    table = as_v3(lake)
    both = [file for facts in layout_of(table).partitions.values() for file in facts.small]
    add_deletes(lake, vectors_in_puffin(table, {file: [7] for file in both}))
    for number in range(7):
        delete_keys(lake, number)
    old = {delete.partition: delete for delete in deletes(lake) if delete.is_vector}
    report = opened(lake).rewrite_deletes()
    assert seen(lake) == [row for row in range(200) if row not in {*range(8), 107}]
    assert (report.files_removed, report.files_added) == (8, 1)
    new = {delete.partition: delete for delete in deletes(lake)}
    assert (new[B], new[A].rows, new[A].path == old[A].path) == (old[B], 8, False)


def test_vectors_go_with_their_files(lake: SqlCatalog) -> None:
    """A merge applies them, and removes them in the same commit; other vectors of the Puffin file stay, and as long as
    there is one, no snapshot lists the file as deleted."""
    make_table(lake)
    for start, kind in ((0, "a"), (10, "a"), (20, "b")):
        append(lake, range(start, start + 10), kind)
    table = as_v3(lake)
    every = [file for facts in layout_of(table).partitions.values() for file in facts.small]
    add_deletes(lake, vectors_in_puffin(table, {file: [3, 4] for file in every}))
    table = lake.load_table("db.t")
    report = icesize.open(None, "db.t", catalog=lake, policy={"max_small_files": 1}).compact("kind = 'a'")
    assert (report.files_removed, report.rows_deleted) == (2, 4)
    rows = [row for row in range(30) if row % 10 not in (3, 4)]
    assert seen(lake) == rows
    [left] = deletes(lake)
    assert [left.referenced_path] == [file.path for file in every if file.partition == B]
    head = lake.load_table("db.t").metadata.current_snapshot()
    assert head is not None
    listed = [
        entry
        for manifest in head.manifests(table.io)
        if manifest.content == ManifestContent.DELETES
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
    ]
    assert [(entry.status.name, entry.data_file.file_path) for entry in listed] == [("EXISTING", left.path)]


def test_position_deletes_without_force_go_with_the_files_that_are_as_old(lake: SqlCatalog) -> None:
    """Nobody reads the position deletes beside vectors, so that their number alone shows that a merge took the last of
    their files."""
    make_table(lake)
    for start in (0, 10):
        append(lake, range(start, start + 10), "a")
    older = small_files(lake.load_table("db.t"), "a")
    delete_positions(lake.load_table("db.t"), {file.path: [3] for file in older})
    table = as_v3(lake)
    append(lake, range(20, 30), "a")
    add_deletes(lake, vectors_in_puffin(table, {file: [3, 4] for file in older}))
    assert len(live_deletes(lake.load_table("db.t"))) == 3
    report = icesize.open(None, "db.t", catalog=lake, policy={"max_small_files": 1}).compact()
    assert (report.files_removed, report.rows_deleted) == (3, 4)
    assert seen(lake) == [row for row in range(30) if row not in (3, 4, 13, 14)]
    assert live_deletes(lake.load_table("db.t")) == []


def once(action: Callable[[], object]) -> Callable[[], None]:
    """Something to be done the first time only."""
    waiting = [action]

    def act() -> None:
        while waiting:
            waiting.pop()()

    return act


@pytest.mark.parametrize("kind", ["vector", "equality", "upgrade"])
def test_what_others_do_meanwhile(lake: SqlCatalog, kind: str) -> None:
    """Vectors of others would be the second ones: the partition stays as it is, and is rewritten with them next time.
    Keys stay beside the vectors. Position delete files that were written for format v2 are not added to a v3 table."""
    if kind == "upgrade":
        make_table(lake)
        append(lake, range(100))
        for number in range(7):
            delete_equal(lake.load_table("db.t"), ["id"], [(number,)], A)
        rows = [*range(7, 100)]
    else:
        rows = upserted(lake)
    table = lake.load_table("db.t")
    first = files(lake)[0]

    def act() -> None:
        if kind == "vector":
            # with the rows that position deletes have already, as the specification demands of it
            add_deletes(lake, vectors_in_puffin(table, {first: [50, 51]}))
        elif kind == "equality":
            delete_keys(lake, 99)
        else:
            as_v3(lake)

    with armed("before-swap", once(act)):
        report = opened(lake).rewrite_deletes()
    if kind == "equality":
        assert [delete.is_vector for delete in deletes(lake)] == [True, True, False]
        return
    why = {"vector": "another writer deleted rows of it", "upgrade": "the table was upgraded to a format version that "
           "has deletion vectors instead"}[kind]  # fmt: skip
    assert (report.snapshot_ids, report.conflicts[0].endswith(why)) == ((), True)
    assert opened(lake).rewrite_deletes().snapshot_ids
    assert len({*rows} - {*seen(lake)}) == (kind == "vector")


@pytest.mark.parametrize("planned", ["before", "after"])
def test_merges_that_were_under_way(lake: SqlCatalog, planned: str) -> None:
    """One that has applied the deletes lands, and takes the vectors that were written for them with it; one that began
    before the newest of them is dropped."""
    rows = upserted(lake)
    opened(lake, max_delete_files=100).compact()  # gives the rows ids
    table = lake.load_table("db.t")
    wanted = request_on(table, groups=[merged(table, small_files(table, "a"), keeps_map=True)])
    if planned == "before":
        delete_keys(lake, 1)
    before = lake.load_table("db.t")
    assert opened(lake).rewrite_deletes().snapshot_ids
    outcome = run(lake, wanted, before)
    assert len(outcome.conflicts) == (planned == "before")
    assert seen(lake) == [row for row in rows if row != 1 or planned == "after"]
    assert len(deletes(lake)) == (2 if planned == "before" else 0)


def test_a_version_comes_back_with_its_own_vector(lake: SqlCatalog) -> None:
    """The rows of its vector stay deleted, those of the next vector return."""
    make_table(lake)
    append(lake, range(30))
    table = as_v3(lake)
    [file] = (file for facts in layout_of(table).partitions.values() for file in facts.small)
    [vector] = vectors_in_puffin(table, {file: [3]})
    version = add_deletes(lake, [vector]).current_snapshot()
    assert version is not None
    for number in range(7):
        delete_keys(lake, number)
    opened(lake).rewrite_deletes()
    assert seen(lake) == [*range(7, 30)]
    opened(lake).restore({"kind": "a"}, version.snapshot_id)
    assert seen(lake) == [row for row in range(30) if row != 3]
    assert deletes(lake) == []


def test_a_vector_that_is_left_out_makes_no_version(lake: SqlCatalog) -> None:
    """No manifest shows that it went, because others of its Puffin file are live; its successor is a version."""
    make_table(lake)
    table = as_v3(lake)
    for start in (0, 10):
        table = append(lake, range(start, start + 10))
    first, second = small_files(table)
    then = head_id(add_deletes(lake, vectors_in_puffin(table, {first: [0], second: [5]})))
    for number in (20, 21):
        table = append(lake, [number], "b")
    [old] = (delete for delete in deletes(lake) if delete.referenced_path == first.path)
    [new] = vectors_in_puffin(table, {first: [0, 1]})
    now = head_id(
        commit_built(
            lake,
            lambda builder: builder.exchange(
                Operation.DELETE, builder.split([old.id], ManifestContent.DELETES), [new], {}
            ),
        )
    )
    held = SetSnapshotRefUpdate(ref_name=f"icesize-version-{then}", type=SnapshotRefType.TAG, snapshot_id=then)
    unneeded = [each.snapshot_id for each in table.metadata.snapshots[:-1] if each.snapshot_id != then]
    expired = RemoveSnapshotsUpdate(snapshot_ids=unneeded)
    lossless(lake).commit_table(lake.load_table("db.t"), (), (held, expired))
    assert [version.snapshot_id for version in opened(lake).versions({"kind": "a"})] == [now, then]
