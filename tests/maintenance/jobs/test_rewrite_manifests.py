"""Rewriting manifests: fewer of them, sorted by partition, the same files, bytes and rows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.update import SetSnapshotRefUpdate

from icesize import failpoints
from icesize.environment import Environment
from icesize.errors import CommitStateUnknown, TableError
from icesize.maintenance.jobs.rewrite_manifests import ManifestReport, rewrite_manifests
from icesize.planning.files import PartitionKey
from icesize.table.manifests import packing
from icesize.table.manifests.entries import Entry, read_entries
from icesize.table.manifests.packing import entries_by_partition, partition_order, worth_packing
from icesize.table.records.summary import KIND, RUN_ID
from icesize.table.state.handle import TableHandle
from icesize.table.state.where import partition_filter
from tests.support.jobs import context_of
from tests.support.rest_faults import Fault, Moment
from tests.support.rest_server import MiniRest
from tests.support.row_deletes import delete_rows
from tests.support.tables import (
    NOW_MS,
    append,
    arrow,
    compact,
    ids_of,
    landed,
    live_paths,
    local,
    make_table,
    metadata_files_on_disk,
    operations,
    referenced_metadata,
    request_on,
    run,
    small_files,
    write,
)

NO_FOLDING = {"commit.manifest-merge.enabled": "false"}


def rewrite(catalog: Catalog) -> ManifestReport:
    """The maintenance call, on the table as it is now, without waiting."""
    handle = TableHandle(catalog, ("db", "t"))
    environment = Environment(monotonic=lambda: 0.0, now_ms=lambda: NOW_MS, sleep=lambda seconds: None)
    return rewrite_manifests(context_of(handle, environment))


def many_manifests(catalog: Catalog, kinds: Sequence[str] = "abab", **properties: str) -> Table:
    """A table with one manifest of one file for each kind."""
    table = make_table(catalog, properties={**NO_FOLDING, **properties})
    for i, kind in enumerate(kinds):
        table = append(catalog, [i], kind)
    return table


def manifests_of(table: Table, content: ManifestContent = ManifestContent.DATA) -> list[ManifestFile]:
    head = table.metadata.current_snapshot()
    assert head is not None
    return [m for m in head.manifests(table.io) if m.content == content]


def entries_of(table: Table) -> dict[str, Entry]:
    """Live data files by path."""
    return {e.path: e for m in manifests_of(table) for e in read_entries(table.io, m)}


def kept_facts(entry: Entry) -> tuple[Any, ...]:
    """What a rewrite must not change, the bytes that describe the file among it."""
    return entry.snapshot_id, entry.sequence_number, entry.file_sequence_number, entry.values, entry.data


@pytest.mark.parametrize("version", ["1", "2"])
def test_small_manifests_become_one(lake: SqlCatalog, version: str) -> None:
    """Every entry keeps its bytes, numbers and snapshot; totals stay; the report and the summary say what was done."""
    before = many_manifests(lake, **{"format-version": version})
    report = rewrite(lake)
    table = landed(lake, [0, 1, 2, 3])
    assert operations(table) == ["append"] * 4 + ["replace"]
    head = table.metadata.current_snapshot()
    assert head is not None
    assert head.summary is not None
    assert (report.table, report.snapshot_id) == ("lake.db.t", head.snapshot_id)
    assert (report.manifests_before, report.manifests_after, report.entries) == (4, 1, 4)
    assert str(report) == "manifests of lake.db.t: 4 -> 1  entries copied 4  0.00 s"
    assert report.to_dict()["snapshot_ids"] == [str(head.snapshot_id)]
    facts = head.summary.additional_properties
    old = before.metadata.snapshots[-1].summary
    assert old is not None
    totals = {k: v for k, v in old.additional_properties.items() if k.startswith("total-")}
    named = {
        "manifests-created": "1",
        "manifests-kept": "0",
        "manifests-replaced": "4",
        "entries-processed": "4",
        RUN_ID: facts[RUN_ID],
        KIND: "manifests",
    }
    assert facts == {**totals, **named}
    old_entries, new_entries = entries_of(before), entries_of(table)
    assert {p: kept_facts(e) for p, e in new_entries.items()} == {p: kept_facts(e) for p, e in old_entries.items()}
    (manifest,) = manifests_of(table)
    counted = (manifest.existing_files_count, manifest.added_files_count, manifest.deleted_files_count)
    assert counted == (4, 0, 0)


def test_a_second_rewrite_has_nothing_to_do(lake: SqlCatalog) -> None:
    """One manifest per spec is the minimum: no snapshot, no file written, and the report says so."""
    many_manifests(lake)
    rewrite(lake)
    before = metadata_files_on_disk(lake.load_table("db.t"))
    report = rewrite(lake)
    table = lake.load_table("db.t")
    assert (report.snapshot_id, report.manifests_before, report.manifests_after) == (None, 1, 1)
    assert str(report) == "nothing to do in lake.db.t: 1 manifest"
    assert report.to_dict()["snapshot_ids"] == []
    assert len(table.metadata.snapshots) == 5
    assert metadata_files_on_disk(table) == before


def test_an_empty_table_has_nothing_to_do(lake: SqlCatalog) -> None:
    """No snapshot, no manifests, no commit."""
    make_table(lake)
    report = rewrite(lake)
    assert (report.snapshot_id, report.manifests_before) == (None, 0)
    assert lake.load_table("db.t").metadata.snapshots == []


def test_entries_of_deleted_files_are_left_behind(lake: SqlCatalog) -> None:
    """A merge leaves entries of status DELETED in its manifest; the rewritten one has live files only."""
    many_manifests(lake, "aab")
    compact(lake, "a")
    report = rewrite(lake)
    table = landed(lake, [0, 1, 2])
    (manifest,) = manifests_of(table)
    assert (report.entries, manifest.deleted_files_count, len(live_paths(table))) == (2, 0, 2)


def test_each_spec_keeps_manifests_of_its_own(lake: SqlCatalog) -> None:
    """Files of two partition specs do not share a manifest, and both kinds are put together."""
    many_manifests(lake, "ab")
    with lake.load_table("db.t").update_spec() as update:
        update.add_field("id", "bucket[4]", "id_bucket")
    for i in (2, 3, 4):
        append(lake, [i], "b")
    report = rewrite(lake)
    table = landed(lake, [0, 1, 2, 3, 4])
    assert sorted(m.partition_spec_id for m in manifests_of(table)) == [0, 1]
    assert (report.manifests_before, report.manifests_after, report.entries) == (5, 2, 5)
    assert sorted(table.scan(row_filter="kind = 'b'").to_arrow()["id"].to_pylist()) == [1, 2, 3, 4]
    assert rewrite(lake).snapshot_id is None


def test_delete_manifests_stay_and_deleted_rows_stay_deleted(lake: SqlCatalog) -> None:
    """Deletes are untouched; they apply to the same files as before, which keep their numbers."""
    table = many_manifests(lake, "aa")
    delete_rows(lake, small_files(table)[0])
    before = manifests_of(lake.load_table("db.t"), ManifestContent.DELETES)
    report = rewrite(lake)
    table = lake.load_table("db.t")
    after = manifests_of(table, ManifestContent.DELETES)
    assert [m.manifest_path for m in after] == [m.manifest_path for m in before]
    assert ids_of(lake) == [1]
    assert (report.manifests_before, report.manifests_after) == (3, 2)


def a_manifest(length: int, live: int = 10, deleted: int | None = 0, spec_id: int = 0) -> ManifestFile:
    return ManifestFile.from_args(
        manifest_path=f"m{length}-{live}-{deleted}-{spec_id}", manifest_length=length, partition_spec_id=spec_id,
        content=ManifestContent.DATA, added_files_count=live, existing_files_count=0, deleted_files_count=deleted,
    )  # fmt: skip


def test_manifests_that_are_half_full_stay() -> None:
    """Filled to half of the target by live entries is good enough; entries of deleted files do not count."""
    full, half, small, other = a_manifest(100), a_manifest(50), a_manifest(49), a_manifest(49, spec_id=1)
    mostly_deleted, unknown = a_manifest(90, live=10, deleted=10), a_manifest(48, deleted=None)
    deletes = ManifestFile.from_args(
        manifest_path="d", manifest_length=1, partition_spec_id=0, content=ManifestContent.DELETES
    )
    assert worth_packing([full, half, small, other, deletes], 100) == {}
    assert worth_packing([small, full, mostly_deleted, unknown], 100) == {0: [small, mostly_deleted, unknown]}
    assert worth_packing([other, small, other, small], 100) == {0: [small, small], 1: [other, other]}


def wide_table(catalog: Catalog) -> Table:
    """Eight commits of 750 files each, over eight partitions in turn; two of their manifests make a full one."""
    table = make_table(catalog, properties={**NO_FOLDING, "commit.manifest.target-size-bytes": "80000"})
    template = write(table, [1])
    for number in range(8):
        files = [
            replace(template, path=f"{template.path}-{number}-{i}", partition=PartitionKey(0, ("hgfedcba"[i % 8],)))
            for i in range(750)
        ]
        table = catalog.load_table("db.t")
        run(catalog, request_on(table, files), table)
    return catalog.load_table("db.t")


def may_hold(table: Table, kind: str) -> int:
    """Manifests that a reader of one partition has to open."""
    chosen = partition_filter(table.metadata, f"kind = '{kind}'")
    return sum(chosen.may_hold(m) for m in manifests_of(table))


def test_several_manifests_are_sorted_by_partition(lake: SqlCatalog) -> None:
    """Where one manifest is not enough, each holds a range of partitions, so that readers can skip the others."""
    before = wide_table(lake)
    report = rewrite(lake)
    table = lake.load_table("db.t")
    manifests = manifests_of(table)
    assert len(manifests) == report.manifests_after < report.manifests_before == len(manifests_of(before))
    assert len(manifests) > 2
    ranges = [(m.partitions[0].lower_bound, m.partitions[0].upper_bound) for m in manifests if m.partitions]
    assert all(upper is not None for _, upper in ranges)
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(ranges))  # type: ignore[operator]
    assert may_hold(before, "a") == len(manifests_of(before))
    assert may_hold(table, "a") < len(manifests)
    assert {p: kept_facts(e) for p, e in entries_of(table).items()} == {
        p: kept_facts(e) for p, e in entries_of(before).items()
    }
    assert rewrite(lake).snapshot_id is None


def test_memory_is_bounded_by_sorting_in_runs(lake: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run is sorted by itself; all entries come, once, those of one partition in the order they were."""
    table = many_manifests(lake, "caba")
    manifests = manifests_of(table)
    kinds = [e.values[0] for e in entries_by_partition(table.io, manifests)]
    assert kinds == ["a", "a", "b", "c"]
    monkeypatch.setattr(packing, "SORTED_AT_ONCE", 1)
    one_by_one = [e.path for e in entries_by_partition(table.io, manifests)]
    assert one_by_one == [e.path for m in manifests for e in read_entries(table.io, m)]
    monkeypatch.setattr(packing, "SORTED_AT_ONCE", 2)
    assert [e.values[0] for e in entries_by_partition(table.io, manifests)] == ["a", "b", "a", "c"]


