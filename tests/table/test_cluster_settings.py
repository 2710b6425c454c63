"""By what a table is clustered: asked for, refused, and kept in the table for every writer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.table.update import AddSortOrderUpdate, SetDefaultSortOrderUpdate
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import (
    BooleanType,
    DoubleType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
)

from icesize import failpoints
from icesize.environment import Environment
from icesize.errors import ClusteringOff, CommitStateUnknown, PolicyError, TableError, UnsupportedTable
from icesize.planning.cluster_by import ClusterBy
from icesize.policy import SizePolicy
from icesize.table.cluster_settings import (
    ForgottenClusterBy,
    KeptClusterBy,
    forget_cluster_by,
    keep_cluster_by,
    off_because,
    resolve,
)
from icesize.table.commit import batch_commit
from icesize.table.state.handle import TableHandle
from tests.support.parquet_files import metadata_of, schema_of, spec_of
from tests.support.rest_faults import Fault, Moment
from tests.support.rest_server import MiniRest
from tests.support.tables import NOW_MS, SCHEMA, append, landed, make_table, write

COLUMNS = schema_of(
    ("user_id", LongType()), ("event_time", TimestampType()), ("kind", StringType()), ("score", DoubleType()),
    ("flag", BooleanType()), ("tags", ListType(50, StringType(), False)),
    ("attributes", MapType(51, StringType(), 52, StringType(), False)),
    ("place", StructType(NestedField(53, "city", StringType(), False))), ("a,b", LongType()),
)  # fmt: skip
MIB = 2**20
POLICY = SizePolicy(target_file_size_bytes=128 * MIB)


def metadata(properties: Mapping[str, str] | None = None, **partitioning: str) -> TableMetadata:
    """A new table of COLUMNS."""
    spec: PartitionSpec = spec_of(COLUMNS, **partitioning) if partitioning else UNPARTITIONED_PARTITION_SPEC
    return metadata_of(Path("/lake/t"), COLUMNS, spec, properties)


def resolved(properties: Mapping[str, str] | None = None, **arguments: Any) -> ClusterBy | None:
    return resolve(metadata(properties), POLICY, **arguments, table="db.t")


def test_nothing_says_by_what() -> None:
    """Neither an argument nor a property: the table is not clustered, whatever else is set."""
    assert resolved() is None
    assert resolved({"icesize.cluster.strategy": "zorder"}) is None


def test_properties_alone_are_enough() -> None:
    """Names in their order, sort unless told otherwise, a fifth of new bytes, 64 files of the target size."""
    by = resolved({"icesize.cluster.by": " event_time, user_id"})
    assert by == ClusterBy(("event_time", "user_id"), (2, 1), "sort", 64 * 128 * MIB, 0.2)
    by = resolved(
        {
            "icesize.cluster.by": "user_id",
            "icesize.cluster.strategy": " Hilbert",
            "icesize.cluster.new-share": "0.5",
            "icesize.cluster.full-set-bytes": str(2**30),
        }
    )
    assert by == ClusterBy(("user_id",), (1,), "hilbert", 2**30, 0.5)


@pytest.mark.parametrize("columns", [["score", "kind"], ("score", "kind"), "score,kind", " score , kind "])
def test_arguments_win_one_by_one(columns: Any) -> None:
    """Columns as names or as the property writes them; what no argument says the property does."""
    properties = {"icesize.cluster.by": "user_id", "icesize.cluster.strategy": "zorder"}
    by = resolved(properties, columns=columns)
    assert by == ClusterBy(("score", "kind"), (4, 3), "zorder", 64 * 128 * MIB)
    by = resolved(properties, columns=columns, strategy="sort")
    assert by == ClusterBy(("score", "kind"), (4, 3), "sort", 64 * 128 * MIB)
    by = resolved(properties, strategy="hilbert")
    assert by == ClusterBy(("user_id",), (1,), "hilbert", 64 * 128 * MIB)


def test_names_with_commas_are_columns_in_a_list() -> None:
    """Only where they are stored are they in the way."""
    assert resolved(columns=["a,b"]) == ClusterBy(("a,b",), (9,), "sort", 64 * 128 * MIB)


NO_BOUNDS = "manifests keep no bounds of it ({}), so clustered files could not be recognized"
NESTED = "it is nested, and manifests keep no bounds of nested columns"


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["usr_id"], " by 'usr_id': the table has no such column, the nearest is 'user_id'"),
        (["USER_ID"], " by 'USER_ID': the table has no such column, the nearest is 'user_id'"),
        (["user_id", "qqq"], " by 'qqq': the table has no such column"),
        (["user_id", ""], " by '': the table has no such column"),
        (["kind", "user_id", "kind"], " by 'kind': it is named twice"),
        (["tags"], " by 'tags': a list has no order"),
        (["attributes"], " by 'attributes': a map has no order"),
        (["place"], " by 'place': a struct has no order"),
        (["place.city"], f" by 'place.city': {NESTED}"),
        (["tags.element"], f" by 'tags.element': {NESTED}"),
        ([], ": no column is named"),
        ("", ": no column is named"),
    ],
)
def test_columns_that_cannot_be_clustered_by_are_named(columns: Any, message: str) -> None:
    """The sentence says which column and why, with the nearest name for one that is not there."""
    with pytest.raises(TableError) as refused:
        resolved(columns=columns)
    assert str(refused.value) == f"Cannot cluster 'db.t'{message}"


def test_a_column_that_the_property_names_is_traced_to_it() -> None:
    """Somebody has set a name that is none; without a name the table is called by its location."""
    with pytest.raises(ClusteringOff) as off:
        resolve(metadata({"icesize.cluster.by": "userid"}), POLICY)
    reason = "by 'userid' (in 'icesize.cluster.by'): the table has no such column, the nearest is 'user_id'"
    assert str(off.value) == f"Cannot cluster '/lake/t' {reason}"
    assert off_because(off.value) == f"{reason}; {WAY_ON}"
    assert off_because(PolicyError("'icesize.cluster.strategy' is wrong")) == "'icesize.cluster.strategy' is wrong"
    assert off_because(TableError("storage is away")) is None


WAY_ON = "run `icesize cluster TABLE` with --by and other columns, or with --forget"


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({"column.kind": "counts"}, "'write.metadata.metrics.column.kind' = 'counts'"),
        ({"column.kind": "none", "default": "full"}, "'write.metadata.metrics.column.kind' = 'none'"),
        ({"default": "none"}, "'write.metadata.metrics.default' = 'none'"),
        (
            {"max-inferred-column-defaults": "2"},
            "'write.metadata.metrics.max-inferred-column-defaults' = '2', set 'write.metadata.metrics.column.kind'",
        ),
    ],
)
def test_columns_without_bounds_are_refused(properties: dict[str, str], said: str) -> None:
    """The message names the property that keeps bounds out of manifests."""
    with pytest.raises(TableError) as refused:
        resolved({f"write.metadata.metrics.{key}": mode for key, mode in properties.items()}, columns=["kind"])
    assert str(refused.value) == f"Cannot cluster 'db.t' by 'kind': {NO_BOUNDS.format(said)}"


def test_columns_with_bounds_of_their_own_are_taken() -> None:
    """A mode of the column's own wins over a default that keeps nothing."""
    by = resolved(
        {"write.metadata.metrics.default": "none", "write.metadata.metrics.column.kind": "truncate(8)"},
        columns=["kind"],
    )
    assert by is not None
    assert by.columns == ("kind",)


