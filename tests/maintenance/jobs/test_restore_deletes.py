"""Restoring a partition whose files have delete files: deleted rows stay deleted, and no newer delete applies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table import Table

from icesize.errors import RewriteFailed, TableError
from icesize.maintenance.jobs.restore import restore
from icesize.planning.files import FileFact
from icesize.table.commit.snapshot_builder import SnapshotBuilder
from icesize.table.manifests import store
from icesize.table.manifests.file_columns import EntryColumns, ManifestFacts
from icesize.table.state.handle import TableHandle
from icesize.table.state.live_files import files_at as files_of_version
from tests.support.delete_files import delete_positions, live_deletes
from tests.support.examples import examples
from tests.support.jobs import context_of
from tests.support.machine import Reader
from tests.support.restored import (
    A,
    assert_unchanged,
    contents,
    data_files_needed,
    files_at,
    numbered_files,
    restored,
    with_history,
)
from tests.support.row_deletes import delete_ids, delete_rows
from tests.support.tables import (
    append,
    check,
    compact,
    data_files_on_disk,
    ids_of,
    landed,
    live_paths,
    local,
    make_table,
    make_visible,
    overwritten,
    removed_and_live,
    small_files,
    sqlite_catalog,
    write,
)


def test_newer_deletes_do_not_reach_what_comes_back(catalog: Catalog) -> None:
    """Neither an equality delete on the whole partition nor one by positions: the copies are newer than both."""
    _, snapshot_id = with_history(catalog)
    before = catalog.load_table("db.t")
    then = files_at(catalog, snapshot_id) - {numbered_files(before, "b")[0][0]}
    input_file = small_files(before, "a")[0]
    delete_rows(catalog, input_file)
    delete_ids(catalog, input_file, [1])
    restored(catalog, snapshot_id)
    table = catalog.load_table("db.t")
    check(table)
    # PyIceberg refuses to read tables with equality deletes; whether these reach a file is a matter of numbers alone
    assert {number for _, number in numbered_files(table, "a")} == {table.metadata.last_sequence_number}
    assert contents({path for path, _ in numbered_files(table, "a")}) == contents(then)


def test_a_file_with_newer_deletes_is_copied(lake: SqlCatalog) -> None:
    """It is still there, but a row of it was deleted since: the copy has the row, the deletes do not reach it."""
    make_table(lake)
    table = append(lake, [1, 2])
    snapshot_id = table.metadata.current_snapshot_id
    assert snapshot_id is not None
    delete_rows(lake, small_files(table)[0])
    assert ids_of(lake) == [2]
    report = restored(lake, snapshot_id)
    assert ids_of(lake) == [1, 2]
    assert not removed_and_live(lake.load_table("db.t"))
    assert (report.files_added, report.files_removed) == (1, 1)


def test_deletes_that_went_apply_again(lake: SqlCatalog) -> None:
    """The version had a row deleted; its delete file went with a rival's snapshot: the file is written without it."""
    make_table(lake)
    table = append(lake, [1, 2])
    clean = table.metadata.current_snapshot()
    assert clean is not None
    deleted = delete_rows(lake, small_files(table)[0]).metadata.current_snapshot_id
    assert deleted is not None
    lake.load_table("db.t").manage_snapshots().rollback_to_snapshot(clean.snapshot_id).commit()
    append(lake, [3])
    report = restored(lake, deleted)
    landed(lake, [2])
    assert (report.files_added, report.files_removed, report.rows_before, report.rows_after) == (1, 2, 3, 1)


def replaced(catalog: Catalog, gone: Sequence[FileFact], ids: Sequence[int] = ()) -> Table:
    """Another engine puts these rows in the place of files; what was deleted goes with them."""
    table = catalog.load_table("db.t")
    with SnapshotBuilder(table, table.metadata.last_updated_ms) as builder:
        snapshot = overwritten(builder, [file.path for file in gone], [write(table, ids)] if ids else [])
    make_visible(catalog, table, [snapshot])
    return catalog.load_table("db.t")


def rows_at(catalog: Catalog, snapshot_id: int | None = None) -> list[int]:
    """What a reader of a snapshot sees, or of the newest, deletes of both kinds applied."""
    table = catalog.load_table("db.t")
    snapshot = table.metadata.snapshot_by_id(snapshot_id) if snapshot_id else table.metadata.current_snapshot()
    assert snapshot is not None
    return sorted(row[0] for (_, row), times in Reader().rows(snapshot, table.io).items() for _ in range(times))


