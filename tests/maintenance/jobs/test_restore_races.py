"""Restoring a partition while other writers commit, catalogs fail, or the process is interrupted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.table.update import RemoveSnapshotRefUpdate, RemoveSnapshotsUpdate, TableUpdate

from icesize.errors import CommitConflict, CommitStateUnknown, TableError
from icesize.maintenance.jobs.restore import TAG_PREFIX, restore
from icesize.table.records.summary import RESTORED_ID, RUN_ID
from icesize.table.state.handle import TableHandle
from tests.support.jobs import context_of
from tests.support.rest_faults import Fault
from tests.support.rest_server import MiniRest
from tests.support.restored import (
    A,
    assert_unchanged,
    before_swap,
    data_files_needed,
    files_at,
    numbered_files,
    restored,
    with_history,
)
from tests.support.row_deletes import delete_rows
from tests.support.tables import (
    append,
    check,
    compact,
    data_files_on_disk,
    landed,
    live_paths,
    make_table,
    metadata_files_on_disk,
    operations,
    referenced_metadata,
    small_files,
    sqlite_catalog,
)


@pytest.fixture
def rival(catalog: Catalog, tmp_path: Path) -> Iterator[Catalog]:
    """A second handle on the same tables."""
    if isinstance(catalog, SqlCatalog):
        other = sqlite_catalog(tmp_path)
        yield other
        other.close()
    else:
        yield catalog


def test_an_append_elsewhere_costs_one_more_attempt(catalog: Catalog, rival: Catalog) -> None:
    """Another partition changes just before the swap: both land, and no manifest is left over."""
    _, snapshot_id = with_history(catalog)
    with before_swap(2, lambda: append(rival, [7], "b")):
        restored(catalog, snapshot_id)
    table = landed(catalog, [1, 2, 5, 6, 7])
    assert operations(table)[-2:] == ["append", "overwrite"]
    assert set(table.metadata.refs) == {"main"}
    assert metadata_files_on_disk(table) == referenced_metadata(table)


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("change", ["append", "compact"])
def test_a_partition_that_changes_meanwhile_is_left_alone(
    catalog: Catalog, rival: Catalog, change: str, number: int
) -> None:
    """Whoever asked did not see the new rows: they stay, whenever they came, and the tag goes."""
    before, snapshot_id = with_history(catalog)

    def act() -> None:
        if change == "append":
            append(rival, [7])
        else:
            compact(rival, "a")

    with (
        before_swap(number, act),
        pytest.raises(CommitConflict, match="another writer changed the partition during the restore"),
    ):
        restored(catalog, snapshot_id)
    table = landed(catalog, [1, 2, 3, 5, 6, 7] if change == "append" else [1, 2, 3, 5, 6])
    assert set(table.metadata.refs) == {"main"}
    assert len(table.metadata.snapshots) == len(before.metadata.snapshots) + 1
    assert metadata_files_on_disk(table) == referenced_metadata(table)


def rival_expiry(catalog: Catalog, snapshot_id: int) -> None:
    """Somebody removes our tag and the snapshot, whatever the tag's age."""
    table = catalog.load_table("db.t")
    tags = [name for name in table.metadata.refs if name.startswith(TAG_PREFIX)]
    updates: list[TableUpdate] = [RemoveSnapshotRefUpdate(ref_name=name) for name in tags]
    updates.append(RemoveSnapshotsUpdate(snapshot_ids=[snapshot_id]))
    catalog.commit_table(table, (), tuple(updates))


def test_a_snapshot_that_expires_meanwhile_is_refused(catalog: Catalog, rival: Catalog) -> None:
    """In spite of the tag, which goes with it: nothing has changed, nothing is left."""
    before, snapshot_id = with_history(catalog)
    with (
        before_swap(2, lambda: rival_expiry(rival, snapshot_id)),
        pytest.raises(TableError, match=f"Cannot find snapshot {snapshot_id}"),
    ):
        restored(catalog, snapshot_id)
    table = landed(catalog, [1, 2, 3, 5, 6])
    assert table.metadata.refs == before.metadata.refs


def test_a_snapshot_that_expires_before_it_is_tagged_is_refused(lake: SqlCatalog, tmp_path: Path) -> None:
    """PyIceberg's catalog says so in a plain ValueError, which is a lost race."""
    before, snapshot_id = with_history(lake)
    rival = sqlite_catalog(tmp_path)
    with (
        before_swap(1, lambda: rival_expiry(rival, snapshot_id)),
        pytest.raises(TableError, match=f"Cannot find snapshot {snapshot_id}"),
    ):
        restored(lake, snapshot_id)
    rival.close()
    table = landed(lake, [1, 2, 3, 5, 6])
    assert table.metadata.refs == before.metadata.refs


def test_a_tag_that_somebody_removed_is_noticed(catalog: Catalog, rival: Catalog) -> None:
    """The snapshot is still there, but nothing holds it any more."""
    before, snapshot_id = with_history(catalog)

    def untag() -> None:
        table = rival.load_table("db.t")
        (name,) = [n for n in table.metadata.refs if n.startswith(TAG_PREFIX)]
        rival.commit_table(table, (), (RemoveSnapshotRefUpdate(ref_name=name),))

    with before_swap(2, untag), pytest.raises(TableError, match=f"another writer removed tag '{TAG_PREFIX}"):
        restored(catalog, snapshot_id)
    assert_unchanged(catalog, before)