def test_encodings_that_cannot_share_a_manifest_are_left_alone(lake: SqlCatalog) -> None:
    """One manifest by PyIceberg and one of ours stay two: nothing to win, nothing committed, nothing left behind."""
    table = many_manifests(lake, "a")
    table.append(arrow([1]))
    before = metadata_files_on_disk(lake.load_table("db.t"))
    assert len({e.schema for e in entries_of(lake.load_table("db.t")).values()}) == 2
    assert rewrite(lake).snapshot_id is None
    assert metadata_files_on_disk(lake.load_table("db.t")) == before
    append(lake, [2], "a")
    report = rewrite(lake)
    assert (report.manifests_before, report.manifests_after) == (3, 2)
    landed(lake, [0, 1, 2])


_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.binary(),
    st.uuids(),
    st.decimals(allow_nan=False),
)


@given(st.lists(st.tuples(_VALUES, _VALUES)))
def test_partition_values_have_a_total_order(rows: list[tuple[Any, Any]]) -> None:
    """Any values can be sorted: none first, then numbers, NaN, and each other type by itself."""
    firsts = [row[0] for row in sorted(rows, key=partition_order)]
    for kind in (str, bytes, UUID):
        of_kind = [value for value in firsts if isinstance(value, kind)]
        assert of_kind == sorted(of_kind)
    numbers = [v for v in firsts if isinstance(v, (int, float, Decimal))]
    usual = [v for v in numbers if not math.isnan(v)]
    assert usual == sorted(usual)
    assert [math.isnan(v) for v in numbers] == sorted(math.isnan(v) for v in numbers)
    nothing = sum(v is None for v in firsts)
    assert firsts[:nothing] == [None] * nothing
    assert firsts[nothing : nothing + len(numbers)] == numbers