def test_partition_columns_alone_are_refused() -> None:
    """In a partition all their values are equal; beside another column, or by another transform, they may stand."""
    table = metadata(kind="identity", flag="identity", user_id="bucket[4]")
    reason = "partition columns are equal in all rows of a partition; name others"
    with pytest.raises(TableError) as refused:
        resolve(table, POLICY, ["kind"], table="db.t")
    assert str(refused.value) == f"Cannot cluster 'db.t' by 'kind': {reason}"
    with pytest.raises(TableError) as refused:
        resolve(table, POLICY, ["kind", "flag"], table="db.t")
    assert str(refused.value) == f"Cannot cluster 'db.t' by 'kind', 'flag': {reason}"
    for columns in (["kind", "score"], ["user_id"]):
        by = resolve(table, POLICY, columns)
        assert by is not None
        assert list(by.columns) == columns


@pytest.mark.parametrize("strategy", ["zorder", "hilbert"])
def test_curves_take_one_to_four_columns(strategy: str) -> None:
    """One is the same as a sort; with five each of them would hardly narrow."""
    five = ["user_id", "event_time", "kind", "score", "flag"]
    assert resolved(columns=five) is not None
    for count in (1, 4):
        by = resolved(columns=five[:count], strategy=strategy)
        assert by is not None
        assert (len(by.columns), by.strategy) == (count, strategy)
    with pytest.raises(TableError) as refused:
        resolved(columns=five, strategy=strategy)
    assert str(refused.value) == (
        "Cannot cluster 'db.t' by 'user_id', 'event_time', 'kind', 'score', 'flag': "
        f"{strategy} takes at most 4 columns, as each one more makes all of them narrow less"
    )


