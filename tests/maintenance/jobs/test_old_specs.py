"""Files of old partition specs: merged within their own partitions, in catalogs of both kinds and each format."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import DoubleType, LongType, NestedField

import icesize
from icesize.environment import Environment, WorkLimits
from icesize.errors import RewriteFailed
from icesize.failpoints import armed
from icesize.planning.files import FileFact, PartitionKey, SkipReason
from icesize.report import Report
from icesize.sized_table import SizedTable
from icesize.table.commit.protocol import OUTDATED
from icesize.table.upserts.settings import WantedRule
from tests.support.catalogs import OF_EACH_FORMAT, catalog_of
from tests.support.delete_files import live_deletes
from tests.support.row_deletes import delete_ids, delete_rows
from tests.support.row_lineage import Lineage, lineage_of
from tests.support.tables import (
    append,
    arrow,
    check,
    ids_of,
    local,
    make_table,
    manifests_of,
    operations,
    request_on,
    run,
    small_files,
    theirs,
    write,
)
from tests.support.upserts import live_rows, upsert_rows

TRANSFORMS = [
    {"kind": "identity", "ts": "day"}, {"kind": "truncate[1]"}, {"id": "bucket[1]"}, {"ts": "hour"}, {"ts": "month"},
    {"ts": "year"}, {"kind": "void"}, {"kind": "void", "ts": "identity"}, {},
]  # fmt: skip


@pytest.fixture(params=OF_EACH_FORMAT)
def catalog(request: pytest.FixtureRequest) -> Catalog:
    """A catalog of each kind, with tables of format v2 and v3."""
    return catalog_of(request)


def opened(catalog: Catalog, **policy: object) -> SizedTable:
    """An hour after the newest commit: no partition is being changed by others."""
    environment = Environment(
        now_ms=lambda: catalog.load_table("db.t").metadata.last_updated_ms + 3_600_000, sleep=lambda seconds: None
    )
    return icesize.open(None, "db.t", catalog=catalog, policy=policy or None, environment=environment)


def partitioned_by(catalog: Catalog, column: str, transform: str, *, instead_of: str = "") -> Table:
    """Change the partition spec as another client does."""
    table = theirs(catalog.load_table("db.t"))
    with table.update_spec() as update:
        if instead_of:
            update.remove_field(instead_of)
        update.add_field(column, transform, f"by_{column}")
    return catalog.load_table("db.t")


def of_two_specs(catalog: Catalog) -> Table:
    """Rows 1 to 4 in partitions `a` and `b` of the first spec, 5 and 6 in one partition of the second."""
    make_table(catalog)
    for ids, kind in (([1], "a"), ([2], "a"), ([3], "b"), ([4], "b")):
        append(catalog, ids, kind)
    partitioned_by(catalog, "id", "bucket[1]", instead_of="kind")
    append(catalog, [5])
    return append(catalog, [6], "b")


def old_files(table: Table) -> list[FileFact]:
    return [file for file in small_files(table) if file.partition.spec_id != table.metadata.default_spec_id]


def once(action: Callable[[], object]) -> Callable[[], None]:
    """Return the action, which does nothing when it is called again."""
    left = [action]
    return lambda: (left and left.pop()()) and None


def files_by_partition(table: Table) -> Counter[PartitionKey]:
    return Counter(file.partition for file in small_files(table))


def lineage(table: Table) -> Lineage:
    return {key: value for file in small_files(table) for key, value in lineage_of(file).items()}


def test_files_are_merged_within_the_partitions_of_their_own_spec(catalog: Catalog) -> None:
    """Partition values, rows and row lineage stay, and each manifest has files of one spec."""
    before = of_two_specs(catalog)
    expected = dict.fromkeys(files_by_partition(before), 1)
    known = lineage(before)
    report = opened(catalog).compact()
    assert (report.files_removed, report.files_added, report.skipped) == (6, 3, {})
    table = catalog.load_table("db.t")
    check(table)
    assert files_by_partition(table) == expected
    assert {key.spec_id for key in expected} == {0, 1}
    assert ids_of(catalog) == [1, 2, 3, 4, 5, 6]
    if table.metadata.format_version > 2:
        assert lineage(table) == known
    head = table.metadata.current_snapshot()
    assert head is not None
    assert {m.partition_spec_id for m in manifests_of(head) if m.added_snapshot_id == head.snapshot_id} == {0, 1}
    assert all("/data/kind=" in file.path for file in old_files(table))
    assert opened(catalog).compact().snapshot_ids == ()


def test_deletes_of_an_old_partition_are_applied(catalog: Catalog) -> None:
    """Position deletes and equality deletes reach the files of their own spec and partition, and no others."""
    table = of_two_specs(catalog)
    first, second = (file for file in old_files(table) if file.partition.values == ("a",))
    delete_rows(catalog, first)
    delete_ids(catalog, second, [2, 3, 5])
    opened(catalog).compact()
    table = catalog.load_table("db.t")
    check(table)
    assert (ids_of(catalog), live_deletes(table)) == ([3, 4, 5, 6], [])


def test_equality_deletes_without_partition_values_reach_old_files(catalog: Catalog) -> None:
    """Those of an unpartitioned spec apply to files of every spec, older ones alone."""
    make_table(catalog, {})
    append(catalog, [1])
    whole = append(catalog, [2])
    table = partitioned_by(catalog, "kind", "identity")
    append(catalog, [3], "b")
    delete_ids(catalog, small_files(whole)[0], [1, 3, 4])
    append(catalog, [4], "b")
    assert opened(catalog).compact().files_removed == 4
    table = catalog.load_table("db.t")
    check(table)
    assert (ids_of(catalog), live_deletes(table)) == ([2, 4], [])


def test_a_newer_delete_in_an_old_partition_drops_its_group_alone(catalog: Catalog) -> None:
    """The conflict check looks at deletes of the group's own spec."""
    hit = next(file for file in old_files(of_two_specs(catalog)) if file.partition.values == ("a",))
    with armed("files-written", once(lambda: delete_rows(catalog, hit))):
        report = opened(catalog).compact()
    assert (report.files_removed, len(report.conflicts)) == (4, 1)
    check(catalog.load_table("db.t"))
    assert ids_of(catalog) == [2, 3, 4, 5, 6]