def test_files_with_deletes_come_back_without_the_deleted_rows(catalog: Catalog) -> None:
    """By position and by equality, each by the number of its file; clean ones are copied, one without rows stays away;
    none of the deletes reaches what came back."""
    make_table(catalog)
    append(catalog, [1, 2, 3])
    append(catalog, [4])
    table = append(catalog, [5, 6])
    first, second, third = small_files(table)
    delete_positions(table, {first.path: [0], third.path: [1]})
    delete_ids(catalog, first, [2, 4])
    append(catalog, [2])
    append(catalog, [8], "b")
    then = catalog.load_table("db.t").metadata.current_snapshot_id
    assert then is not None
    assert rows_at(catalog) == [2, 3, 5, 8]
    clean = numbered_files(catalog.load_table("db.t"), "a")[-1][0]
    replaced(catalog, small_files(catalog.load_table("db.t"), "a"), [70])
    context = context_of(TableHandle(catalog, ("db", "t")))
    forecast = restore(context, context.load(), A, then, dry_run=True)
    assert (forecast.files_added, forecast.files_removed, forecast.rows_before) == (4, 1, 1)
    report = restored(catalog, then)
    after = catalog.load_table("db.t")
    check(after)
    assert rows_at(catalog) == [2, 3, 5, 8]
    assert rows_at(catalog, then) == [2, 3, 5, 8]
    assert (report.files_added, report.files_removed, report.rows_before, report.rows_after) == (3, 1, 1, 3)
    assert {number for _, number in numbered_files(after, "a")} == {after.metadata.last_sequence_number}
    assert contents({clean}) < contents({path for path, _ in numbered_files(after, "a")})
    assert second.path not in live_paths(after)
    assert report.bytes_written == sum(local(path).stat().st_size for path, _ in numbered_files(after, "a"))
    assert report.notes[1:] == (
        "3 files of that version had deletes: they were written again without the deleted rows",
    )
    assert data_files_on_disk(after) == data_files_needed(after)


def test_a_version_whose_rows_were_all_deleted_is_empty_again(lake: SqlCatalog) -> None:
    """Nothing comes back, what came since goes."""
    make_table(lake)
    file = small_files(append(lake, [1]))[0]
    then = delete_rows(lake, file).metadata.current_snapshot_id
    assert then is not None
    replaced(lake, [file], [2])
    report = restored(lake, then)
    landed(lake, [])
    assert (report.files_added, report.files_removed, report.rows_after) == (0, 1, 0)


def test_a_file_that_stays_with_other_deletes_is_written_again(lake: SqlCatalog) -> None:
    """One row was deleted then, another since: the version's deletes alone apply, and a file without new ones stays."""
    make_table(lake)
    append(lake, [1, 2])
    table = append(lake, [3, 4])
    first, second = small_files(table)
    delete_rows(lake, second)
    then = delete_rows(lake, first).metadata.current_snapshot_id
    assert then is not None
    delete_rows(lake, first, [1])
    assert ids_of(lake) == [4]
    report = restored(lake, then)
    table = landed(lake, [2, 4])
    assert (report.files_added, report.files_removed) == (1, 1)
    assert second.path in live_paths(table)


@given(data=st.data())
@examples(25)
def test_any_version_comes_back_with_its_rows(data: st.DataObject) -> None:
    """After any history of appends, deletes of both kinds, merges and overwrites: the rows of the version in its
    partition, those of now in the other."""
    with TemporaryDirectory() as folder:
        lake = sqlite_catalog(Path(folder))
        make_table(lake)
        append(lake, range(3))
        append(lake, [50], "b")
        known = []
        for number in range(data.draw(st.integers(1, 8))):
            change_rows(lake, data, 3 * number + 3)
            known.append((lake.load_table("db.t").metadata.current_snapshot_id, rows_at(lake)))
        snapshot_id, rows = data.draw(st.sampled_from(known))
        assert snapshot_id is not None
        if not small_at(lake, snapshot_id):
            return
        restored(lake, snapshot_id)
        assert rows_at(lake) == rows
        check(lake.load_table("db.t"))
        lake.close()


def small_at(catalog: Catalog, snapshot_id: int) -> list[Any]:
    """Data files of partition a at a snapshot."""
    table = catalog.load_table("db.t")
    snapshot = table.metadata.snapshot_by_id(snapshot_id)
    assert snapshot is not None
    return files_of_version(table.metadata, table.io, snapshot, A)