@pytest.mark.parametrize("text", ["", " ", "user_id,", "user_id,,kind", ","])
def test_a_property_with_holes_is_refused(text: str) -> None:
    """A name is missing between two commas."""
    with pytest.raises(PolicyError) as refused:
        resolved({"icesize.cluster.by": text})
    assert str(refused.value) == (
        f"'icesize.cluster.by' ({text!r}) must be names of columns with commas between them, such as "
        "user_id,event_time; remove the property to stop clustering"
    )


def test_unknown_strategies_are_refused() -> None:
    """Whoever asks for one: the argument or the property is named, with what there is."""
    with pytest.raises(PolicyError) as refused:
        resolved(columns=["kind"], strategy="z-order")
    assert str(refused.value) == "'strategy' ('z-order') must be one of sort, zorder, hilbert"
    with pytest.raises(PolicyError) as refused:
        resolved({"icesize.cluster.strategy": "linear"}, columns=["kind"])
    assert str(refused.value) == "'icesize.cluster.strategy' ('linear') must be one of sort, zorder, hilbert"


@pytest.mark.parametrize("text", ["0", "-0.2", "1.01", "20", "20%", "nan", "inf", "1e-3", ""])
def test_a_share_is_a_part_of_one(text: str) -> None:
    """Percentages and what is no plain number are refused."""
    with pytest.raises(PolicyError) as refused:
        resolved({"icesize.cluster.new-share": text}, columns=["kind"])
    assert str(refused.value) == (
        f"'icesize.cluster.new-share' ({text!r}) must be > 0 and <= 1, such as 0.2: it is the share of a set's bytes "
        "that new files must have before they are clustered with it"
    )


@pytest.mark.parametrize("text", ["32 GiB", "-1", "1e10", str(128 * MIB - 1), ""])
def test_a_full_set_has_at_least_one_file(text: str) -> None:
    """A whole number without a unit, as all sizes of the policy."""
    with pytest.raises(PolicyError) as refused:
        resolved({"icesize.cluster.full-set-bytes": text}, columns=["kind"])
    assert str(refused.value) == (
        f"'icesize.cluster.full-set-bytes' ({text!r}) must be a whole number of bytes >= 'target-file-size-bytes' "
        "(134217728), e.g. 8589934592: a set would be full before it has one file"
    )


def test_limits_of_shares_and_sets_are_taken() -> None:
    """One file of the target size, and as many new bytes as the set has."""
    by = resolved(
        {"icesize.cluster.full-set-bytes": str(128 * MIB), "icesize.cluster.new-share": "1."}, columns=["kind"]
    )
    assert by is not None
    assert (by.sealed_set_bytes, by.new_share) == (128 * MIB, 1.0)


def test_tables_that_are_not_written_are_refused() -> None:
    """By the sentence that every write of such a table ends with."""
    metadata = metadata_of("/lake/t", SCHEMA).model_copy(update={"format_version": 4})
    with pytest.raises(UnsupportedTable, match="Cannot write format version 4: only 1 to 3 are supported"):
        resolve(metadata, POLICY, ["kind"])


def by_of(strategy: str, *columns: str) -> ClusterBy:
    """A layout of tables of the tests."""
    ids = tuple(SCHEMA.find_field(column).field_id for column in columns)
    return ClusterBy(columns, ids, strategy, 2**35)


def environment() -> Environment:
    return Environment(monotonic=lambda: 0.0, now_ms=lambda: NOW_MS, sleep=lambda seconds: None)


KEEP_COLUMNS = (
    "keep the columns it was sorted by ({}): Iceberg keeps all sort orders, and Iceberg 1.11 on Spark cannot "
    "write to a table once a column of one of them is dropped"
)


