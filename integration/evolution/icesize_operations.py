"""What icesize does to the kept table, with what another one does in the middle of it.

An operation that icesize refuses with an error of its own is as good as none: then nothing of it may be visible.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

import icesize
from icesize.environment import Environment, Stopwatch
from icesize.errors import IcesizeError, TableError
from icesize.sized_table import SizedTable
from icesize.table.commit import batch_commit
from icesize.table.commit.batch_commit import Batch
from icesize.table.commit.batch_life import exactly_once
from icesize.table.past.versions import Version
from icesize.table.state.handle import TableHandle
from icesize.table.upserts.batch import Upserts
from icesize.table.upserts.settings import WantedRule, keep_rule
from integration.evolution.pair import FIELD, Broken, Pair, brief
from integration.evolution.values import Draw, Row, Skip, as_json, leaves, rows, shown

Statement = Callable[[], object]
Operation = Callable[[Pair, Draw, str, "Statement | None"], str]
OPERATIONS: dict[str, Operation] = {}
_TARGETS = (3_000, 20_000, 1_000_000)
"""Files are one to three kB: with the smallest target two of them fill one."""
_MODES = (("append", "inline"), ("append", "async"), ("append", "off"), ("absorb", "inline"))


def operation(name: str) -> Callable[[Operation], Operation]:
    """Register an operation under the name that programs call it by."""

    def register(made: Operation) -> Operation:
        OPERATIONS[name] = made
        return made

    return register


def _policy(draw: Draw) -> Mapping[str, Any]:
    policy: dict[str, Any] = {
        "max_small_files": draw.few(1, 3), "target_file_size_bytes": draw.chance.choice(_TARGETS),
        "merge_by_copying": draw.maybe(0.7), "apply_deletes": draw.maybe(0.85),
    }  # fmt: skip
    if draw.maybe(0.3):
        policy |= _FEW_DELETES
    return policy | ({"keep_versions": draw.few(1, 2)} if draw.maybe(0.1) else {})


_FEW_DELETES = {"max_delete_files": 1, "close_file_cost_bytes": 0, "delete_ratio_threshold": 1}
"""Two delete files of a data file are too many, and one of its own is always cheaper than to write it again."""


def _open(pair: Pair, draw: Draw, with_spark: bool = False, **others: object) -> SizedTable:
    """The table; without Spark, unless told: that is twenty times cheaper. Waiting for others takes no time."""
    environment = Environment(sleep=lambda seconds: None)
    policy = {**_policy(draw), **others}
    try:
        if with_spark:
            return icesize.open(pair.engine.spark, pair.kept.full_name, policy=policy, environment=environment)
        catalog = pair.engine.catalog
        return icesize.open(None, pair.kept.short_name, catalog=catalog, policy=policy, environment=environment)
    except IcesizeError as error:
        raise Skip(f"icesize does not open it: {brief(error)}") from error


def _run(pair: Pair, point: str, middle: Statement | None, work: Callable[[], Any]) -> str:
    """What came of an operation, or why icesize refused it."""
    try:
        with pair.interrupted(point, middle):
            return f"-> {str(work())[:300]}"
    except IcesizeError as error:
        if middle is None and isinstance(error.__cause__, (LookupError, TypeError, ValueError, AttributeError)):
            raise Broken(f"refused for a mistake of its own: {brief(error)}") from error
        return f"-> refused: {brief(error)}"


def _kept_rows(pair: Pair, point: str, middle: Statement | None, work: Callable[[], Any]) -> str:
    """The same of an operation that must leave every row as it is, checked where nobody else was at work."""
    before, with_numbers = pair.kept.rows(), pair.kept.tells_numbers()
    lineage = pair.kept.lineage(with_numbers)
    told = _run(pair, point, middle, work)
    if middle is None and pair.kept.rows() != before:
        raise Broken(f"maintenance changed the rows: {difference(before, pair.kept.rows())} {told}")
    if middle is None and lineage and (now := pair.kept.lineage(with_numbers)) != lineage:
        raise Broken(f"maintenance changed row ids: {difference(lineage, now)} {told}")
    return told


def difference(wanted: list[str], found: list[str]) -> str:
    """Rows that are missing and rows that are too much."""
    missing, more = Counter(wanted) - Counter(found), Counter(found) - Counter(wanted)
    return f"{len(wanted)} rows wanted, {len(found)} found; missing {list(missing)[:4]}, too much {list(more)[:4]}"


@operation("compact")
def compact(pair: Pair, draw: Draw, point: str, middle: Statement | None) -> str:
    table = _open(pair, draw)
    moves = draw.maybe(0.3)
    work = partial(table.compact, into_current_spec=moves)
    return f"icesize: compact{' into the current spec' if moves else ''} " + _kept_rows(pair, point, middle, work)


@operation("compact-spark")
def compact_spark(pair: Pair, draw: Draw, point: str, middle: Statement | None) -> str:
    table = _open(pair, draw, with_spark=True)
    return "icesize: compact by Spark " + _kept_rows(pair, point, middle, table.compact)


@operation("after-batch")
def after_batch(pair: Pair, draw: Draw, point: str, middle: Statement | None) -> str:
    table = _open(pair, draw)
    return "icesize: after_batch " + _kept_rows(pair, point, middle, table.after_batch)


@operation("cluster")
def cluster(pair: Pair, draw: Draw, point: str, middle: Statement | None) -> str:
    table = _open(pair, draw)
    names = [name for name, _ in leaves(pair.schema) if "." not in name]
    by = sorted({draw.one(names) for _ in range(draw.few(1, 2))})
    strategy = draw.chance.choice(("sort", "zorder", "hilbert")) if len(by) > 1 else "sort"

    def work() -> Any:
        return table.cluster(by=by, strategy=strategy)

    return f"icesize: cluster by {by} {strategy} " + _kept_rows(pair, point, middle, work)


@operation("maintain")
def maintain(pair: Pair, draw: Draw, point: str, middle: Statement | None) -> str:
    table = _open(pair, draw)

    def work() -> Any:
        report = table.maintain()
        if report.failed and middle is None:
            raise Broken(f"steps of maintain failed: {report.failed}")
        return f"{len(report.merges)} merges, failed {report.failed}, unsupported {report.unsupported}"

    return "icesize: maintain " + _kept_rows(pair, point, middle, work)


@operation("few-deletes")
def few_deletes(pair: Pair, draw: Draw, point: str, middle: Statement | None) -> str:
    table = _open(pair, draw, **_FEW_DELETES)

    def work() -> Any:
        report = table.rewrite_deletes()
        made = f"{report.files_removed} delete files of {report.data_files} files became {report.files_added}"
        return " ".join((made, *report.conflicts, *report.notes))

    return "icesize: rewrite_deletes " + _kept_rows(pair, point, middle, work)


@operation("manifests")
def manifests(pair: Pair, draw: Draw, point: str, middle: Statement | None) -> str:
    table = _open(pair, draw)
    return "icesize: rewrite_manifests " + _kept_rows(pair, point, middle, table.rewrite_manifests)


@operation("expire")
def expire(pair: Pair, draw: Draw, point: str, middle: Statement | None) -> str:
    table = _open(pair, draw)
    options: dict[str, Any] = {"older_than": timedelta(0), "retain_last": draw.few(1, 3)}
    if draw.maybe(0.3):
        options = {"keep_versions": draw.few(1, 2)}

    def work() -> Any:
        return table.expire_snapshots(**options)

    return f"icesize: expire_snapshots {options} " + _kept_rows(pair, point, middle, work)


@operation("orphans")
def orphans(pair: Pair, draw: Draw, point: str, middle: Statement | None) -> str:
    table = _open(pair, draw)
    return "icesize: remove_orphan_files " + _kept_rows(pair, point, middle, table.remove_orphan_files)


@operation("restore")
def restore(pair: Pair, draw: Draw, point: str, middle: Statement | None) -> str:
    table = _open(pair, draw)
    kept = {kept: number for number, kept, _ in pair.marks_there()}
    try:
        versions = [v for v in table.versions() if v.snapshot_id in kept and not v.current]
    except IcesizeError as error:
        raise Skip(f"there are no versions: {brief(error)}") from error
    version = draw.one(versions, lambda v: f"{kept[v.snapshot_id]} {v.label}")
    wanted = _restored(pair, version)
    told = _run(pair, point, middle, lambda: table.restore(version.partition, version.snapshot_id))
    head = f"icesize: restore {version.partition} as after step {kept[version.snapshot_id]} "
    if "-> refused" in told:
        return head + told
    if middle is None and sorted(wanted) != pair.kept.rows():
        raise Broken(f"restore gives other rows: {difference(wanted, pair.kept.rows())} {told}")
    # what lies in a partition hangs on the files where the spec was changed: the twin takes them as they are
    pair.engine.probe.reset(pair.twin.java, pair.kept.java)
    return head + told


def _restored(pair: Pair, version: Version) -> list[str]:
    """The table's rows, those of the partition as they were."""
    then = _files(pair, version, version.snapshot_id)
    now = _files(pair, version, pair.kept.head)
    lines = pair.engine.probe.rowsNow(pair.kept.java, version.snapshot_id)
    old = [row for path, row in (line.split(FIELD, 1) for line in lines) if path in then]
    return [row for path, row in pair.kept.files_and_rows() if path not in now] + old