def test_a_rival_append_is_taken_along(mini: MiniRest) -> None:
    """Another commit comes first: the rewrite is staged anew on it, and leaves no file of its first attempt."""
    catalog = mini.catalog("lake")
    many_manifests(catalog)

    def rival() -> None:
        append(mini.catalog("rival"), [9], "b")

    mini.before_swap = rival
    report = rewrite(catalog)
    table = landed(catalog, [0, 1, 2, 3, 9])
    assert (report.manifests_before, report.manifests_after, report.entries) == (5, 1, 5)
    assert metadata_files_on_disk(table) == referenced_metadata(table)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", [409, 500, 503, "reset", "truncated"])
def test_a_spoiled_answer_lands_it_once(mini: MiniRest, kind: int | str, when: Moment) -> None:
    """Landed or not, there is one REPLACE in the end, and the report is the same."""
    catalog = mini.catalog("lake")
    many_manifests(catalog)
    mini.fail_next_commit(Fault(kind, when))
    report = rewrite(catalog)
    table = landed(catalog, [0, 1, 2, 3])
    assert operations(table) == ["append"] * 4 + ["replace"]
    assert report.snapshot_id == table.metadata.current_snapshot_id
    assert (report.manifests_before, report.manifests_after, report.entries) == (4, 1, 4)