def keep(catalog: Catalog, by: ClusterBy) -> KeptClusterBy:
    """Have it stored, on the table as it is now, without waiting."""
    handle = TableHandle(catalog, ("db", "t"))
    return batch_commit.change(handle, handle.load(), keep_cluster_by(by, "run"), environment())


def outcome(kept: KeptClusterBy) -> tuple[bool, tuple[str, ...]]:
    """Whether that changed the table, and what is said of it."""
    return bool(kept.stored), kept.notes


def order_of(catalog: Catalog) -> list[str]:
    """The table's sort order, by columns."""
    return [f"{f.transform} {f.source_id} {f.direction} {f.null_order}" for f in order_fields(catalog)]


def order_fields(catalog: Catalog) -> list[SortField]:
    return catalog.load_table("db.t").metadata.sort_order().fields


def properties_of(catalog: Catalog) -> dict[str, str]:
    found = catalog.load_table("db.t").properties
    return {key.removeprefix("icesize.cluster."): v for key, v in found.items() if key.startswith("icesize.cluster.")}


def set_order(catalog: Catalog, *fields: SortField) -> None:
    """Somebody else gives the table a sort order."""
    table = catalog.load_table("db.t")
    order_id = max(order.order_id for order in table.metadata.sort_orders) + 1
    updates = AddSortOrderUpdate(sort_order=SortOrder(*fields, order_id=order_id)), SetDefaultSortOrderUpdate()
    catalog.commit_table(table, (), updates)


def ascending(field_id: int) -> SortField:
    return SortField(field_id, IdentityTransform(), SortDirection.ASC, NullOrder.NULLS_FIRST)


def versions(catalog: Catalog) -> int:
    """How many metadata files came before the newest."""
    return len(catalog.load_table("db.t").metadata.metadata_log)


@pytest.mark.parametrize("version", ["1", "2"])
def test_a_sort_becomes_properties_and_sort_order(catalog: Catalog, version: str) -> None:
    """One swap brings both; what is then written is sorted and says so; a second time there is nothing to do."""
    make_table(catalog, properties={"format-version": version})
    by = by_of("sort", "ts", "id")
    assert outcome(keep(catalog, by)) == (True, ())
    table = catalog.load_table("db.t")
    assert properties_of(catalog) == {"by": "ts,id", "field-ids": "3:ts,1:id"}
    assert resolve(table.metadata, SizePolicy(target_file_size_bytes=2**29), table="db.t") == by
    assert order_of(catalog) == ["identity 3 ASC NULLS FIRST", "identity 1 ASC NULLS FIRST"]
    assert (table.metadata.default_sort_order_id, versions(catalog)) == (1, 1)
    file = write(table, [3, 1, 2])
    assert file.sort_order_id == 1
    assert outcome(keep(catalog, by)) == (False, ())
    assert versions(catalog) == 1


@pytest.mark.parametrize("version", ["1", "2"])
def test_to_a_curve_and_back(catalog: Catalog, version: str) -> None:
    """A curve takes back the order that the sort has put there; the next sort finds its order again by its number."""
    make_table(catalog, properties={"format-version": version})
    sort, curve = by_of("sort", "id", "ts"), by_of("zorder", "id", "ts")
    keep(catalog, sort)
    assert outcome(keep(catalog, curve)) == (True, (KEEP_COLUMNS.format("id, ts"),))
    assert properties_of(catalog) == {"by": "id,ts", "field-ids": "1:id,3:ts", "strategy": "zorder"}
    assert order_of(catalog) == []
    assert catalog.load_table("db.t").metadata.default_sort_order_id == 0
    assert outcome(keep(catalog, curve)) == (False, ())
    assert outcome(keep(catalog, sort)) == (True, ())
    assert properties_of(catalog) == {"by": "id,ts", "field-ids": "1:id,3:ts", "strategy": "sort"}
    table = catalog.load_table("db.t")
    assert (table.metadata.default_sort_order_id, len(table.metadata.sort_orders), versions(catalog)) == (1, 2, 3)
    other = by_of("sort", "ts")
    assert outcome(keep(catalog, other)) == (True, (KEEP_COLUMNS.format("id, ts"),))
    assert order_of(catalog) == ["identity 3 ASC NULLS FIRST"]