def test_a_newer_delete_of_few_rows_is_carried_over(catalog: Catalog) -> None:
    """As a delete in the partition of the old spec."""
    make_table(catalog)
    append(catalog, range(10))
    hit = small_files(append(catalog, range(10, 20)))[0]
    with theirs(catalog.load_table("db.t")).update_spec() as update:
        update.remove_field("kind")
    with armed("files-written", once(lambda: delete_rows(catalog, hit))):
        report = opened(catalog).compact()
    assert (report.files_removed, report.conflicts) == (2, ())
    table = catalog.load_table("db.t")
    check(table)
    assert [(file.partition, file.delete_files) for file in small_files(table)] == [(PartitionKey(0, ("a",)), 1)]
    assert [row[0] for row in live_rows(catalog)] == list(range(1, 20))


def test_a_newer_equality_delete_reaches_the_merged_file(catalog: Catalog) -> None:
    """It applies to the output as it did to the inputs: the number of the output is not raised."""
    hit = next(file for file in old_files(of_two_specs(catalog)) if file.partition.values == ("a",))
    with armed("files-written", once(lambda: delete_ids(catalog, hit, [1, 3]))):
        assert opened(catalog).compact().conflicts == ()
    assert {f.partition.values: f.delete_files for f in old_files(catalog.load_table("db.t"))} == {("a",): 1, ("b",): 0}
    opened(catalog, delete_file_threshold=1).compact()
    check(catalog.load_table("db.t"))
    assert ids_of(catalog) == [2, 3, 4, 5, 6]


