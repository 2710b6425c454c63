"""What the states of a table need: every file of every snapshot, and nothing that only lies there."""

from __future__ import annotations

from pathlib import Path

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.table.statistics import StatisticsFile

from icesize.table.storage.reachable import Reachable
from tests.support.row_deletes import delete_ids, delete_rows
from tests.support.tables import (
    CountingIO,
    append,
    compact,
    data_files_on_disk,
    expire,
    local,
    make_table,
    metadata_files_on_disk,
    small_files,
    two_files,
    write,
)


def reachable(table: Table) -> Reachable:
    found = Reachable()
    found.add(table.metadata, table.metadata_location, table.io)
    return found


def ending(found: Reachable, suffix: str) -> set[str]:
    return {location for location in found if location.endswith(suffix)}


def test_every_file_of_every_snapshot(lake: SqlCatalog) -> None:
    """Data and delete files, manifests, lists and metadata: all that is on disk when nothing was lost."""
    table = two_files(lake)
    first, second = small_files(table)
    delete_rows(lake, first)
    delete_ids(lake, second, [99])
    table = compact(lake)
    found = reachable(table)
    on_disk = {f"file://{p}" for p in local(table.location()).rglob("*.metadata.json")}
    hint = f"{table.location()}/metadata/version-hint.text"
    assert set(found) == data_files_on_disk(table) | metadata_files_on_disk(table) | on_disk | {hint}
    assert len(found) == len(set(found))


def test_what_nobody_committed_is_not_needed(lake: SqlCatalog) -> None:
    """A file that was only written is not reachable; each spelling of one that is needed is."""
    table = two_files(lake)
    found = reachable(table)
    assert write(table, [9]).path not in found
    path = small_files(table)[0].path
    assert all(each in found for each in (path, path.replace("file://", "file:"), path.removeprefix("file://")))


def test_files_of_expired_snapshots_are_beyond(lake: SqlCatalog) -> None:
    """What only removed snapshots need is what a table without them does not reach."""
    before = compact(lake) if two_files(lake) else None
    assert before is not None
    removed = before.metadata.snapshots[:-1]
    expire(before)
    kept = reachable(lake.load_table("db.t"))
    doomed = Reachable()
    doomed.add(before.metadata.model_copy(update={"snapshots": removed}), before.metadata_location, before.io)
    candidates = [doomed.spelt(name) for name in doomed if name not in kept and not name.endswith(".json")]
    kinds = ["data" if p.endswith(".parquet") else "list" if "/snap-" in p else "manifest" for p in candidates]
    assert {p for p in candidates if p.endswith(".parquet")} == data_files_on_disk(before) - ending(kept, ".parquet")
    assert kinds.count("data") == 2
    assert kinds.count("list") == 2


def test_nothing_is_read_twice(lake: SqlCatalog) -> None:
    """A manifest in many lists is read once, and snapshots that are known already are not looked at again."""
    make_table(lake)
    for i in range(5):
        table = append(lake, [i])
    io = CountingIO()
    found = Reachable()
    first = table.metadata.model_copy(update={"snapshots": table.metadata.snapshots[:1]})
    for metadata in (first, table.metadata, table.metadata):
        found.add(metadata, table.metadata_location, io)
    assert sorted(io.opened) == sorted(ending(found, ".avro"))
    lists = sum("/snap-" in location for location in found)
    assert (lists, len(ending(found, ".avro")) - lists, len(ending(found, ".parquet"))) == (5, 5, 5)


def test_statistics_are_needed(lake: SqlCatalog) -> None:
    """Statistics files belong to the table as long as its metadata names them."""
    table = two_files(lake)
    head = table.metadata.current_snapshot()
    assert head is not None
    path = f"{table.location()}/metadata/{head.snapshot_id}.stats"
    statistics = StatisticsFile(
        snapshot_id=head.snapshot_id,
        statistics_path=path,
        file_size_in_bytes=1,
        file_footer_size_in_bytes=1,
        blob_metadata=[],
    )
    with table.update_statistics() as update:
        update.set_statistics(statistics)
    assert ending(reachable(lake.load_table("db.t")), ".stats") == {path}


def test_a_list_that_is_named_elsewhere_is_read_all_the_same(lake: SqlCatalog) -> None:
    """That its location is known, from a wrong entry of the metadata, does not say that its files are."""
    table = two_files(lake)
    statistics = [
        StatisticsFile(
            snapshot_id=each.snapshot_id,
            statistics_path=each.manifest_list,
            file_size_in_bytes=1,
            file_footer_size_in_bytes=1,
            blob_metadata=[],
        )
        for each in table.metadata.snapshots
    ]
    found = Reachable()
    found.add(table.metadata.model_copy(update={"statistics": statistics}), table.metadata_location, table.io)
    assert set(found) == set(reachable(table))


def test_the_tables_own_spelling_is_remembered(lake: SqlCatalog, tmp_path: Path) -> None:
    """Files are deleted by the name that the table gives them, compared by the normal one."""
    table = two_files(lake)
    metadata = table.metadata.model_copy(update={"location": f"{tmp_path}//warehouse", "snapshots": []})
    found = Reachable()
    found.add(metadata, f"file:{tmp_path}/x.metadata.json", table.io)
    assert f"file://{tmp_path}/x.metadata.json" in list(found)
    assert found.spelt(f"file://{tmp_path}/x.metadata.json") == f"file:{tmp_path}/x.metadata.json"
    assert f"{tmp_path}//warehouse/metadata/version-hint.text" in [found.spelt(name) for name in found]
