"""`where` takes partitions that match as a whole, and counts those that match in part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import BooleanExpression, EqualTo, GreaterThanOrEqual
from pyiceberg.expressions.parser import parse
from pyiceberg.expressions.visitors import expression_evaluator
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.typedef import Record
from pyiceberg.types import DateType, LongType, NestedField, StringType, TimestamptzType

import icesize
from icesize.errors import TableError
from icesize.planning.files import Layout
from icesize.sized_table import SizedTable
from icesize.table.manifests.manifest_lists import manifests_in
from icesize.table.state.layouts import LayoutReader
from icesize.table.state.where import Where, parsed, partition_filter
from tests.support.tables import LIMIT, CountingIO, append, layout_of, make_table, request_on, run, write


def reference(kind: Any, column: str, value: str) -> BooleanExpression:
    """An expression object, as a caller may pass instead of text."""
    expression: BooleanExpression = kind(column, value)
    return expression


def selected(lake: SqlCatalog, where: Where) -> tuple[set[str], int]:
    """Labels of the chosen partitions, and how many were left out as matching in part."""
    table = lake.load_table("db.t")
    chosen, partly = partition_filter(table.metadata, where).select(layout_of(table))
    return {p.label for p in chosen.partitions.values()}, partly


def filled(lake: SqlCatalog, transforms: Mapping[str, str], rows: list[tuple[int, str]]) -> None:
    make_table(lake, transforms)
    table = lake.load_table("db.t")
    run(lake, request_on(table, [write(table, [i], kind) for i, kind in rows]), table)


@pytest.mark.parametrize(
    ("where", "chosen"),
    [
        (None, {"a", "b", "c"}),
        ("kind = 'a'", {"a"}),
        ("kind != 'a'", {"b", "c"}),
        ("kind in ('a', 'c')", {"a", "c"}),
        ("kind >= 'b'", {"b", "c"}),
        ("kind = 'a' or kind = 'b'", {"a", "b"}),
        ("not kind = 'a'", {"b", "c"}),
        ("kind is null", set()),
        (reference(EqualTo, "kind", "b"), {"b"}),
    ],
)
def test_identity_partitions_match_exactly(lake: SqlCatalog, where: Where, chosen: set[str]) -> None:
    """Over an identity column a partition matches as a whole or not at all."""
    filled(lake, {"kind": "identity"}, [(1, "a"), (2, "b"), (3, "c")])
    assert selected(lake, where) == ({f"kind={k}" for k in chosen}, 0)


@pytest.mark.parametrize(
    ("where", "chosen", "partly"),
    [
        ("ts >= '1970-01-02T00:00:00'", {"ts_day=1970-01-02", "ts_day=1970-01-03"}, 0),
        ("ts >= '1970-01-02T01:00:00'", {"ts_day=1970-01-03"}, 1),
        ("ts < '1970-01-02T00:00:00'", {"ts_day=1970-01-01"}, 0),
        ("ts >= '1970-01-02' and not ts >= '1970-01-03'", {"ts_day=1970-01-02"}, 0),
        ("ts_day = '1970-01-02'", {"ts_day=1970-01-02"}, 0),
        (reference(GreaterThanOrEqual, "ts_day", "1970-01-02"), {"ts_day=1970-01-02", "ts_day=1970-01-03"}, 0),
        ("id = 7", set(), 3),
        ("ts >= '1970-01-02T00:00:00' and id > 0", set(), 2),
    ],
)
def test_days_are_taken_when_wholly_covered(lake: SqlCatalog, where: Where, chosen: set[str], partly: int) -> None:
    """A filter over the source column takes whole days; a day cut by it, or by another column, is left out."""
    filled(lake, {"ts": "day"}, [(1, "a"), (25, "a"), (49, "a")])
    assert selected(lake, where) == (chosen, partly)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("at >= '2026-11-04'", "at >= '2026-11-04T00:00:00+00:00'"),
        ("at < '2026-11-04T10:30:00'", "at < '2026-11-04T10:30:00+00:00'"),
        ("at < '2026-11-04 10:30:00.5'", "at < '2026-11-04T10:30:00.500000+00:00'"),
        ("at != '2026-11-04T10:30:00+02:00'", "at != '2026-11-04T08:30:00+00:00'"),
        (
            "not (at in ('2026-11-04', '2026-11-05') or id = 3)",
            "at not in ('2026-11-04T00:00:00+00:00', '2026-11-05T00:00:00+00:00') and id != 3",
        ),
        ("day = '2026-11-04' and name = '2026-11-04'", "name = '2026-11-04' and day = '2026-11-04'"),
    ],
)
def test_times_are_utc_unless_they_say_their_zone(written: str, meant: str) -> None:
    """As `--as-of` takes them: a date is its midnight. Dates and texts stay what they are."""
    kinds = {"at": TimestamptzType(), "id": LongType(), "day": DateType(), "name": StringType()}
    schema = Schema(*(NestedField(i, name, kind) for i, (name, kind) in enumerate(kinds.items(), 1)))
    rows = [
        Record(micros, number, 20_761, "2026-11-04")
        for micros in (
            1_793_750_399_999_999,
            1_793_750_400_000_000,
            1_793_780_999_999_999,
            1_793_781_000_000_000,
            1_793_836_800_000_000,
        )
        for number in (3, 4)
    ]
    ours, theirs = (
        expression_evaluator(schema, each, case_sensitive=True) for each in (parsed(written, schema), parse(meant))
    )
    assert [ours(row) for row in rows] == [theirs(row) for row in rows]
    assert len({ours(row) for row in rows}) == 2 or "day" in written


def test_buckets_are_never_wholly_covered_by_a_value(lake: SqlCatalog) -> None:
    """One id shares its bucket with others: nothing is chosen; the bucket itself can be named."""
    filled(lake, {"id": "bucket[2]"}, [(i, "a") for i in range(8)])
    assert selected(lake, "id = 3") == (set(), 1)
    assert selected(lake, "id_bucket = 0") == ({"id_bucket=0"}, 0)


def test_manifests_out_of_range_are_not_read(lake: SqlCatalog) -> None:
    """Bounds in the manifest list rule out manifests without opening them; the layout then lacks their partitions."""
    make_table(lake)
    append(lake, [1], "a")
    table = append(lake, [2], "b")
    selection = partition_filter(table.metadata, "kind = 'b'")
    layout: Layout = LayoutReader(LIMIT).read(table.metadata, table.io, selection.may_hold)
    assert [p.label for p in layout.partitions.values()] == ["kind=b"]


def test_a_known_layout_is_selected_from(lake: SqlCatalog) -> None:
    """After a whole reading, a filter opens no manifest and selects the same facts from what is known."""
    make_table(lake)
    append(lake, [1], "a")
    table = append(lake, [2], "b")
    selection, reader, io = partition_filter(table.metadata, "kind = 'b'"), LayoutReader(LIMIT), CountingIO()
    expected = selection.select(LayoutReader(LIMIT).read(table.metadata, table.io, selection.may_hold))
    reader.read(table.metadata, io)
    before = len(io.manifests)
    layout = reader.read(table.metadata, io, selection.may_hold)
    assert (layout.complete, len(layout.partitions), len(io.manifests) - before) == (True, 2, 0)
    chosen, partly = selection.select(layout)
    assert (chosen.partitions, partly) == (expected[0].partitions, expected[1])


class NotedIO(CountingIO):
    """Storage that notes the manifests that are opened through any of its objects."""

    noted: ClassVar[list[str]] = []

    def __init__(self, properties: Mapping[str, str]) -> None:
        super().__init__()
        self.properties = dict(properties)
        self.opened = self.noted


def _clustering(table: SizedTable, where: Where) -> object:
    return table.plan_clustering(["id"], where=where)


@pytest.mark.parametrize("call", [SizedTable.inspect, SizedTable.plan, _clustering])
@pytest.mark.parametrize("where", ["ts >= '1970-01-02' and ts < '1970-01-03'", "ts_day = '1970-01-02'"])
def test_calls_with_a_filter_open_no_other_manifests(
    lake: SqlCatalog, call: Callable[[SizedTable, Where], object], where: Where
) -> None:
    """Whatever is planned for one day reads the manifest of that day alone."""
    make_table(lake, {"ts": "day"})
    for day in range(3):
        table = append(lake, [24 * day + 1])
    head = table.metadata.current_snapshot()
    (expected,) = (
        m.manifest_path
        for m in manifests_in(head, table.io, table.metadata.specs())
        if m.added_snapshot_id == _second(table)
    )
    NotedIO.noted.clear()
    lake.properties["py-io-impl"] = f"{__name__}.NotedIO"
    call(icesize.open(None, "db.t", catalog=lake), where)
    assert set(NotedIO(lake.properties).manifests) == {expected}


def _second(table: Table) -> int:
    """The id of the second snapshot."""
    return table.metadata.snapshots[1].snapshot_id


def test_partition_fields_of_one_spec_leave_the_others_out(lake: SqlCatalog) -> None:
    """Named fields that an older spec lacks: its partitions may match, so they are counted and left out."""
    filled(lake, {"kind": "identity"}, [(1, "a")])
    with lake.load_table("db.t").update_spec() as update:
        update.add_field("id", "bucket[2]", "id_bucket")
    append_in_new_spec(lake)
    chosen, partly = selected(lake, "id_bucket = 0")
    assert partly == 1
    assert all("id_bucket=0" in label for label in chosen)
    assert len(chosen) == 1


def append_in_new_spec(lake: SqlCatalog) -> None:
    table = lake.load_table("db.t")
    run(lake, request_on(table, [write(table, [i], "b") for i in range(4)]), table)


@pytest.mark.parametrize(
    ("where", "sentence"),
    [
        ("kind == ==", "Cannot read the filter from the mark on"),
        ("nope = 1", r"Cannot filter: .*nope.*columns are id, kind, ts, partition fields are kind"),
        ("KIND = 'a'", r"Cannot filter: .*KIND"),
        ("ts = 'yesterday'", "Cannot filter"),
    ],
)
def test_what_is_no_filter_is_told(lake: SqlCatalog, where: str, sentence: str) -> None:
    """Text that cannot be parsed, and columns that do not exist, name what does."""
    table = make_table(lake)
    with pytest.raises(TableError, match=sentence):
        partition_filter(table.metadata, where)