def test_a_renamed_column_hides_no_sort_order(lake: SqlCatalog) -> None:
    """The properties name the columns as they were; the order that they brought goes all the same."""
    make_table(lake, {})
    keep(lake, by_of("sort", "id", "ts"))
    lake.load_table("db.t").update_schema().rename_column("id", "number").commit()
    curve = ClusterBy(("number", "ts"), (1, 3), "hilbert", 2**35)
    assert outcome(keep(lake, curve)) == (True, (KEEP_COLUMNS.format("number, ts"),))
    stored = {"by": "number,ts", "field-ids": "1:number,3:ts", "strategy": "hilbert"}
    assert (order_of(lake), properties_of(lake)) == ([], stored)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ([ascending(2)], "kind ASC NULLS FIRST"),
        ([ascending(1), ascending(3)], "id ASC NULLS FIRST, ts ASC NULLS FIRST"),
        ([SortField(1, IdentityTransform(), SortDirection.DESC, NullOrder.NULLS_LAST)], "id DESC NULLS LAST"),
        ([SortField(1, BucketTransform(4), SortDirection.ASC, NullOrder.NULLS_LAST)], "bucket[4](id) ASC NULLS LAST"),
    ],
)
def test_a_sort_order_of_somebody_else_stays_beside_a_curve(
    lake: SqlCatalog, fields: list[SortField], words: str
) -> None:
    """It is told, each time; a sort that is asked for takes its place, and tells that too."""
    make_table(lake)
    keep(lake, by_of("sort", "id"))
    set_order(lake, *fields)
    curve = by_of("zorder", "id", "ts")
    note = f"the table's sort order ({words}) stays, as icesize has not set it: each writer sorts its files by it"
    assert outcome(keep(lake, curve)) == (True, (note,))
    assert order_fields(lake) == fields
    assert outcome(keep(lake, curve)) == (False, (note,))
    sort = by_of("sort", "ts")
    note = f"the table's sort order ({words}) was replaced by (ts ASC NULLS FIRST)"
    names = ", ".join(lake.load_table("db.t").schema().find_column_name(field.source_id) or "" for field in fields)
    assert outcome(keep(lake, sort)) == (True, (note, KEEP_COLUMNS.format(names)))
    assert order_fields(lake) == [ascending(3)]


def test_a_table_that_was_created_with_a_sort_order_can_lose_it(lake: SqlCatalog) -> None:
    """Such a table has no unsorted order, which is added then; the properties say whose the order is."""
    properties = {"icesize.cluster.by": "kind", "icesize.cluster.field-ids": "2:kind"}
    lake.create_table("db.t", SCHEMA, sort_order=SortOrder(ascending(2)), properties=properties)
    curve = by_of("zorder", "id", "ts")
    assert outcome(keep(lake, curve)) == (True, (KEEP_COLUMNS.format("kind"),))
    table = lake.load_table("db.t")
    assert (order_of(lake), table.metadata.default_sort_order_id, len(table.metadata.sort_orders)) == ([], 0, 2)


def test_properties_that_mean_the_same_are_left(lake: SqlCatalog) -> None:
    """Spaces and large letters are no change; the other settings of clustering are only read."""
    spelt = {"by": "id ,ts", "strategy": "ZOrder", "new-share": "0.5", "full-set-bytes": str(2**40)}
    make_table(lake, properties={f"icesize.cluster.{key}": value for key, value in spelt.items()})
    ids = "icesize.cluster.field-ids=1:id,3:ts"
    assert keep(lake, by_of("zorder", "id", "ts")).stored == (ids,)
    assert keep(lake, by_of("zorder", "id", "ts")).stored == ()
    assert keep(lake, by_of("hilbert", "id", "ts")).stored == ("icesize.cluster.strategy=hilbert",)
    assert properties_of(lake) == {**spelt, "field-ids": "1:id,3:ts", "strategy": "hilbert"}