def test_a_file_that_goes_meanwhile_is_named_and_the_tag_goes(catalog: Catalog) -> None:
    """Deleted after the first check, before the second: refused, and nothing is left."""
    before, snapshot_id = with_history(catalog)
    gone, *_ = sorted(files_at(catalog, snapshot_id) - {numbered_files(before, "b")[0][0]})
    with before_swap(1, lambda: before.io.delete(gone)), pytest.raises(TableError, match=f"{gone} is gone"):
        restored(catalog, snapshot_id)
    assert_unchanged(catalog, before)


def test_a_location_provider_that_fails_leaves_no_tag(lake: SqlCatalog) -> None:
    """New files cannot be named: refused before the snapshot is tagged."""
    before, snapshot_id = with_history(lake)
    handle = TableHandle(lake, ("db", "t"))
    current = handle.load()
    table, properties = current.table, {"write.py-location-provider.impl": "no.such.Provider"}
    odd = table.metadata.model_copy(update={"properties": properties})
    current = replace(current, table=Table(table.name(), odd, table.metadata_location, table.io, table.catalog))
    with pytest.raises(TableError, match=r"Cannot name new files of 'lake\.db\.t': .* check its location provider"):
        restore(context_of(handle), current, A, snapshot_id)
    assert_unchanged(lake, before)


def test_deletes_that_land_meanwhile_are_noticed(catalog: Catalog, rival: Catalog) -> None:
    """A delete in the partition comes between check and swap: the restore is refused on the new head."""
    before, snapshot_id = with_history(catalog)
    input_file = small_files(before, "a")[0]
    with (
        before_swap(2, lambda: delete_rows(rival, input_file)),
        pytest.raises(CommitConflict, match="another writer changed the partition during the restore"),
    ):
        restored(catalog, snapshot_id)
    table = catalog.load_table("db.t")
    assert set(table.metadata.refs) == {"main"}
    assert operations(table)[-1] == "delete"


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", [500, 503, "reset", "truncated"])
def test_a_lost_answer_lands_it_once(mini: MiniRest, kind: int | str, when: Any, number: int) -> None:
    """Of the tag or of the overwrite, landed or not: one overwrite in the end, no tag, the report as ever."""
    catalog = mini.catalog("lake")
    _, snapshot_id = with_history(catalog)
    with before_swap(number, lambda: mini.fail_next_commit(Fault(kind, when))):
        report = restored(catalog, snapshot_id)
    table = landed(catalog, [1, 2, 5, 6])
    assert operations(table).count("overwrite") == 1
    assert report.snapshot_ids == (table.metadata.current_snapshot_id,)
    assert (report.files_added, report.files_removed) == (2, 2)
    assert set(table.metadata.refs) == {"main"}


def test_an_unknown_outcome_leaves_the_tag_and_says_so(mini: MiniRest) -> None:
    """The overwrite is never answered: it may still land, so the tag stays, and the message names it."""
    catalog = mini.catalog("lake")
    _, snapshot_id = with_history(catalog)
    with (
        before_swap(2, lambda: mini.fail_next_commit(*[Fault(503)] * 10)),
        pytest.raises(CommitStateUnknown, match=rf"{RUN_ID}=restore-\d+; restoring again is safe\. Tag '{TAG_PREFIX}"),
    ):
        restored(catalog, snapshot_id)
    table = landed(catalog, [1, 2, 3, 5, 6])
    (tag,) = set(table.metadata.refs) - {"main"}
    assert tag.startswith(TAG_PREFIX)


def test_an_interrupted_restore_removes_its_tag(catalog: Catalog) -> None:
    """Stopped before the overwrite is asked for."""
    before, snapshot_id = with_history(catalog)

    def stop() -> None:
        raise KeyboardInterrupt

    with before_swap(2, stop), pytest.raises(KeyboardInterrupt):
        restored(catalog, snapshot_id)
    assert_unchanged(catalog, before)


def test_an_interrupted_restore_removes_files_without_deleted_rows(lake: SqlCatalog) -> None:
    """They are written in this process, beside the copies, and go with them."""
    make_table(lake)
    table = append(lake, [1, 2])
    then = delete_rows(lake, small_files(table)[0]).metadata.current_snapshot_id
    assert then is not None
    append(lake, [3])
    before = delete_rows(lake, small_files(table)[0], [1])

    def stop() -> None:
        assert len(data_files_on_disk(before)) > len(data_files_needed(before)), "the file is written by then"
        raise KeyboardInterrupt

    with before_swap(2, stop), pytest.raises(KeyboardInterrupt):
        restored(lake, then)
    assert_unchanged(lake, before)


def test_a_restore_that_is_interrupted_after_it_landed_keeps_its_copies(catalog: Catalog) -> None:
    """The call never heard of it, and the partition is what it was all the same."""
    before, snapshot_id = with_history(catalog)

    def stop() -> None:
        raise KeyboardInterrupt

    with before_swap(2, stop, "after-swap"), pytest.raises(KeyboardInterrupt):
        restored(catalog, snapshot_id)
    table = catalog.load_table("db.t")
    check(table)
    assert table.metadata.current_snapshot().summary[RESTORED_ID] == str(snapshot_id)
    assert set(live_paths(table)) - set(live_paths(before)), "nothing was copied"