def change_rows(catalog: Catalog, data: st.DataObject, next_id: int) -> None:
    """Something happens to partition a."""
    live = small_files(catalog.load_table("db.t"), "a")
    verb = data.draw(st.sampled_from(["append", "positions", "equality", "merge", "overwrite"]))
    if verb == "append" or not live:
        append(catalog, range(next_id, next_id + 3))
    elif verb == "positions":
        chosen = data.draw(st.lists(st.sampled_from(live), min_size=1, max_size=2, unique_by=lambda f: f.path))
        positions = {f.path: [data.draw(st.integers(0, f.rows - 1))] for f in chosen}
        delete_positions(catalog.load_table("db.t"), positions)
    elif verb == "equality":
        delete_ids(catalog, live[0], data.draw(st.lists(st.integers(0, next_id), min_size=1, max_size=3)))
    elif verb == "merge":
        compact(catalog, "a")
    else:
        replaced(catalog, live[:1], [next_id])


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda columns: {"obstacles": np.full_like(columns.status, 2)}, "the files are encrypted"),
        (lambda columns: {"obstacles": np.ones_like(columns.status)}, "the files are not Parquet"),
    ],
)
def test_deletes_that_cannot_be_applied_are_refused(
    lake: SqlCatalog, monkeypatch: pytest.MonkeyPatch, damage: Callable[[EntryColumns], dict[str, Any]], why: str
) -> None:
    """A byte copy of such a file would bring its deleted rows back."""
    make_table(lake)
    file = small_files(append(lake, [1, 2]))[0]
    then = delete_rows(lake, file).metadata.current_snapshot_id
    assert then is not None
    before = replaced(lake, [file], [3])
    read = store.read_facts

    def damaged(io: FileIO, manifest: ManifestFile) -> ManifestFacts:
        columns = read(io, manifest).columns
        is_data = manifest.content == ManifestContent.DATA
        return ManifestFacts(manifest, replace(columns, **damage(columns)) if is_data else columns)

    monkeypatch.setattr(store, "read_facts", damaged)
    with pytest.raises(TableError, match=f"deletes were pending on 1 file of that version, and {why}, so deleted rows"):
        restored(lake, then)
    assert_unchanged(lake, before)


def test_a_delete_file_that_is_gone_is_refused(lake: SqlCatalog) -> None:
    """Before anything is written, named as a data file is."""
    make_table(lake)
    file = small_files(append(lake, [1, 2]))[0]
    table = delete_rows(lake, file)
    then = table.metadata.current_snapshot_id
    assert then is not None
    gone = live_deletes(table)[0].data_file.file_path
    before = replaced(lake, [file], [3])
    before.io.delete(gone)
    with pytest.raises(TableError, match=f"{gone} is gone"):
        restored(lake, then)
    assert lake.load_table("db.t").metadata.refs == before.metadata.refs
    assert ids_of(lake) == [3]


def test_a_delete_file_that_is_damaged_leaves_nothing_behind(lake: SqlCatalog) -> None:
    """The tag goes, and so do the files that were written before it was read."""
    make_table(lake)
    file = small_files(append(lake, [1, 2]))[0]
    table = delete_rows(lake, file)
    append(lake, [4])
    then = lake.load_table("db.t").metadata.current_snapshot_id
    assert then is not None
    entry = live_deletes(table)[0].data_file
    before = replaced(lake, small_files(lake.load_table("db.t")), [3])
    local(entry.file_path).write_bytes(b"x" * entry.file_size_in_bytes)
    with pytest.raises(RewriteFailed, match=f"Cannot apply the deletes in {entry.file_path}"):
        restored(lake, then)
    assert_unchanged(lake, before)


def test_deletes_of_other_partitions_do_not_matter(lake: SqlCatalog) -> None:
    """They cannot apply here."""
    before, snapshot_id = with_history(lake)
    delete_rows(lake, small_files(before, "b")[0])
    restored(lake, snapshot_id)
    assert ids_of(lake) == [1, 2, 6]


def test_deletes_that_the_version_had_apply_again(lake: SqlCatalog) -> None:
    """Deleted then and deleted now: the file has been there all the time, and so has its delete file."""
    make_table(lake)
    table = append(lake, [1, 2])
    snapshot_id = delete_rows(lake, small_files(table)[0]).metadata.current_snapshot_id
    assert snapshot_id is not None
    append(lake, [3])
    restored(lake, snapshot_id)
    assert ids_of(lake) == [2]