def test_merges_are_dropped_if_the_spec_changes_meanwhile(catalog: Catalog) -> None:
    """Of old files, too; the next compaction merges them."""
    of_two_specs(catalog)
    with armed("files-written", once(lambda: partitioned_by(catalog, "ts", "day", instead_of="by_id"))):
        report = opened(catalog).compact()
    assert report.snapshot_ids == ()
    assert all(OUTDATED in conflict for conflict in report.conflicts)
    assert opened(catalog).compact().files_removed == 6
    check(catalog.load_table("db.t"))
    assert ids_of(catalog) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("transforms", TRANSFORMS, ids=str)
def test_old_specs_of_each_transform(lake: SqlCatalog, transforms: dict[str, str]) -> None:
    """Partition values of every type are written as they were read, NULL among them."""
    table = make_table(lake, transforms)
    for kind in ("a", "a", None, None):
        append(lake, [1], kind)
    with table.refresh().update_spec() as update:
        for field in table.spec().fields:
            update.remove_field(field.name)
        update.add_field("id", "truncate[10]", "added")
    append(lake, [5])
    before = files_by_partition(lake.load_table("db.t"))
    assert opened(lake).compact().files_removed == sum(count for count in before.values() if count > 1)
    table = lake.load_table("db.t")
    check(table)
    assert files_by_partition(table) == dict.fromkeys(before, 1)
    assert ids_of(lake) == [1, 1, 1, 1, 5]


def test_format_v1_with_dropped_fields(lake: SqlCatalog) -> None:
    """Format v1 keeps a dropped field as a void one. Its column may go; then the older spec cannot be written."""
    make_table(lake, properties={"format-version": "1"})
    for ids in ([1], [2]):
        append(lake, ids)
    partitioned_by(lake, "ts", "day", instead_of="kind")
    for ids in ([3], [4]):
        append(lake, ids)
    partitioned_by(lake, "id", "bucket[1]", instead_of="by_ts")
    assert opened(lake).compact().files_removed == 4
    for ids in ([5], [6]):
        append(lake, ids)
    with lake.load_table("db.t").update_schema() as change:
        change.delete_column("kind").delete_column("ts")
    report = opened(lake).compact()
    assert (report.files_removed, report.skipped) == (2, {"OLD_SPEC": 2})
    check(lake.load_table("db.t"))
    assert ids_of(lake) == [1, 2, 3, 4, 5, 6]


def test_columns_that_only_the_partition_has_keep_their_values(lake: SqlCatalog) -> None:
    """As in files of Hive tables: an identity value of the old spec fills the column."""
    make_table(lake)
    for number in (1, 2):
        file = write(lake.load_table("db.t"), [number])
        pq.write_table(pq.read_table(local(file.path)).drop(["kind"]), local(file.path))
        file = replace(file, size_bytes=local(file.path).stat().st_size)
        run(lake, request_on(lake.load_table("db.t"), [file]), lake.load_table("db.t"))
    partitioned_by(lake, "id", "bucket[1]", instead_of="kind")
    assert opened(lake).compact().files_removed == 2
    [file] = old_files(lake.load_table("db.t"))
    assert pq.read_table(local(file.path)).column("kind").to_pylist() == ["a", "a"]


def test_after_batch_merges_old_partitions_with_too_many_files(catalog: Catalog) -> None:
    """They belong to the backlog, as partitions of the current spec do."""
    of_two_specs(catalog)
    assert opened(catalog, max_small_files=1).after_batch().files_removed == 6
    assert operations(catalog.load_table("db.t"))[-1] == "replace"


def test_files_without_their_source_column_stay(lake: SqlCatalog) -> None:
    """`inspect` and `plan` say it as the report does."""
    of_two_specs(lake)
    with lake.load_table("db.t").update_schema() as change:
        change.delete_column("kind")
    sized = opened(lake)
    assert sized.inspect().ineligible == {"OLD_SPEC": 4}
    assert dict(sized.plan().skipped_by_reason) == {SkipReason.OLD_SPEC: 4}
    assert (sized.compact().files_removed, ids_of(lake)) == (2, [1, 2, 3, 4, 5, 6])