def _files(pair: Pair, version: Version, snapshot_id: int | None) -> set[str]:
    """Paths of a partition's files; as Java has them: up to 0.12 PyIceberg reads doubles in single precision, in which
    0.1 and the float next to it are one partition."""
    if snapshot_id is None:
        return set()
    wanted = [str(version.key.spec_id), *map(_exact, version.key.values)]
    listed = (line.split(FIELD) for line in pair.engine.probe.partitions(pair.kept.java, snapshot_id))
    return {path for path, *partition in listed if partition == wanted}


def _exact(value: object) -> str:
    """A partition value as `Probe.java` tells it."""
    if isinstance(value, float):
        # Java has one NaN
        return str(struct.unpack("q", struct.pack("d", math.nan if math.isnan(value) else value))[0])
    if isinstance(value, bytes):
        return f"x{value.hex()}"
    if isinstance(value, bool):
        return str(value).lower()
    return "NULL" if value is None else format(value, "f") if isinstance(value, Decimal) else str(value)


@operation("sink")
def sink(pair: Pair, draw: Draw, point: str, middle: Statement | None) -> str:
    table = _open(pair, draw, with_spark=True)
    placement, merge = draw.chance.choice(_MODES)
    options: dict[str, Any] = {"placement": placement, "merge": merge}
    if placement == "absorb" and draw.maybe(0.4):
        options["stream_safe"] = False
    made = table.sink("stream", query_id="query", accept_new_checkpoint=True, write_tasks=1, **options)
    pair.batch += 1

    def run(df: Any) -> Any:
        try:
            return made.run(df, pair.batch)
        finally:
            made.drain()

    return f"icesize: sink({options}) " + _batch(pair, draw, point, middle, run)


