"""What must hold of a pair after each step, and what is looked at now and then because it costs more."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import icesize
from icesize.errors import IcesizeError
from icesize.maintenance.verify.verification import Scope, verify
from icesize.table.manifests.entries import read_entries
from icesize.table.storage.listing import list_files
from integration.evolution.icesize_operations import difference
from integration.evolution.pair import FIELD, Broken, Over, Pair, Side, brief
from integration.evolution.readers import by_duckdb, by_spark
from integration.evolution.values import Filter, filters


def after_step(pair: Pair, number: int) -> None:
    """The cheap checks: rows, metadata, filters planned by Java and by PyIceberg."""
    _same_rows(pair)
    _only_here(pair, _metadata)
    _only_here(pair, _verified)
    _history(pair)
    pair.ever |= {_local(p) for p in pair.engine.probe.referenced(pair.kept.java)}
    if pair.kept.head is not None:
        seed = zlib.crc32(f"{pair.number} {number}".encode())
        wanted = filters(pair.schema, seed, each=4)
        _only_here(pair, lambda side: _java_filters(side, wanted, False))
        # it does not read equality deletes: after a restore or a merge only one of the two tables may have some
        if not any(_has_equality_deletes(side.table) for side in pair.sides):
            _only_here(pair, lambda side: _pyiceberg_filters(side, wanted[seed % 6 :: 6]))


def _only_here(pair: Pair, complaints: Callable[[Side], Mapping[str, str]]) -> None:
    """Complaints (what is wrong -> where) that there are about the kept table and not about the twin.

    What the twin shows too is Iceberg's own way, or a reader's: Iceberg has -0.0 smaller than 0.0, for one, and Python
    has them equal.
    """
    ours = _asked(complaints, pair.kept)
    if ours:
        theirs = _asked(complaints, pair.twin)
        if new := {what: where for what, where in ours.items() if what not in theirs}:
            raise Broken("; ".join(f"{what}: {_short(where)}" for what, where in list(new.items())[:3]))


def _asked(complaints: Callable[[Side], Mapping[str, str]], side: Side) -> Mapping[str, str]:
    try:
        return complaints(side)
    except Exception as error:
        return {_VALUES.sub("...", brief(error)): complaints.__name__}


def _metadata(side: Side) -> Mapping[str, str]:
    # files of the two tables have sizes of their own
    found = side.engine.probe.problems(side.java)
    return {(_VALUES if p.startswith("summary") else _PLACES).sub("...", p): p for p in found}


def _verified(side: Side) -> Mapping[str, str]:
    # the storage and the newest files, too: both sides have tables of few rows
    scope = Scope(list_files, newest_only=True, deep=True)
    verification = verify("", side.table.metadata, side.table.io, scope)
    return {
        f"icesize verify, {finding.rule}: {_VALUES.sub('...', finding.detail)}": finding.path
        for finding in verification.findings
        if finding.is_error
    }


_VALUES = re.compile(r"\bo\d+\.|-?\d[\d.]*")
_PLACES = re.compile(r"file:[^ :]*|\d{12,}")


def now_and_then(pair: Pair, is_cheap: bool) -> None:
    """The dear checks: every snapshot and ref as before; Spark in both modes, metadata tables, DuckDB if not cheap."""
    pair.engine.probe.forgetRows()
    for snapshot_id, rows in list(pair.seen.items()):
        found = _older(pair, snapshot_id)
        if found != rows:
            raise Broken(f"an older snapshot reads otherwise: {difference(rows, found)}")
    _refs(pair)
    if pair.kept.head is not None and not is_cheap:
        _spark(pair)
        _only_here(pair, _tables)
        _duckdb(pair)


def at_the_end(pair: Pair) -> None:
    """Nothing leaked: what no snapshot needs is found by orphan cleanup, and icesize left nothing on its own."""
    _leaks(pair)


def _guarded(what: str, ask: Any) -> Any:
    try:
        return ask()
    except Broken:
        raise
    except Exception as error:
        raise Broken(f"{what}: {brief(error)}") from error


def _same_rows(pair: Pair) -> None:
    try:
        wanted = pair.twin.rows()
    except Exception as error:
        raise Over(f"the twin cannot be read: {brief(error)}") from error
    found = _guarded("the kept table cannot be read", pair.kept.rows)
    if wanted != found:
        raise Broken(f"other rows than the twin: {difference(wanted, found)}")


def _older(pair: Pair, snapshot_id: int) -> list[str]:
    try:
        return pair.kept.rows(snapshot_id)
    except Exception as error:
        raise Broken(f"snapshot {snapshot_id}: {brief(error)}") from error


def _history(pair: Pair) -> None:
    """Snapshots that are new are read once, so that they can be compared later; those that are gone are forgotten."""
    snapshots = pair.kept.table.metadata.snapshots
    for snapshot in snapshots:
        # rows that come into an old branch lie beside files that Iceberg can no longer read
        if snapshot.parent_snapshot_id in pair.before_replacing:
            pair.before_replacing.add(snapshot.snapshot_id)
    there = {s.snapshot_id for s in snapshots} - pair.before_replacing
    pair.seen = {s: rows for s, rows in pair.seen.items() if s in there}
    pair.seen |= {snapshot_id: _older(pair, snapshot_id) for snapshot_id in there - pair.seen.keys()}


def _java_filters(side: Side, wanted: Sequence[Filter], also_read: bool) -> Mapping[str, str]:
    answers = side.engine.probe.filters(side.java, [f.java for f in wanted], also_read)
    lost = {"planned": "Iceberg's Java library loses rows of", "read": "Iceberg's Java library reads other rows for"}
    verdicts = [(one, *answer.split(FIELD, 1)) for one, answer in zip(wanted, answers, strict=True)]
    return {f"{lost[verdict]} '{one}'": "".join(paths) for one, verdict, *paths in verdicts if verdict != "ok"}


def _pyiceberg_filters(side: Side, wanted: Sequence[Filter]) -> Mapping[str, str]:
    found, table = {}, side.table
    for one, answer in zip(wanted, side.engine.probe.filters(side.java, [f.java for f in wanted], False), strict=True):
        needed = {_local(path) for path in answer.split(FIELD)[1:]}
        if lost := needed - {_local(path) for path in _planned(table, one)}:
            found[f"PyIceberg loses rows of '{one}'"] = " ".join(lost)
    return found


def _has_equality_deletes(table: Any) -> bool:
    head = table.metadata.current_snapshot()
    return head is not None and head.summary["total-equality-deletes"] != "0"


def _planned(table: Any, one: Filter) -> set[str]:
    return {task.file.file_path for task in table.scan(row_filter=one.pyiceberg).plan_files()}


def _refs(pair: Pair) -> None:
    kept, twin = pair.kept.table.metadata, pair.twin.table.metadata
    for name, ref in twin.refs.items():
        if name not in kept.refs:
            raise Broken(f"{ref.snapshot_ref_type} '{name}' is gone")
        if kept.refs[name].snapshot_id in pair.before_replacing:
            continue
        try:
            theirs = pair.engine.probe.rowsNow(pair.twin.java, ref.snapshot_id)
        except Exception as error:  # deletes of a branch may be by a column that was dropped since
            raise Over(f"{ref.snapshot_ref_type} '{name}' of the twin cannot be read: {brief(error)}") from error
        ours = pair.engine.probe.rowsNow(pair.kept.java, kept.refs[name].snapshot_id)
        wanted, found = (sorted(line.split(FIELD, 1)[1] for line in lines) for lines in (theirs, ours))
        if wanted != found:
            raise Broken(f"{ref.snapshot_ref_type} '{name}': {difference(wanted, found)}")


def _spark(pair: Pair) -> None:
    _only_here(pair, lambda side: _java_filters(side, filters(pair.schema, pair.number, each=2), True))
    wanted = _quiet(lambda: by_spark(pair.twin, "", False))
    if wanted is None or len(wanted) != len(pair.twin.rows()):
        # by values of a field in a struct Spark 4.1 with Iceberg 1.11.0 deletes other rows than Iceberg's library
        return
    for vectorised in (True, False):
        found = _guarded("Spark cannot read the kept table", lambda v=vectorised: by_spark(pair.kept, "", v))
        if wanted != found:
            raise Broken(f"Spark (vectorised: {vectorised}): {difference(wanted, found)}")
    for one in _for_spark(pair)[:2]:
        wanted = _quiet(lambda f=one: by_spark(pair.twin, f.sql, True))
        if wanted is not None:
            found = _guarded(f"Spark, WHERE {one.sql}", lambda f=one: by_spark(pair.kept, f.sql, True))
            if found != wanted:
                raise Broken(f"Spark, WHERE {one.sql}: {difference(wanted, found)}")


def _for_spark(pair: Pair) -> list[Filter]:
    """Without zeros: SQL has -0.0 equal 0.0 and Iceberg's bounds do not, so which of them are found hangs on the files,
    on both sides. Without NULL floats in structs: where the struct is NULL Iceberg 1.11.0 counts neither a value nor a
    null of them, so its own files of such rows are skipped."""
    every = [f for f in filters(pair.schema, pair.number, each=1) if not f.is_null_float_in_struct]
    return [f for f in every if not any(v == 0 for v in f.values if isinstance(v, float))][pair.number % 3 :: 3]


def _quiet(ask: Any) -> Any:
    """None where the twin cannot be asked: what Iceberg cannot do by itself is no matter of ours."""
    try:
        return ask()
    except Exception:
        return None


def _tables(side: Side) -> Mapping[str, str]:
    [[files, rows, parts]] = side.sql(
        "SELECT count(*), sum(record_count), (SELECT sum(record_count) FROM {t}.partitions) FROM {t}.files "
        "WHERE content = 0"
    )
    counted = tuple(map(int, side.engine.probe.counts(side.java)))
    if (files, rows or 0) == counted and (parts or 0) == counted[1]:
        return {}
    return {"metadata tables": f"files {files} with {rows} rows, partitions {parts}; counted {counted}"}


def _duckdb(pair: Pair) -> None:
    if any(_has_equality_deletes(side.table) for side in pair.sides):
        # it ends the process at some of them
        return
    wanted = _quiet(lambda: by_duckdb(pair.engine, pair.twin))
    if wanted is None:
        return
    found = _guarded("DuckDB cannot read the kept table", lambda: by_duckdb(pair.engine, pair.kept))
    if wanted != found:
        raise Broken(f"DuckDB: {difference(wanted, found)}")


def _leaks(pair: Pair) -> None:
    found = (p for folder in pair.folders(pair.kept) for p in folder.rglob("*"))
    on_disk = {str(p) for p in found if p.is_file() and not p.name.endswith(".crc")}
    table = pair.kept.table
    needed = {_local(p) for p in pair.engine.probe.referenced(pair.kept.java)} | _metadata_files(table)
    # Java does not read partition values of other types than now, PyIceberg none of two decimals alike
    needed |= _listed(table) if pair.before_replacing else set()
    if lost := sorted(p for p in needed - on_disk if p.endswith((".parquet", ".avro"))):
        raise Broken(f"a snapshot's file is gone: {_short(lost[0])}")
    left = {p for p in on_disk - needed - pair.ever if _is_ours(p)}
    if left and not pair.was_interrupted:
        raise Broken(f"icesize left {len(left)} files that no snapshot ever had: {_short(sorted(left)[0])}")
    if hidden := left - _orphans(pair, left):
        raise Broken(f"orphan cleanup does not find what icesize left: {_short(sorted(hidden)[0])}")


def _listed(table: Any) -> set[str]:
    manifests = (m for s in table.metadata.snapshots for m in s.manifests(table.io))
    return {_local(entry.path) for m in manifests for entry in read_entries(table.io, m)}


def _orphans(pair: Pair, left: Iterable[str]) -> set[str]:
    """Which of these orphan cleanup finds once they are old: where it cannot tell what became of a commit, icesize
    leaves its files to that."""
    for path in left:
        os.utime(path, (0, 0))
    opened = icesize.open(None, pair.kept.short_name, catalog=pair.engine.catalog)
    try:
        report = opened.remove_orphan_files(dry_run=True)
    except IcesizeError:
        return set(left)
    inside = str(pair.folders(pair.kept)[0])
    found = {_local(p) for p in report.examples}
    return {p for p in left if p in found or not p.startswith(inside) or report.files_found > len(found)}


def _is_ours(path: str) -> bool:
    """Spark and Java name data files `00000-<task>-<uuid>-00001.parquet`."""
    name = path.rsplit("/", 1)[-1]
    return name.endswith(".parquet") and "part-" not in name and not name.split("-")[-1].split(".")[0].isdigit()


def _metadata_files(table: Any) -> set[str]:
    return {_local(table.metadata_location), *(_local(entry.metadata_file) for entry in table.metadata.metadata_log)}


def _local(path: str) -> str:
    return "/" + path.removeprefix("file:").lstrip("/")


def _short(text: str) -> str:
    """Without the folders that every path has."""
    parts = (word.rsplit("/lake/db/", 1)[-1] for word in text.split(" "))
    return " ".join(parts)[:600]
