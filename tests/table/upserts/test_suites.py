"""Upserts, judged by cases of other projects' suites: their events, and the rows that they expect.

| project (Apache-2.0) | suite |
|---|---|
| Apache Spark | the random events of `AutoCdcRandomCdcTestMixin`, the promise of `AutoCdcOutOfOrderConvergenceSuite` |
| Apache Iceberg | `TestFlinkIcebergSinkV2Base`, `TestConvertEqualityDeletes` |
| Apache Flink | the changes of `debezium-data-schema-exclude.txt`, as `DebeziumJsonFileSystemITCase` lists them |

Events and expected rows are theirs; the code is not.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFileContent
from pyiceberg.schema import Schema
from pyiceberg.types import BooleanType, FloatType, IntegerType, LongType, NestedField, StringType

from icesize.report import Report
from icesize.table.upserts.settings import WantedRule
from tests.support.delete_files import delete_equal, delete_positions
from tests.support.machine import Reader
from tests.support.tables import (
    append,
    commit_built,
    live_paths,
    make_table,
    merged,
    overwritten,
    request_on,
    run,
    small_files,
    sqlite_catalog,
    theirs,
)
from tests.support.upserts import events_of, live_rows, upsert_rows
from tests.support.v3_tables import as_v3

VERSIONS = pytest.mark.parametrize("version", [2, 3])


def made(catalog: Catalog, version: int, name: str = "db.t") -> Catalog:
    """The catalog, whose table has this format version."""
    if version == 3:
        as_v3(catalog, name)
    return catalog


# ---- Apache Spark: AUTO CDC ----

KEYS, MOST_EVENTS, BATCHES = 5, 80, 8
"""Keys, most different events of a key, and batches: the defaults of the suite."""
DELETES, DUPLICATES, REPEATS, NULLS = 0.2, 0.15, 0.15, 0.25
"""Shares of deletes, of events that come twice, of upserts that repeat the row before, and of NULLs."""
COLORS = ("red", "blue", "green", "yellow")


class SourceRow(NamedTuple):
    """An event of the suite."""

    key: int
    name: str | None
    amount: int | None
    active: bool | None
    sequence: int
    is_delete: bool


TARGET = Schema(
    NestedField(1, "key", IntegerType(), required=True), NestedField(2, "name", StringType()),
    NestedField(3, "amount", IntegerType()), NestedField(4, "active", BooleanType()),
    NestedField(5, "sequence", LongType(), required=True),
)  # fmt: skip


def stream(rng: random.Random) -> list[SourceRow]:
    """Random events in the order of their sequence numbers; some come twice."""
    events = list[SourceRow]()
    for key in range(KEYS):
        newest: SourceRow | None = None
        for _ in range(rng.randint(1, MOST_EVENTS)):
            sequence = events[-1].sequence + 1 if events else 0
            newest = _event(rng, key, sequence, newest)
            events += [newest] * (2 if rng.random() < DUPLICATES else 1)
    return events


def _event(rng: random.Random, key: int, sequence: int, before: SourceRow | None) -> SourceRow:
    is_delete = rng.random() < DELETES
    if not is_delete and before is not None and not before.is_delete and rng.random() < REPEATS:
        return before._replace(sequence=sequence)

    def or_null(value: object) -> object:
        return None if rng.random() < NULLS else value

    values = or_null(rng.choice(COLORS)), or_null(rng.randrange(100)), or_null(rng.random() < 0.5)
    return SourceRow(key, *values, sequence, is_delete)  # type: ignore[arg-type]


def shuffled(events: Sequence[SourceRow], rng: random.Random) -> list[list[SourceRow]]:
    """The events in random order as batches."""
    order = rng.sample(events, len(events))
    return [order[i * len(order) // BATCHES : (i + 1) * len(order) // BATCHES] for i in range(BATCHES)]


def with_last_deletes_last(batches: Sequence[Sequence[SourceRow]]) -> list[list[SourceRow]]:
    """The batches; a key whose newest event is a delete gets it in the batch of its last events.

    Without a memory of deletes, an older event that comes later adds the row again.
    """
    last_batch = {event.key: number for number, batch in enumerate(batches) for event in batch}
    events = sorted((event for batch in batches for event in batch), key=lambda event: event.sequence)
    newest = {event.key: event for event in events}
    gone = [event for event in events if event.is_delete and event == newest[event.key]]
    moved = [[event for event in batch if event not in gone] for batch in batches]
    for event in gone:
        moved[last_batch[event.key]].append(event)
    return moved


def run_auto_cdc(
    catalog: Catalog, table: str, batches: Iterable[Sequence[SourceRow]], tombstones: str | None
) -> list[SourceRow]:
    """The rows of a new table after the batches, as another reader sees them."""
    catalog.create_table(table, TARGET)
    rule = WantedRule(key="key", order_by="sequence", tombstones=tombstones)
    arrow = TARGET.as_arrow()
    for number, batch in enumerate(batches):
        rows = pa.table({name: [getattr(event, name) for event in batch] for name in arrow.names}, schema=arrow)
        upsert_rows(catalog, rows, [event.is_delete for event in batch], number, rule, table)
    rows = catalog.load_table(table).scan().to_arrow().to_pylist()
    return sorted(SourceRow(**row, is_delete=False) for row in rows)


@pytest.mark.parametrize("tombstones", [None, "2 days"])
@pytest.mark.parametrize("seed", range(6))
def test_random_events_converge(seed: int, tombstones: str | None, tmp_path: Path) -> None:
    """Events in any order and in any batches leave the rows that the sorted events leave in one batch.

    Without tombstones, no event may come in a later batch than a newer delete of its key.
    """
    rng, catalog = random.Random(seed), sqlite_catalog(tmp_path)
    events = stream(rng)
    batches = shuffled(events, rng)
    expected = {event.key: event for event in events}

    in_order = run_auto_cdc(catalog, "db.sorted", [events], tombstones)
    out_of_order = batches if tombstones else with_last_deletes_last(batches)

    assert in_order == sorted(event for event in expected.values() if not event.is_delete)
    assert run_auto_cdc(catalog, "db.shuffled", out_of_order, tombstones) == in_order


# ---- Apache Iceberg: the sinks of Flink ----


Change = tuple[str, int, str]
"""A change of Flink: its kind (`+I`, `-U`, `+U`, `-D`), id and data."""
DataRow = tuple[int, str]


def commit_changes(catalog: Catalog, changes: Sequence[Change], key: Sequence[str]) -> Report:
    """Commit changes as one batch, in their order, after all rows that are in the table."""
    number = len(catalog.load_table("db.t").metadata.snapshots)
    rows, _ = events_of([(id, LATER + 1_000 * number + at, data) for at, (_, id, data) in enumerate(changes)])
    rule = WantedRule(key=["kind" if name == "data" else name for name in key], order_by="ts")
    return upsert_rows(catalog, rows, [kind in ("-D", "-U") for kind, *_ in changes], number, rule)


LATER = 10**15
"""An order after that of the rows that other writers add."""


def data_rows(catalog: Catalog) -> list[DataRow]:
    """Id and data of all live rows."""
    return sorted((id, data) for id, _, data in live_rows(catalog))


@dataclass(frozen=True)
class Changes:
    """A case: changes per checkpoint, and the rows expected after each.

    Attributes:
        name: The test of `TestFlinkIcebergSinkV2Base`.
        key: The equality fields.
        is_upsert: Whether inserts replace rows; `-U` is then ignored, otherwise it deletes.
        checkpoints: The changes.
        expected: The rows (id, data).
    """

    name: str
    key: tuple[str, ...]
    is_upsert: bool
    checkpoints: Sequence[Sequence[Change]]
    expected: Sequence[Sequence[DataRow]]


_MIXED = [("+I", 1, "aaa"), ("-D", 1, "aaa"), ("+I", 2, "bbb"), ("+I", 1, "bbb"), ("+I", 2, "aaa")]
_MIXED_NEXT = [("-U", 2, "aaa"), ("+U", 1, "ccc"), ("+I", 1, "aaa")]
_SAME = [("-U", 1, "aaa"), ("+U", 1, "aaa")]
CASES = [
    Changes(
        "UpsertOnIdDataKey", ("id", "data"), True,
        [
            [("+I", 1, "aaa"), ("+U", 1, "aaa"), ("+I", 2, "bbb")],
            [("+I", 1, "aaa"), ("-D", 2, "bbb"), ("+I", 2, "ccc")],
            [("+U", 1, "bbb"), ("-U", 1, "ccc"), ("-D", 1, "aaa")],
        ],
        [[(1, "aaa"), (2, "bbb")], [(1, "aaa"), (2, "ccc")], [(1, "bbb"), (2, "ccc")]],
    ),
    Changes(
        "ChangeLogOnIdDataKey", ("data", "id"), False,
        [_MIXED, _MIXED_NEXT, [("-D", 1, "bbb"), ("+I", 2, "aaa")]],
        [
            [(1, "bbb"), (2, "aaa"), (2, "bbb")],
            [(1, "aaa"), (1, "bbb"), (1, "ccc"), (2, "bbb")],
            [(1, "aaa"), (1, "ccc"), (2, "aaa"), (2, "bbb")],
        ],
    ),
    Changes(
        "ChangeLogOnSameKey", ("id", "data"), False,
        [
            [("+I", 1, "aaa"), ("-D", 1, "aaa"), ("+I", 1, "aaa")], _SAME, [("-D", 1, "aaa"), ("+I", 1, "aaa")],
            [*_SAME, ("+I", 1, "aaa")],  # Flink appends a second equal row
        ],
        [[(1, "aaa")]] * 4,
    ),
    Changes(
        "ChangeLogOnDataKey", ("data",), False,
        [_MIXED, _MIXED_NEXT, [("-D", 1, "bbb"), ("+I", 2, "aaa"), ("+I", 2, "ccc")]],
        # After the last changes, Flink has two rows of `aaa` and of `ccc`: its inserts replace nothing.
        [[(1, "bbb"), (2, "aaa")], [(1, "aaa"), (1, "bbb"), (1, "ccc")], [(2, "aaa"), (2, "ccc")]],
    ),
    Changes(
        "UpsertOnDataKey", ("data",), True,
        [
            [("+I", 1, "aaa"), ("+I", 2, "aaa"), ("+I", 3, "bbb")],
            [("+U", 4, "aaa"), ("-U", 3, "bbb"), ("+U", 5, "bbb")],
            [("+I", 6, "aaa"), ("+U", 7, "bbb")],
        ],
        [[(2, "aaa"), (3, "bbb")], [(4, "aaa"), (5, "bbb")], [(6, "aaa"), (7, "bbb")]],
    ),
    Changes(
        "ChangeLogOnIdKey", ("id",), False,
        [
            [
                ("+I", 1, "aaa"), ("-D", 1, "aaa"), ("+I", 1, "bbb"), ("+I", 2, "aaa"), ("-D", 2, "aaa"),
                ("+I", 2, "bbb"),
            ],
            [("-U", 2, "bbb"), ("+U", 2, "ccc"), ("-D", 2, "ccc"), ("+I", 2, "ddd")],
            [("-D", 1, "bbb"), ("+I", 1, "ccc"), ("-D", 1, "ccc"), ("+I", 1, "ddd")],
        ],
        [[(1, "bbb"), (2, "bbb")], [(1, "bbb"), (2, "ddd")], [(1, "ddd"), (2, "ddd")]],
    ),
    Changes(
        "UpsertOnIdKey", ("id",), True,
        [[("+I", 1, "aaa"), ("+U", 1, "bbb")], [("+I", 1, "ccc")], [("+U", 1, "ddd"), ("+I", 1, "eee")]],
        [[(1, "bbb")], [(1, "ccc")], [(1, "eee")]],
    ),
]  # fmt: skip


@VERSIONS
@pytest.mark.parametrize("transforms", [{}, {"kind": "identity"}, {"id": "bucket[4]"}], ids=["none", "data", "id"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_changes_of_flink(case: Changes, transforms: dict[str, str], version: int, tmp_path: Path) -> None:
    """Each checkpoint leaves the rows that Iceberg expects of Flink's sink, in any partitioning, with a row per key.

    Flink refuses a partition field that is not in the key; icesize does not.
    """
    catalog = sqlite_catalog(tmp_path)
    make_table(catalog, transforms)
    made(catalog, version)
    for changes, expected in zip(case.checkpoints, case.expected, strict=True):
        kept = [change for change in changes if not (case.is_upsert and change[0] == "-U")]
        commit_changes(catalog, kept, case.key)
        assert data_rows(catalog) == sorted(expected)


# ---- Apache Iceberg: the conversion of equality deletes ----

Step = Sequence[Change] | Callable[[Catalog], object]
"""A batch of changes, or what another writer does."""
BOTH = ("id", "data")


def insert(*rows: DataRow) -> Step:
    """Another writer's append of one file for each partition of the rows."""

    def run(catalog: Catalog) -> None:
        for data in dict.fromkeys(data for _, data in rows):
            append(catalog, [id for id, of_row in rows if of_row == data], data)

    return run