@operation("icesize-append")
def append(pair: Pair, draw: Draw, point: str, middle: Statement | None) -> str:
    table = _open(pair, draw, with_spark=True)
    return "icesize: append " + _batch(pair, draw, point, middle, table.append)


def _batch(pair: Pair, draw: Draw, point: str, middle: Statement | None, work: Callable[[Any], Any]) -> str:
    """Rows into the kept table by icesize, into the twin if and when they are committed."""
    schema = pair.schema
    found = rows(schema, draw)
    df = pair.kept.frame(schema, found)
    told = f"{shown(found)} "
    try:
        with pair.incoming(schema, found), pair.interrupted(point, middle):
            report = work(df)
    except IcesizeError as error:
        if middle is None and not isinstance(error, TableError) and "Cannot write NaN" not in str(error):
            raise Broken(f"a batch is refused that nobody disturbed: {told}{brief(error)}") from error
        return f"{told}-> refused: {brief(error)}"
    return f"{told}-> {str(report)[:300]}"


@operation("icesize-upsert")
def upsert(pair: Pair, draw: Draw, point: str, middle: Statement | None) -> str:
    """Rows by their `id` in place of others, and deletes. The twin gets them by Iceberg's Java library."""
    return _upsert(pair, draw, point, middle, _equal_deletes)


@operation("icesize-merge")
def merge(pair: Pair, draw: Draw, point: str, middle: Statement | None) -> str:
    """The same, and the twin gets them by Spark's MERGE."""
    return _upsert(pair, draw, point, middle, _merge_into)


Twin = Callable[[Pair, Sequence[Row], Sequence[int]], None]