@pytest.mark.parametrize("name", ["a,b", " a", "a "])
def test_names_that_the_property_cannot_hold_are_refused(lake: SqlCatalog, name: str) -> None:
    """They would be read back as other columns; where the property already means these, its older names stay."""
    make_table(lake, {}).update_schema().rename_column("kind", name).commit()
    by = ClusterBy(("id", name), (1, 2), "sort", 1)
    with pytest.raises(TableError) as refused:
        keep(lake, by)
    assert str(refused.value) == (
        f"Cannot keep sort by id, {name} in 'icesize.cluster.by': it cannot hold names with commas, or with "
        "spaces at an end"
    )
    lake.load_table("db.t").update_schema().rename_column(name, "kind").commit()
    keep(lake, by_of("sort", "id", "kind"))
    lake.load_table("db.t").update_schema().rename_column("kind", name).commit()
    assert outcome(keep(lake, by)) == (False, ())
    assert properties_of(lake) == {"by": "id,kind", "field-ids": "1:id,2:kind"}


def test_a_column_that_went_meanwhile_is_refused(lake: SqlCatalog) -> None:
    """Another one of that name is not the one that was asked for."""
    table = make_table(lake, {})
    with table.update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("ts")
    with lake.load_table("db.t").update_schema() as update:
        update.add_column("ts", TimestampType())
    with pytest.raises(TableError) as refused:
        keep(lake, by_of("sort", "id", "ts"))
    assert str(refused.value) == "Cannot cluster 'db.t' by 'ts': the column was renamed or dropped during the run"
    assert (properties_of(lake), order_of(lake)) == ({}, [])


def rivalled(mini: MiniRest, by: ClusterBy, rival: Any) -> KeptClusterBy:
    """What becomes of it when somebody else changes the table just before the swap."""
    mini.before_swap = lambda: rival(mini.catalog("rival"))
    return keep(mini.catalog("lake"), by)


def set_properties(catalog: Catalog, properties: dict[str, str]) -> Table:
    with catalog.load_table("db.t").transaction() as change:
        change.set_properties(properties)
    return catalog.load_table("db.t")


def test_properties_of_others_survive(mini: MiniRest) -> None:
    """Another writer sets one in between: both are there, after one swap."""
    catalog = mini.catalog("lake")
    make_table(catalog)
    by = by_of("sort", "id")
    result = rivalled(mini, by, lambda rival: set_properties(rival, {"owner": "me", "icesize.cluster.by": "kind"}))
    assert outcome(result) == (True, ())
    assert catalog.load_table("db.t").properties["owner"] == "me"
    assert (properties_of(catalog), len(order_of(catalog)), len(mini.posts)) == (
        {"by": "id", "field-ids": "1:id"},
        1,
        2,
    )


def test_a_rival_append_is_no_conflict(mini: MiniRest) -> None:
    """Nothing of the table's files is asserted."""
    catalog = mini.catalog("lake")
    make_table(catalog)
    assert rivalled(mini, by_of("sort", "id"), lambda rival: append(rival, [1])).stored
    landed(catalog, [1])
    assert (properties_of(catalog), len(mini.posts)) == ({"by": "id", "field-ids": "1:id"}, 2)


def test_a_rival_sort_order_is_seen(mini: MiniRest) -> None:
    """The swap asserts the order that it was staged on; the next attempt leaves the rival's where it is."""
    catalog = mini.catalog("lake")
    make_table(catalog)
    keep(catalog, by_of("sort", "id"))
    curve = by_of("zorder", "id", "ts")
    result = rivalled(mini, curve, lambda rival: set_order(rival, ascending(2)))
    note = (
        "the table's sort order (kind ASC NULLS FIRST) stays, as icesize has not set it: each writer sorts its files "
        "by it"
    )
    assert outcome(result) == (True, (note,))
    assert order_fields(catalog) == [ascending(2)]
    assert properties_of(catalog) == {"by": "id,ts", "field-ids": "1:id,3:ts", "strategy": "zorder"}


def test_a_rival_that_takes_the_number_of_the_order_is_seen(lake: SqlCatalog) -> None:
    """Another writer adds an order without making it the default: PyIceberg calls that no conflict, and ours lands."""
    make_table(lake)
    rivals = [ascending(2)]

    def rival() -> None:
        if rivals:
            taken = AddSortOrderUpdate(sort_order=SortOrder(rivals.pop(), order_id=1))
            lake.commit_table(lake.load_table("db.t"), (), (taken,))

    by = by_of("sort", "id")
    with failpoints.armed("before-swap", rival):
        assert outcome(keep(lake, by)) == (True, ())
    assert lake.load_table("db.t").metadata.default_sort_order_id == 2
    assert order_fields(lake) == [ascending(1)]