def moved(catalog: Catalog, **policy: object) -> Report:
    return opened(catalog, **policy).compact(into_current_spec=True)


def test_rows_move_into_the_partitions_of_the_current_spec(catalog: Catalog) -> None:
    """Their values and row lineage stay; one partition's rows go into several, and those of several into one."""
    make_table(catalog)
    for ids, kind in (([1, 30], "a"), ([2], "b"), ([31], "b")):
        append(catalog, ids, kind)
    partitioned_by(catalog, "ts", "day", instead_of="kind")
    known = lineage(append(catalog, [3]))
    report = moved(catalog)
    assert (report.operations, report.rows_deleted) == (("replace", "replace"), 0)
    table = catalog.load_table("db.t")
    check(table)
    assert ids_of(catalog) == [1, 2, 3, 30, 31]
    assert files_by_partition(table) == {PartitionKey(1, (0,)): 1, PartitionKey(1, (1,)): 1}
    if table.metadata.format_version > 2:
        assert lineage(table) == known
    assert moved(catalog).snapshot_ids == ()


def test_deletes_of_the_old_partition_are_applied_by_a_move(catalog: Catalog) -> None:
    """They reach neither the new partition nor its rows, and are gone once they apply to nothing."""
    table = of_two_specs(catalog)
    first, second = (file for file in old_files(table) if file.partition.values == ("a",))
    delete_rows(catalog, first)
    delete_ids(catalog, second, [2, 3, 5])
    report = moved(catalog)
    table = catalog.load_table("db.t")
    check(table)
    assert (report.rows_deleted, ids_of(catalog)) == (2, [3, 4, 5, 6])
    assert (old_files(table), live_deletes(table)) == ([], [])


def test_equality_deletes_of_the_new_partition_do_not_reach_moved_rows(catalog: Catalog) -> None:
    """Neither those before the plan nor those before the commit: they did not reach the rows where they were."""
    target = next(file for file in small_files(of_two_specs(catalog)) if file.partition.spec_id == 1)
    delete_ids(catalog, target, [1, 5])
    with armed("files-written", once(lambda: delete_ids(catalog, target, [2, 6]))):
        assert moved(catalog).conflicts == ()
    opened(catalog, delete_file_threshold=1).compact()
    table = catalog.load_table("db.t")
    check(table)
    assert (ids_of(catalog), old_files(table)) == ([1, 2, 3, 4], [])


@pytest.mark.parametrize("delete", [delete_rows, lambda catalog, file: delete_ids(catalog, file, [1])])
def test_a_newer_delete_in_the_old_partition_drops_the_move(
    catalog: Catalog, delete: Callable[[Catalog, FileFact], Table]
) -> None:
    """Also one by equality, which would not reach the rows in their new partition. The next call moves them."""
    hit = next(file for file in old_files(of_two_specs(catalog)) if file.partition.values == ("a",))
    with armed("files-written", once(lambda: delete(catalog, hit))):
        report = moved(catalog)
    assert len(report.conflicts) == 1
    moved(catalog)
    table = catalog.load_table("db.t")
    check(table)
    assert (ids_of(catalog), old_files(table)) == ([2, 3, 4, 5, 6], [])


@pytest.mark.parametrize("was_whole", [True, False])
def test_deletes_without_partition_values_and_moves(catalog: Catalog, *, was_whole: bool) -> None:
    """Those of an unpartitioned spec, the old one or the new one, reach older rows wherever these are."""
    make_table(catalog, {} if was_whole else None)
    append(catalog, [1])
    append(catalog, [2])
    table = theirs(catalog.load_table("db.t"))
    with table.update_spec() as update:
        if was_whole:
            update.add_field("id", "bucket[1]", "by_id")
        else:
            update.remove_field("kind")
    table = append(catalog, [3])
    spec_id = next(i for i, spec in table.metadata.specs().items() if not spec.fields)
    whole = next(file for file in small_files(table) if file.partition.spec_id == spec_id)
    delete_ids(catalog, whole, [1, 3, 4])
    append(catalog, [4])
    moved(catalog)
    table = catalog.load_table("db.t")
    check(table)
    assert (ids_of(catalog), old_files(table), live_deletes(table)) == ([2, 4], [], [])