def files_of(*rows: DataRow) -> list[Step]:
    """Another writer's append of a file for each row."""
    return [insert(row) for row in rows]


def remove_oldest_file(catalog: Catalog) -> None:
    """Another writer removes the data file that was added first."""
    files = small_files(catalog.load_table("db.t"))
    commit_built(catalog, lambda builder: overwritten(builder, [files[0].path]))


def merge_newest_files(catalog: Catalog) -> None:
    """Another writer compacts all data files but the oldest one."""
    table = catalog.load_table("db.t")
    run(catalog, request_on(table, groups=[merged(table, small_files(table)[1:])]), table)


def delete_position(catalog: Catalog) -> None:
    """Another writer deletes the second row of the only data file."""
    table = catalog.load_table("db.t")
    delete_positions(table, {small_files(table)[0].path: [1]})


def flink_deletes(*keys: DataRow) -> Step:
    """An equality delete of Flink."""
    return lambda catalog: delete_equal(catalog.load_table("db.t"), ["id", "kind"], keys)


def partitioned_by(*columns: str) -> Step:
    """The table gets another partition spec."""

    def run(catalog: Catalog) -> None:
        table = theirs(catalog.load_table("db.t"))
        with table.update_spec() as update:
            for field in table.spec().fields:
                update.remove_field(field.name)
            for column in columns:
                update.add_identity(column)

    return run