def test_a_column_that_a_rival_renames_is_refused(mini: MiniRest) -> None:
    """The swap asserts the schema: no property names a column that is not there."""
    catalog = mini.catalog("lake")
    make_table(catalog, {})

    def rename(rival: Catalog) -> None:
        rival.load_table("db.t").update_schema().rename_column("id", "number").commit()

    with pytest.raises(TableError, match="by 'id': the column was renamed or dropped during the run"):
        rivalled(mini, by_of("sort", "id"), rename)
    assert (properties_of(catalog), order_of(catalog)) == ({}, [])


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", [409, 500, 503, "reset", "truncated"])
def test_a_spoiled_answer_lands_it_once(mini: MiniRest, kind: int | str, when: Moment) -> None:
    """Landed or not, the table is as it was asked for in the end, with one sort order more."""
    catalog = mini.catalog("lake")
    make_table(catalog)
    append(catalog, [1])
    mini.fail_next_commit(Fault(kind, when))
    by = by_of("sort", "id", "ts")
    assert outcome(keep(catalog, by)) == (True, ())
    table = landed(catalog, [1])
    assert (properties_of(catalog), len(table.metadata.sort_orders)) == ({"by": "id,ts", "field-ids": "1:id,3:ts"}, 2)
    assert order_fields(catalog) == [ascending(1), ascending(3)]


def test_an_unknown_outcome_says_where_to_look(mini: MiniRest) -> None:
    """The catalog never answers: the message names the property."""
    catalog = mini.catalog("lake")
    make_table(catalog)
    mini.fail_next_commit(*[Fault(503)] * 10)
    with pytest.raises(CommitStateUnknown, match=r"properties have icesize\.cluster\.by=id,ts; storing it again is sa"):
        keep(catalog, by_of("sort", "id", "ts"))
    assert properties_of(catalog) == {}


def wanted(lake: SqlCatalog) -> ClusterBy | None:
    """The layout that the table itself says."""
    return resolve(lake.load_table("db.t").metadata, SizePolicy(target_file_size_bytes=2**29), table="lake.db.t")


@pytest.mark.parametrize("strategy", ["sort", "zorder"])
def test_a_renamed_column_is_the_same_column(lake: SqlCatalog, strategy: str) -> None:
    """Its layout has the same key, so files stay clustered; nobody is misled by who gets its name, and the next one to
    store the layout stores today's names."""
    make_table(lake, {})
    by = by_of(strategy, "id", "ts")
    keep(lake, by)
    lake.load_table("db.t").update_schema().rename_column("id", "number").commit()
    lake.load_table("db.t").update_schema().add_column("id", LongType()).commit()
    renamed = ClusterBy(("number", "ts"), (1, 3), strategy, 2**35)
    assert wanted(lake) == renamed
    assert renamed.key == by.key
    assert outcome(keep(lake, renamed)) == (True, ())
    assert (properties_of(lake)["by"], properties_of(lake)["field-ids"]) == ("number,ts", "1:number,3:ts")
    assert wanted(lake) == renamed


def test_a_sort_order_of_others_says_nothing_of_names_set_by_hand(lake: SqlCatalog) -> None:
    """The property names a column that the table's own order does not have."""
    make_table(lake, properties={"icesize.cluster.by": "id"})
    set_order(lake, ascending(3))
    assert wanted(lake) == by_of("sort", "id")


@pytest.mark.parametrize("ids", ["", "1", "x:kind", "1:id", "2:kind,3:ts", ":kind"])
def test_names_set_by_hand_are_not_held_to_older_ids(lake: SqlCatalog, ids: str) -> None:
    """The ids belong to the names beside them; what nobody can read says nothing."""
    make_table(lake, properties={"icesize.cluster.by": "kind, ts", "icesize.cluster.field-ids": ids})
    assert wanted(lake) == by_of("sort", "kind", "ts")


@pytest.mark.parametrize("another", [False, True])
def test_a_dropped_column_ends_the_clustering(lake: SqlCatalog, another: bool) -> None:
    """The sentence names it and its field, and says so when another column has its name now."""
    make_table(lake, {})
    keep(lake, by_of("zorder", "id", "ts"))
    with lake.load_table("db.t").update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("ts")
    if another:
        lake.load_table("db.t").update_schema().add_column("ts", TimestampType()).commit()
    with pytest.raises(ClusteringOff) as off:
        wanted(lake)
    said = ", and its name is another column's now" if another else ""
    reason = f"column 'ts' (field 3) was dropped{said}; {WAY_ON}"
    assert (str(off.value), off_because(off.value)) == (f"Cannot cluster 'lake.db.t': {reason}", reason)
    assert (off.value.column, off.value.table) == ("ts", "lake.db.t")