@pytest.mark.parametrize("transforms", TRANSFORMS, ids=str)
@pytest.mark.parametrize("back", [False, True])
def test_moves_by_each_transform(lake: SqlCatalog, transforms: dict[str, str], *, back: bool) -> None:
    """From partitions of each transform, and into them."""
    table = make_table(lake, {"id": "truncate[10]"} if back else transforms)
    for kind in ("a", "a", None, None):
        append(lake, [1], kind)
    with table.refresh().update_spec() as update:
        for field in table.spec().fields:
            update.remove_field(field.name)
        for column, transform in transforms.items() if back else [("id", "truncate[10]")]:
            update.add_field(column, transform, f"by_{column}")
    moved(lake)
    check(lake.load_table("db.t"))
    assert (ids_of(lake), old_files(lake.load_table("db.t"))) == ([1, 1, 1, 1], [])


def test_moves_in_format_v1_and_without_the_source_column(lake: SqlCatalog) -> None:
    """Void fields stay NULL, and files that could not be written in their own spec are moved."""
    make_table(lake, properties={"format-version": "1"})
    append(lake, [1])
    partitioned_by(lake, "ts", "day", instead_of="kind")
    append(lake, [2])
    partitioned_by(lake, "id", "bucket[1]", instead_of="by_ts")
    with lake.load_table("db.t").update_schema() as change:
        change.delete_column("kind").delete_column("ts")
    assert [len(group.inputs) for group in opened(lake).plan(into_current_spec=True).groups] == [1, 1]
    moved(lake)
    table = lake.load_table("db.t")
    check(table)
    assert (ids_of(lake), old_files(table)) == ([1, 2], [])
    assert [file.partition.values for file in small_files(table)] == [(None, None, 0)]


def test_deletes_of_a_file_without_its_source_column_are_applied(catalog: Catalog) -> None:
    """Rows of an old partition whose spec cannot be written any more do not come back."""
    hit = next(file for file in old_files(of_two_specs(catalog)) if file.partition.values == ("a",))
    delete_rows(catalog, hit)
    with theirs(catalog.load_table("db.t")).update_schema() as change:
        change.delete_column("kind")
    moved(catalog)
    check(catalog.load_table("db.t"))
    assert (ids_of(catalog), old_files(catalog.load_table("db.t"))) == ([2, 3, 4, 5, 6], [])


def test_a_budget_moves_what_it_pays_for(lake: SqlCatalog) -> None:
    """Whole groups, one old partition after the other; a plan says the same, and a filter selects partitions."""
    files = old_files(of_two_specs(lake))
    budget = sum(file.size_bytes for file in files if file.partition.values == ("a",))
    sized = opened(lake)
    assert sized.plan("kind = 'b'", into_current_spec=True).files_removed == 2
    plan = sized.plan(budget_bytes=budget, into_current_spec=True)
    assert [(group.label, len(group.inputs)) for group in plan.groups] == [("kind=a", 2)]
    assert dict(plan.skipped_by_reason) == {SkipReason.OVER_BUDGET: 2}
    sized.compact(budget_bytes=budget, into_current_spec=True)
    assert {file.partition.values for file in old_files(lake.load_table("db.t"))} == {("b",)}
    sized.compact(budget_bytes=budget, into_current_spec=True)
    assert (ids_of(lake), old_files(lake.load_table("db.t"))) == ([1, 2, 3, 4, 5, 6], [])