@dataclass(frozen=True)
class Story:
    """A test of `TestConvertEqualityDeletes`: what happens, and the rows that are left.

    Attributes:
        name: The name of the test.
        steps: Batches, and what others do between them.
        left: The rows (id, data).
        partitioned: Whether the table is partitioned by data.
        version: Only for this format version: the deletes of other writers are those of one.
    """

    name: str
    steps: Sequence[Step]
    left: Sequence[DataRow]
    partitioned: bool = False
    version: int | None = None


A, B, C, D, E = (1, "a"), (2, "b"), (3, "c"), (4, "d"), (5, "e")


def gone(*rows: DataRow) -> list[Change]:
    return [("-D", *row) for row in rows]


def new(*rows: DataRow) -> list[Change]:
    return [("+I", *row) for row in rows]


STORIES = [
    Story("ConvertEqualityDeletesToDVs", [*files_of(A, B, C), new(D) + gone(B)], [A, C, D]),
    Story("MultipleEqualityDeletes", [*files_of(A, B, C, D, E), gone(A, D)], [B, C, E]),
    Story("DuplicateKeyAcrossDataFiles", [*files_of(A, A, B), gone(A)], [B]),
    Story("MultiSnapshotStagingWithPerSnapshotScoping", [insert(A), gone(A), new(A)], [A]),
    Story("InsertThenDeleteAcrossCycles", [new(A), gone(A)], []),
    Story(
        "InsertUpdateDeleteInsertUpdateChain",
        [new(A), gone(A) + new((1, "b")), gone((1, "b")), new((1, "c")), gone((1, "c")) + new((1, "d"))],
        [(1, "d")],
    ),
    Story("ParallelInsertOfToBeDeletedKeySurvives", [insert(A), gone(A) + new(A)], [A]),
    Story("DVMergeAcrossConversionCycles", [new(A, B, C), gone(A), gone(B)], [C]),
    Story("ConversionCorrectAfterCompaction", [*files_of(A, B, C), gone(A), merge_newest_files, gone(B)], [C]),
    Story("ConvertEqualityDeletesPartitionedTable", [*files_of(A, B, (3, "a")), gone(A)], [B, (3, "a")], True),
    Story(
        "EqualityDeleteIsScopedToItsPartition", [*files_of(A, (1, "b"), (2, "a")), gone(A)], [(1, "b"), (2, "a")], True
    ),
    Story("UnpartitionedDeleteAppliesAcrossPartitionEvolution", [insert(A), partitioned_by(), gone(A)], [], True),
    # Flink's delete misses the row, because it is scoped to its spec; a key is one row in all specs
    Story(
        "PartitionedDeleteDoesNotApplyAcrossPartitionEvolution", [insert(A), partitioned_by("id"), gone(A)], [], True
    ),
    Story(
        "StagingPositionDeleteMergedIntoConversionDV",
        [insert(A, (2, "a")), delete_position, as_v3, gone(A)],
        [],
        version=2,
    ),
    Story("StagingDataFilesOnlyNoEqDeletes", [insert(A), new(B)], [A, B]),
    Story("ReindexAfterExternalCommit", [*files_of(A, B), gone(A), insert(C), gone(B)], [C]),
    Story(
        "ReindexEvictsGhostKeyAfterExternalDataFileRemoval", [*files_of(A, B), gone(B), remove_oldest_file, gone(A)], []
    ),
    Story("StagingEqualsTargetBranch", [*files_of(A, B), flink_deletes(A), new(A, C), gone(B)], [A, C], version=2),
    Story(
        "StagingEqualsTargetBranchReinsertAfterDeleteSurvives",
        [insert(A), flink_deletes(A), insert(A), new(B)],
        [A, B],
        version=2,
    ),
]