def test_an_unknown_outcome_says_how_to_look(mini: MiniRest) -> None:
    """The catalog never answers: nothing is deleted, and the message names the run id."""
    catalog = mini.catalog("lake")
    many_manifests(catalog)
    mini.fail_next_commit(*[Fault(503)] * 10)
    with pytest.raises(CommitStateUnknown, match=r"icesize\.run-id=\w+; rewriting manifests again is safe"):
        rewrite(catalog)
    assert operations(landed(catalog, [0, 1, 2, 3])) == ["append"] * 4


def test_a_failure_before_the_swap_leaves_nothing(lake: SqlCatalog) -> None:
    """Whatever stops it before the catalog is asked, its manifests go again."""
    before = metadata_files_on_disk(many_manifests(lake))

    def stop() -> None:
        raise RuntimeError("stopped")

    with failpoints.armed("before-swap", stop), pytest.raises(RuntimeError, match="stopped"):
        rewrite(lake)
    assert metadata_files_on_disk(landed(lake, [0, 1, 2, 3])) == before


def test_a_damaged_manifest_is_named_and_nothing_is_left(lake: SqlCatalog) -> None:
    """The second spec cannot be read: what was written for the first goes again."""
    many_manifests(lake, "ab")
    with lake.load_table("db.t").update_spec() as update:
        update.add_field("id", "bucket[4]", "id_bucket")
    for i in (2, 3):
        append(lake, [i], "b")
    table = lake.load_table("db.t")
    newest = manifests_of(table)[0]
    assert newest.partition_spec_id == 1
    local(newest.manifest_path).write_bytes(b"damaged")
    before = metadata_files_on_disk(table)
    with pytest.raises(TableError, match=f"Cannot read {newest.manifest_path}: it is not an Avro file"):
        rewrite(lake)
    assert metadata_files_on_disk(table) == before


def test_retention_settings_of_main_survive(lake: SqlCatalog) -> None:
    """Moving main keeps how long its snapshots are to be kept."""
    table = many_manifests(lake)
    head = table.metadata.current_snapshot()
    assert head is not None
    kept = {"max-snapshot-age-ms": 86_400_000, "min-snapshots-to-keep": 7, "max-ref-age-ms": 10**12}
    main = {"ref-name": "main", "type": SnapshotRefType.BRANCH, "snapshot-id": head.snapshot_id, **kept}
    lake.commit_table(table, (), (SetSnapshotRefUpdate(**main),))
    rewrite(lake)
    ref = landed(lake, [0, 1, 2, 3]).metadata.refs["main"]
    assert (ref.max_snapshot_age_ms, ref.min_snapshots_to_keep, ref.max_ref_age_ms) == tuple(kept.values())