def test_moves_in_rounds(lake: SqlCatalog) -> None:
    """Without Spark, with a commit after each round."""
    of_two_specs(lake)
    environment = Environment(limits=WorkLimits(bytes_without_spark=1))
    sized = icesize.open(None, "db.t", catalog=lake, environment=environment)
    assert sized.compact(into_current_spec=True).operations == ("replace",) * 3
    assert (ids_of(lake), old_files(lake.load_table("db.t"))) == ([1, 2, 3, 4, 5, 6], [])


def test_maintain_moves_by_a_property(catalog: Catalog) -> None:
    """`icesize.policy.into-current-spec`; its plan says it, and a second pass has nothing to do."""
    of_two_specs(catalog)
    with theirs(catalog.load_table("db.t")).transaction() as change:
        change.set_properties({"icesize.policy.into-current-spec": "true"})
    planned = opened(catalog).plan_maintenance().merges
    assert planned is not None
    assert [group.moves for group in planned.groups] == [True, True]
    assert opened(catalog).maintain().merges[0].files_removed == 4
    table = catalog.load_table("db.t")
    check(table)
    assert (ids_of(catalog), old_files(table)) == ([1, 2, 3, 4, 5, 6], [])
    assert opened(catalog).maintain().merges == ()


def test_rows_that_fit_no_partition_stay(lake: SqlCatalog) -> None:
    """NaN is no partition value: the group fails, says so, and its files stay."""
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "x", DoubleType()))
    table = lake.create_table("db.t", schema, partition_spec=PartitionSpec())
    for value in (1.0, math.nan):
        table.append(pa.table({"id": pa.array([1], pa.int64()), "x": pa.array([value], pa.float64())}))
    with table.update_spec() as update:
        update.add_identity("x")
    with pytest.raises(RewriteFailed, match="Cannot write NaN into partition field 'x'"):
        moved(lake)
    assert len(old_files(lake.load_table("db.t"))) == 2


def newer(ids: Sequence[int]) -> pa.Table:
    """Rows of these keys that come after all others."""
    return arrow(ids).set_column(2, "ts", arrow([100 + key for key in ids]).column("ts"))


def test_an_upsert_finds_the_key_of_a_moved_row(catalog: Catalog) -> None:
    """Whichever of the two comes first: each key keeps one row."""
    of_two_specs(catalog)
    rule, rows = WantedRule(key=("id",), order_by=("ts",)), newer([1, 2, 7])
    assert upsert_rows(catalog, rows.slice(0, 1), [False], 1, rule).rows == 1
    moved(catalog)
    upsert_rows(catalog, rows.slice(1), [False, False], 2, rule)
    assert [row[0] for row in live_rows(catalog)] == [1, 2, 3, 4, 5, 6, 7]
    moved(catalog)
    assert [row[0] for row in live_rows(catalog)] == [1, 2, 3, 4, 5, 6, 7]
    assert old_files(catalog.load_table("db.t")) == []


def test_a_move_beside_an_upsert_is_dropped(catalog: Catalog) -> None:
    """The upsert has deleted a row of it meanwhile."""
    of_two_specs(catalog)
    rule = WantedRule(key=("id",), order_by=("ts",))
    with armed("files-written", once(lambda: upsert_rows(catalog, newer([1]), [False], 1, rule))):
        assert moved(catalog).conflicts
    assert [row[0] for row in live_rows(catalog)] == [1, 2, 3, 4, 5, 6]


def test_a_failed_merge_after_a_move_is_a_note(lake: SqlCatalog) -> None:
    """The report has the commit of the move, and the reason."""
    of_two_specs(lake)

    def fill_disk() -> None:
        if not old_files(lake.load_table("db.t")):
            raise OSError("no space")

    with armed("writing", fill_disk):
        report = moved(lake)
    assert (report.operations, len(report.notes)) == (("replace",), 1)
    assert "no space" in report.notes[0]
    assert old_files(lake.load_table("db.t")) == []