@pytest.mark.parametrize(
    ("story", "version"),
    [
        pytest.param(story, version, id=f"{story.name}-{version}")
        for story in STORIES
        for version in (2, 3)
        if story.version in (None, version)
    ],
)
def test_conversion_of_deletes(story: Story, version: int, tmp_path: Path) -> None:
    """The rows are those that Iceberg's conversion of equality deletes leaves; no batch adds an equality delete."""
    catalog = sqlite_catalog(tmp_path)
    make_table(catalog, {"kind": "identity"} if story.partitioned else {})
    made(catalog, version)
    for step in story.steps:
        step(catalog) if callable(step) else commit_changes(catalog, step, BOTH)

    assert data_rows(catalog) == sorted(story.left)
    table = catalog.load_table("db.t")
    head = table.metadata.current_snapshot()
    assert head is not None
    deletes = [entry for entry in Reader().entries(head, table.io) if entry.content != DataFileContent.DATA]
    by_value = [entry for entry in deletes if entry.content == DataFileContent.EQUALITY_DELETES]
    assert len(by_value) <= sum(step.__qualname__.startswith("flink_deletes") for step in story.steps if callable(step))
    if table.metadata.format_version == 3:
        vectors = Counter(entry.referenced for entry in deletes)
        assert max(vectors.values(), default=0) <= 1
        assert vectors.keys() <= set(live_paths(table))