def _upsert(pair: Pair, draw: Draw, point: str, middle: Statement | None, twin: Twin) -> str:
    if pair.kept.table.metadata.format_version < 2:
        raise Skip("upserts need version 2")
    schema = pair.schema
    found = list({row["id"]: row for row in rows(schema, draw, most=8)}.values())
    gone = [row["id"] for row in found if draw.maybe(0.3)]
    stay = [row for row in found if row["id"] not in gone]
    events = _as_arrow(schema, found)
    is_delete = np.array([row["id"] in gone for row in found], np.bool_)
    environment = Environment(sleep=lambda seconds: None)
    handle = TableHandle(pair.engine.catalog, pair.kept.table.name(), _open(pair, draw).policy)
    upserts = Upserts(WantedRule(key="id"), lambda current, rule: [lambda: (events, is_delete)])
    told = f"icesize: upsert {shown(stay)}, delete {gone} "
    ids = [row["id"] for row in found]
    try:
        current = handle.load(environment)
        rule = upserts.wanted.in_table(current.table.metadata, current.name)
        # a commit of its own, whose failpoints are not those of the batch
        batch_commit.change(handle, current, keep_rule(rule, current.name, "rule"), environment)
        with (
            pair.incoming(schema, stay, lambda landed: twin(pair, landed, ids)),
            pair.interrupted(point, middle),
        ):
            report = exactly_once(Batch(handle, environment, Stopwatch(environment)), upserts).report
    except ValueError as error:
        if "as an Avro decimal" not in str(error):
            raise
        # Java does not write such a truncated value either
        raise Skip(f"Iceberg refuses: {brief(error)}") from error
    except IcesizeError as error:
        if middle is None and not isinstance(error, TableError) and "Cannot write NaN" not in str(error):
            raise Broken(f"an upsert is refused that nobody disturbed: {told}{brief(error)}") from error
        return f"{told}-> refused: {brief(error)}"
    return f"{told}-> {str(report)[:300]}"


def _as_arrow(schema: Schema, found: Sequence[Row]) -> pa.Table:
    """Rows as an Arrow table. Skip for a decimal that the 28 digits of Python's context have rounded up."""
    try:
        return pa.Table.from_pylist(found, schema_to_pyarrow(schema, include_field_ids=False))
    except pa.ArrowInvalid as error:
        raise Skip(f"Arrow refuses: {brief(error)}") from error


def _equal_deletes(pair: Pair, landed: Sequence[Row], ids: Sequence[int]) -> None:
    now, probe = pair.schema, pair.engine.probe
    if pair.twin.head is not None:
        keys = as_json(now.select("id"), [{"id": each} for each in ids])
        probe.deleteEqual(pair.twin.java, ["id"], keys, 1, None)
    if landed:
        probe.append(pair.twin.java, as_json(now, landed), "append", None)


def _merge_into(pair: Pair, landed: Sequence[Row], ids: Sequence[int]) -> None:
    """By one MERGE; rows of keys that the twin has twice go first, as MERGE would keep both."""
    now, spark = pair.schema, pair.engine.spark
    listed = ", ".join(map(str, ids))
    again = pair.twin.sql(f"SELECT id FROM {{t}} WHERE id IN ({listed}) GROUP BY id HAVING count(*) > 1")
    if again:
        pair.twin.sql(f"DELETE FROM {{t}} WHERE id IN ({', '.join(str(row.id) for row in again)})")
    by_id = {row["id"]: row for row in landed}
    source = pair.twin.frame(now, [by_id.get(each, {"id": each}) for each in ids])
    stays = f"id IN ({', '.join(map(str, by_id)) or 'NULL'})"
    source.selectExpr("*", f"coalesce({stays}, false) AS stays__").createOrReplaceTempView("upserts")
    columns = [f"`{field.name}`" for field in now.fields]
    pair.twin.sql(
        "MERGE INTO {t} t USING upserts s ON t.id = s.id WHEN MATCHED AND NOT s.stays__ THEN DELETE "
        f"WHEN MATCHED THEN UPDATE SET {', '.join(f't.{each} = s.{each}' for each in columns)} "
        f"WHEN NOT MATCHED AND s.stays__ THEN INSERT ({', '.join(columns)}) "
        f"VALUES ({', '.join(f's.{each}' for each in columns)})"
    )
    spark.catalog.dropTempView("upserts")
