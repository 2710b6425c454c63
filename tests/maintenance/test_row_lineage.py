"""Row lineage of tables of format v3: compaction, clustering and restore leave each row its row id and last change."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import SetSnapshotRefUpdate

import icesize
from icesize.environment import Environment
from icesize.errors import CommitConflict, TableError
from icesize.parquet.files.data_file import NewDataFile
from icesize.parquet.files.settings import NAME_MAPPING
from icesize.planning.files import MAIN, FileFact
from icesize.sized_table import SizedTable
from icesize.table.commit.documents import lossless
from icesize.table.manifests import store
from icesize.table.manifests.file_columns import ManifestFacts
from tests.support.delete_files import delete_positions
from tests.support.puffin import add_deletes, vectors_in_puffin
from tests.support.restored import A, assert_unchanged, before_swap, restored
from tests.support.row_lineage import LAST_UPDATED, ROW_ID, Lineage, lineage_of
from tests.support.tables import append, commit_built, compact, ids_of, layout_of, local, make_table, small_files
from tests.support.v3_tables import as_v3

OLDER = "that version is older than the upgrade to format v3: its rows get new row ids"


def opened(lake: SqlCatalog, **policy: int) -> SizedTable:
    """An hour after the newest commit: no partition is being changed by others."""
    environment = Environment(
        now_ms=lambda: lake.load_table("db.t").metadata.last_updated_ms + 3_600_000, sleep=lambda seconds: None
    )
    return icesize.open(None, "db.t", catalog=lake, policy={"max_small_files": 1, **policy}, environment=environment)


def files(lake: SqlCatalog) -> list[FileFact]:
    return [file for facts in layout_of(lake.load_table("db.t")).partitions.values() for file in facts.small]


def lineage(lake: SqlCatalog, deleted: tuple[int, ...] = ()) -> Lineage:
    """That of all rows but those that are deleted, by id; the metadata of the table agree with each other."""
    assert [finding for finding in opened(lake).verify().findings if finding.is_error] == []
    found = {key: value for file in files(lake) for key, value in lineage_of(file).items()}
    return {key: value for key, value in found.items() if key not in deleted}


def of_v3(lake: SqlCatalog) -> Table:
    make_table(lake)
    as_v3(lake)
    for start in (0, 10, 20):
        append(lake, range(start, start + 10))
    return append(lake, range(30, 40), "b")


def head_of(table: Table) -> int:
    assert table.metadata.current_snapshot_id is not None
    return table.metadata.current_snapshot_id


def test_compaction(lake: SqlCatalog) -> None:
    """Rows keep both values through several rewrites, and new rows in between get new ones."""
    of_v3(lake)
    expected = lineage(lake)
    assert {row_id for row_id, _ in expected.values()} == set(range(40))
    assert opened(lake).compact("kind = 'a'").files_removed == 3
    assert lineage(lake) == expected
    append(lake, range(40, 50))
    new = {key: value for key, value in lineage(lake).items() if key >= 40}
    assert {row_id for row_id, _ in new.values()}.isdisjoint(row_id for row_id, _ in expected.values())
    assert opened(lake).compact("kind = 'a'").files_removed == 2
    assert lineage(lake) == {**expected, **new}


def test_clustering(lake: SqlCatalog) -> None:
    """Rows of several files in another order keep both values."""
    make_table(lake)
    as_v3(lake)
    ids = random.Random(1).sample(range(6_000), 6_000)
    for start in range(0, 6_000, 1_000):
        append(lake, ids[start : start + 1_000])
    expected = lineage(lake)
    report = opened(lake, target_file_size_bytes=20_000, small_file_limit_bytes=8_000).cluster(by=["id"])
    assert (report.files_removed, report.files_added > 1) == (6, True)
    assert lineage(lake) == expected


def test_clustering_after_an_upgrade(lake: SqlCatalog) -> None:
    """Files have the row ids of the newest commit, also if they were looked at before it: before the rows had ids, and
    when they had others, before a rollback to the time without."""
    make_table(lake)
    ids = random.Random(1).sample(range(6_000), 6_000)
    for start in range(0, 6_000, 1_000):
        before = append(lake, ids[start : start + 1_000])
    as_v3(lake)
    policy = {"target_file_size_bytes": 20_000, "small_file_limit_bytes": 8_000}
    assert opened(lake, **policy).cluster(by=["id"]).files_removed == 6
    back = SetSnapshotRefUpdate(ref_name=MAIN, type=SnapshotRefType.BRANCH, snapshot_id=head_of(before))
    lossless(lake).commit_table(lake.load_table("db.t"), (), (back,))
    append(lake, [6_000], "b")
    expected = lineage(lake)
    assert min(row_id for row_id, _ in expected.values() if row_id is not None) >= 12_000
    assert opened(lake, **policy).cluster().files_removed == 6
    assert lineage(lake) == expected


def test_a_restore_keeps_the_row_ids_of_its_version(lake: SqlCatalog) -> None:
    """Files of the version come back with both columns, whatever their rows had inherited or stored there."""
    first = of_v3(lake)
    expected = lineage(lake)
    opened(lake).compact("kind = 'a'")
    second = append(lake, range(40, 50))
    assert restored(lake, head_of(first)).notes[1:] == ()
    assert lineage(lake) == expected
    now = lake.load_table("db.t")
    assert [pq.read_schema(local(f.path)).names[-2:] for f in small_files(now, "a")] == [[ROW_ID, LAST_UPDATED]] * 3
    restored(lake, head_of(second))
    assert {key for key in lineage(lake) if key >= 40} == set(range(40, 50))
    assert {key: value for key, value in lineage(lake).items() if key < 40} == expected


def test_a_restore_of_a_version_with_vectors(lake: SqlCatalog) -> None:
    """The rows that the vector of a file leaves have the row ids that their positions in the old file gave them."""
    table = of_v3(lake)
    file = next(f for f in small_files(table, "a") if f.first_row_id == 0)
    then = add_deletes(lake, vectors_in_puffin(table, {file: [0, 5]}))
    expected = lineage(lake, (0, 5))
    opened(lake).compact("kind = 'a'")
    assert lineage(lake) == expected
    append(lake, range(40, 50))
    report = restored(lake, head_of(then))
    assert lineage(lake) == expected
    assert [note for note in report.notes if "had deletes" in note] == [
        "1 file of that version had deletes: it was written again without the deleted rows"
    ]


def test_a_restore_takes_the_vectors_of_files_that_go(lake: SqlCatalog) -> None:
    """Also where no file comes back: the removal of a data file removes its vector."""
    make_table(lake)
    as_v3(lake)
    first = append(lake, range(10))
    [kept] = files(lake)
    table = append(lake, range(10, 20))
    [later] = (file for file in files(lake) if file.path != kept.path)
    add_deletes(lake, vectors_in_puffin(table, {later: [0, 5]}))
    restored(lake, head_of(first))
    assert opened(lake).verify().findings == ()
    assert ids_of(lake) == list(range(10))


def test_rows_get_their_ids_while_a_restore_runs(lake: SqlCatalog) -> None:
    """It is refused, because it has written them again without: the table was upgraded after its plan."""
    make_table(lake)
    [file] = small_files(append(lake, range(10)), "a")
    then = head_of(delete_positions(lake.load_table("db.t"), {file.path: [3]}, A))
    delete_positions(lake.load_table("db.t"), {file.path: [4]}, A)

    def upgraded() -> None:
        as_v3(lake)
        append(lake, [10], "b")

    with before_swap(2, upgraded), pytest.raises(CommitConflict, match="changed the partition during the restore"):
        restored(lake, then)
    ids = {row_id for row_id, _ in lineage(lake).values()}
    restored(lake, then)
    assert {row_id for row_id, _ in lineage(lake).values()} < ids


def test_imported_files_have_no_lineage_of_their_own(lake: SqlCatalog) -> None:
    """Columns of its names without field ids are those of another table: readers do not map them, merges neither."""
    with make_table(lake).transaction() as change:
        change.set_properties({NAME_MAPPING: lake.load_table("db.t").schema().name_mapping.model_dump_json()})
    as_v3(lake)
    append(lake, range(10))
    table = append(lake, range(10, 20))
    file = max(files(lake), key=lambda file: file.first_row_id or 0)
    rows = pq.ParquetFile(local(file.path)).read()
    sevens = pa.array([7] * 10)
    foreign = pa.table([*rows.columns, sevens, sevens], [*rows.column_names, ROW_ID, LAST_UPDATED])
    path = f"{table.location()}/data/imported.parquet"
    pq.write_table(foreign, local(path))
    imported = NewDataFile(path, local(path).stat().st_size, 10, file.partition)
    commit_built(
        lake, lambda builder: builder.exchange(Operation.OVERWRITE, builder.split([file.path]), [imported], {})
    )
    [now] = (file for file in files(lake) if file.path == path)
    assert opened(lake).compact("kind = 'a'").files_removed == 2
    inherited = {10 + at: ((now.first_row_id or 0) + at, now.sequence_number) for at in range(10)}
    assert {key: value for key, value in lineage(lake).items() if key >= 10} == inherited


def test_a_version_before_the_upgrade_gets_new_row_ids(lake: SqlCatalog) -> None:
    """Its files are copied byte for byte, the report says it, and no other row of the table has these ids."""
    make_table(lake)
    append(lake, range(10))
    then = append(lake, range(10, 20))
    as_v3(lake)
    append(lake, range(20, 30), "b")
    opened(lake).compact("kind = 'a'")
    before = lineage(lake)
    report = restored(lake, head_of(then))
    assert OLDER in report.notes
    after = lineage(lake)
    assert {key: value for key, value in after.items() if key >= 20} == {k: v for k, v in before.items() if k >= 20}
    assert len({row_id for row_id, _ in after.values()} - {None}) == 30
    assert {row_id for row_id, _ in before.values()}.isdisjoint(after[key][0] for key in range(20))


def test_a_file_that_is_still_there_keeps_the_ids_it_got_since(lake: SqlCatalog) -> None:
    """A file of a version before the upgrade, of which rows were deleted since, returns with its present row ids."""
    make_table(lake)
    then = append(lake, range(10))
    as_v3(lake)
    append(lake, range(10, 20), "b")
    expected = lineage(lake)
    file = small_files(lake.load_table("db.t"), "a")[0]
    assert file.first_row_id is not None
    add_deletes(lake, vectors_in_puffin(lake.load_table("db.t"), {file: [1, 2, 3]}))
    report = restored(lake, head_of(then))
    assert OLDER not in report.notes
    assert ids_of(lake) == [*range(20)]
    assert lineage(lake) == expected


@pytest.mark.parametrize(("obstacle", "why"), [(1, "are not Parquet"), (2, "are encrypted")])
def test_files_that_cannot_get_the_columns_are_refused(
    lake: SqlCatalog, monkeypatch: pytest.MonkeyPatch, obstacle: int, why: str
) -> None:
    """A byte copy of such a file would give other row ids to its rows."""
    then = of_v3(lake)
    before, read = compact(lake), store.read_facts

    def damaged(io: FileIO, manifest: ManifestFile) -> ManifestFacts:
        columns = read(io, manifest).columns
        obstacles = np.full_like(columns.status, obstacle)
        is_data = manifest.content == ManifestContent.DATA
        return ManifestFacts(manifest, replace(columns, obstacles=obstacles) if is_data else columns)

    monkeypatch.setattr(store, "read_facts", damaged)
    with pytest.raises(TableError, match=f"rows have row ids in 3 files of that version, and the files {why}, so cop"):
        restored(lake, head_of(then))
    assert_unchanged(lake, before)