def test_no_events_commit_nothing(tmp_path: Path) -> None:
    """A batch without events adds no snapshot (`NoOpWhenStagingBranchEmpty`)."""
    catalog = sqlite_catalog(tmp_path)
    make_table(catalog)
    append(catalog, [1])

    rows = pa.table(
        {"id": pa.array([], pa.int64()), "kind": pa.array([], pa.string()), "ts": pa.array([], pa.timestamp("us"))}
    )
    assert upsert_rows(catalog, rows, [], 0, WantedRule(key=["id", "kind"], order_by="ts")).operations == ()
    assert len(catalog.load_table("db.t").metadata.snapshots) == 1


# ---- Apache Flink: Debezium ----

PRODUCTS = Schema(
    NestedField(1, "id", IntegerType(), required=True), NestedField(2, "name", StringType()),
    NestedField(3, "description", StringType()), NestedField(4, "weight", FloatType()),
    NestedField(5, "place", LongType()),
)  # fmt: skip
_INSERTED = [
    (101, "SCOOTER", "Small 2-wheel scooter", 3.14), (102, "CAR BATTERY", "12V car battery", 8.1),
    (103, "12-PACK DRILL BITS", "12-pack of drill bits with sizes ranging from #40 to #3", 0.8),
    (104, "HAMMER", "12oz carpenter's hammer", 0.75), (105, "HAMMER", "14oz carpenter's hammer", 0.875),
    (106, "HAMMER", "16oz carpenter's hammer", 1.0), (107, "ROCKS", "box of assorted rocks", 5.3),
    (108, "JACKET", "water resistent black wind breaker", 0.1), (109, "SPARE TIRE", "24 inch spare tire", 22.2),
]  # fmt: skip
DEBEZIUM = [
    *(("c", product) for product in _INSERTED),
    ("u", (106, "HAMMER", "18oz carpenter hammer", 1.0)),
    ("u", (107, "ROCKS", "box of assorted rocks", 5.1)),
    ("c", (110, "JACKET", "water resistent white wind breaker", 0.2)),
    ("c", (111, "SCOOTER", "Big 2-wheel scooter ", 5.18)),
    ("u", (110, "JACKET", "new water resistent white wind breaker", 0.5)),
    ("u", (111, "SCOOTER", "Big 2-wheel scooter ", 5.17)),
    ("d", (111, "SCOOTER", "Big 2-wheel scooter ", 5.17)),
]
"""The events of the file: operation, and the row after it, or before a delete."""
FINAL = [
    *_INSERTED[:5], (106, "HAMMER", "18oz carpenter hammer", 1.0), (107, "ROCKS", "box of assorted rocks", 5.1),
    *_INSERTED[7:], (110, "JACKET", "new water resistent white wind breaker", 0.5),
]  # fmt: skip