def forget(catalog: Catalog) -> ForgottenClusterBy:
    """Have it taken back, on the table as it is now, without waiting."""
    handle = TableHandle(catalog, ("db", "t"))
    return batch_commit.change(handle, handle.load(), forget_cluster_by("run"), environment())


def test_what_was_stored_can_be_taken_back(lake: SqlCatalog) -> None:
    """Properties and sort order go in one swap, what people have set stays; a second time there is nothing to forget,
    and columns that were dropped hinder nobody."""
    make_table(lake, {}, properties={"icesize.cluster.new-share": "0.5", "owner": "me"})
    assert keep(lake, by_of("sort", "id", "ts")).sentences == (
        "stored in the table: icesize.cluster.by=id,ts, icesize.cluster.field-ids=1:id,3:ts, sort order "
        "(id ASC NULLS FIRST, ts ASC NULLS FIRST); `icesize cluster TABLE --forget` removes them",
    )
    removed = ("icesize.cluster.by=id,ts", "icesize.cluster.field-ids=1:id,3:ts")
    before = versions(lake)
    order = "sort order (id ASC NULLS FIRST, ts ASC NULLS FIRST)"
    assert forget(lake) == ForgottenClusterBy((*removed, order), (KEEP_COLUMNS.format("id, ts"),))
    assert (properties_of(lake), order_of(lake), versions(lake)) == ({"new-share": "0.5"}, [], before + 1)
    assert lake.load_table("db.t").properties["owner"] == "me"
    with pytest.raises(TableError) as refused:
        forget(lake)
    assert str(refused.value) == ("Cannot forget the clustering of 'db.t': the table has no property of clustering")
    keep(lake, by_of("zorder", "id", "ts"))
    with lake.load_table("db.t").update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("ts")
    assert forget(lake) == ForgottenClusterBy((*removed, "icesize.cluster.strategy=zorder"))


def test_a_sort_order_of_somebody_else_is_not_forgotten(lake: SqlCatalog) -> None:
    """It is told that it stays; a renamed column does not make ours somebody else's."""
    make_table(lake, {})
    keep(lake, by_of("sort", "id"))
    set_order(lake, ascending(3))
    [note] = forget(lake).notes
    assert note.startswith("the table's sort order (ts ASC NULLS FIRST) stays, as icesize has not set it")
    assert order_fields(lake) == [ascending(3)]
    keep(lake, by_of("sort", "id"))
    lake.load_table("db.t").update_schema().rename_column("id", "number").commit()
    assert forget(lake).removed[-1] == "sort order (number ASC NULLS FIRST)"
    assert order_fields(lake) == []


@pytest.mark.parametrize("when", ["before", "after"])
def test_forgetting_survives_a_spoiled_answer(mini: MiniRest, when: Moment) -> None:
    """Landed or not, it is forgotten once, and the answer tells what was."""
    catalog = mini.catalog("lake")
    make_table(catalog)
    keep(catalog, by_of("sort", "id"))
    mini.fail_next_commit(Fault(503, when))
    assert forget(catalog).removed[0] == "icesize.cluster.by=id"
    assert (properties_of(catalog), order_of(catalog)) == ({}, [])


def test_misspelt_properties_are_told_with_the_nearest(lake: SqlCatalog) -> None:
    """As keys of the policy are; the table is worked on, and known ones are no matter for a sentence."""
    spelt = {"by": "id", "strategie": "zorder", "newshare": "0.5", "full-set-bytes": str(2**40), "field-ids": "1:id"}
    make_table(lake, properties={f"icesize.cluster.{key}": value for key, value in spelt.items()})
    assert TableHandle(lake, ("db", "t")).load().warnings == tuple(
        f"ignored table property 'icesize.cluster.{key}': this version knows no such key; the nearest is "
        f"'icesize.cluster.{near}'"
        for key, near in (("newshare", "new-share"), ("strategie", "strategy"))
    )