@VERSIONS
@pytest.mark.parametrize("size", [1, 3, len(DEBEZIUM)])
def test_products_of_debezium(size: int, version: int, tmp_path: Path) -> None:
    """The events of Flink's file leave the rows of its test, whatever the batches; the last event of a key wins."""
    catalog = sqlite_catalog(tmp_path)
    catalog.create_table("db.t", PRODUCTS)
    made(catalog, version)
    rule = WantedRule(key="id", order_by="place", delete_when="op = 'd'")
    for number, start in enumerate(range(0, len(DEBEZIUM), size)):
        events = DEBEZIUM[start : start + size]
        columns = zip(*((*product, start + at) for at, (_, product) in enumerate(events)), strict=True)
        names = PRODUCTS.as_arrow().names
        rows = pa.table(dict(zip(names, map(list, columns), strict=True)), schema=PRODUCTS.as_arrow())
        upsert_rows(catalog, rows, [op == "d" for op, _ in events], number, rule)

    rows = catalog.load_table("db.t").scan().to_arrow().sort_by("id").drop(["place"]).to_pylist()
    expected = [dict(zip(PRODUCTS.as_arrow().names, product, strict=False)) for product in FINAL]
    assert [row | {"weight": round(row["weight"], 3)} for row in rows] == expected
