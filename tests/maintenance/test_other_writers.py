"""The table in docs/other-writers.md: each cell is played on a table, with another writer's commit before icesize's."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.types import LongType

import icesize
from docs_tools.blocks import DOCS
from icesize import failpoints
from icesize.environment import Environment
from icesize.errors import CommitConflict, UnsupportedTable
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.settings import WriteSettings
from icesize.report import Report
from icesize.sized_table import SizedTable
from icesize.table.commit.attempted_steps import CommitOutcome, steps_of
from icesize.table.commit.carried_deletes import CarriedDeletes
from tests.support.delete_files import delete_positions
from tests.support.row_deletes import delete_ids, delete_rows
from tests.support.tables import (
    append,
    arrow,
    check,
    compact,
    local,
    make_table,
    merged,
    request_on,
    run,
    small_files,
    write,
)
from tests.support.upserts import live_rows

HOUR_MS = 3_600_000
DAY_S = 86_400
IDS = {
    "a": (range(1, 241, 6), range(0, 240, 2), [*range(3, 240, 6), *range(5, 240, 6)]),
    "b": (range(1000, 1200, 2), range(1001, 1200, 2)),
}
"""Rows of the files of each partition, not in order. The first file, which others change, is less than a quarter."""

# what others do


def _table(lake: SqlCatalog) -> Table:
    return lake.load_table("db.t")


def _delete_by_position(lake: SqlCatalog) -> None:
    delete_rows(lake, small_files(_table(lake), "a")[0], [1])


def _roll_back(lake: SqlCatalog) -> None:
    head = _table(lake).metadata.current_snapshot()
    assert head is not None
    assert head.parent_snapshot_id is not None
    _table(lake).manage_snapshots().set_current_snapshot(head.parent_snapshot_id).commit()


def _expire(lake: SqlCatalog) -> None:
    """All snapshots but those that a ref holds."""
    metadata = _table(lake).metadata
    held = {ref.snapshot_id for ref in metadata.refs.values()}
    ids = [snapshot.snapshot_id for snapshot in metadata.snapshots if snapshot.snapshot_id not in held]
    _table(lake).maintenance.expire_snapshots().by_ids(ids).commit()


def _add_column(lake: SqlCatalog) -> None:
    with _table(lake).update_schema() as update:
        update.add_column("more", LongType())


def _add_field(lake: SqlCatalog) -> None:
    with _table(lake).update_spec() as update:
        update.add_field("id", "bucket[4]")


STATEMENTS: dict[str, Callable[[SqlCatalog], object]] = {
    "`INSERT`, append": lambda lake: _table(lake).append(arrow([5000])),
    "`MERGE`, `UPDATE`, `DELETE`: merge-on-read": _delete_by_position,
    "the same: copy-on-write, table with delete files": lambda lake: _table(lake).delete("id = 1"),
    "the same: copy-on-write, table without delete files": lambda lake: _table(lake).delete("id = 1"),
    "equality deletes (Flink)": lambda lake: delete_ids(lake, small_files(_table(lake), "a")[0], [1]),
    "`INSERT OVERWRITE` of the partition": lambda lake: _table(lake).overwrite(arrow([1, 5000]), "kind = 'a'"),
    "`rewrite_data_files`": compact,
    "`expire_snapshots`": _expire,
    "rollback of the newest commit": _roll_back,
    "`ALTER TABLE`: columns": _add_column,
    "`ALTER TABLE`: partition spec": _add_field,
}
"""The first column of the page -> what the other writer does in partition `a`."""
WITH_DELETES = "the same: copy-on-write, table with delete files"
NO_DELETES = "the same: copy-on-write, table without delete files"

# what icesize does


def _opened(lake: SqlCatalog, **policy: object) -> SizedTable:
    """An hour after the newest commit, so that no partition is contested."""
    now_ms = _table(lake).metadata.last_updated_ms + HOUR_MS
    environment = Environment(now_ms=lambda: now_ms, sleep=lambda seconds: None)
    return icesize.open(None, "db.t", catalog=lake, policy=policy, environment=environment)


def _merged(lake: SqlCatalog, done: Report | CommitOutcome) -> str:
    """What became of two merges, of three files of partition `a` and of two of `b`."""
    if "replace" not in done.operations:
        assert done.conflicts
        return "dropped"
    merge = _table(lake).snapshot_by_id(done.snapshot_ids[-1])
    assert merge is not None
    assert merge.summary is not None
    facts = merge.summary.additional_properties
    files, has_deletes = int(facts["deleted-data-files"]), "added-delete-files" in facts
    if done.conflicts:
        assert (files, has_deletes) == (2, False), "the merge of `b` is not concerned"
        return "partition dropped"
    return {(5, False): "commits", (5, True): "commits, deletes follow", (4, True): "commits the rest"}[
        files, has_deletes
    ]


def _compact(lake: SqlCatalog) -> str:
    return _merged(lake, _opened(lake).compact())


def _cluster(lake: SqlCatalog) -> str:
    return _merged(lake, _opened(lake, target_file_size_bytes=1_500, small_file_limit_bytes=1_000).cluster(["id"]))


def _maintain(lake: SqlCatalog) -> str:
    return _merged(lake, _opened(lake).maintain().merges[0])


def _sink(lake: SqlCatalog) -> str:
    """The commit of a batch, as a sink makes it from what Spark has written and merged."""
    table = _table(lake)
    groups = [merged(table, small_files(table, kind), keeps_map=True) for kind in "ab"]
    settings = WriteSettings.of(table.metadata, table.io.properties, 2**29)
    carrier = CarriedDeletes(lambda: settings, FileNames("carried", 0, 0))
    steps = steps_of([write(table, [6000])], groups, (), carrier)
    done = run(lake, replace(request_on(table, batch=1), steps=steps), table)
    assert done.operations[0] == "append"
    return _merged(lake, done)


def _upsert(lake: SqlCatalog) -> str:
    report = _opened(lake).upsert(arrow([1, 6000]), key="id")
    assert report.snapshot_ids
    return "written again" if any("written again" in why for why in report.conflicts) else "commits"


def _rewrite_deletes(lake: SqlCatalog) -> str:
    policy = {"max_delete_files": 1, "small_file_limit_bytes": 1, "target_file_size_bytes": 1}
    report = _opened(lake, **policy, close_file_cost_bytes=0).rewrite_deletes()
    assert bool(report.snapshot_ids) != bool(report.conflicts)
    return "skipped" if report.conflicts else "commits"


def _restore(lake: SqlCatalog) -> str:
    """Back to the state without the newest files of `a`."""
    try:
        _opened(lake).restore({"kind": "a"}, _table(lake).metadata.snapshots[1].snapshot_id)
    except CommitConflict:
        return "refused"
    except UnsupportedTable:
        return "refused"  # the partition spec is another one
    return "commits"


def _expire_snapshots(lake: SqlCatalog) -> str:
    _opened(lake).expire_snapshots(older_than=timedelta(minutes=1))
    return "finishes"


def _remove_orphans(lake: SqlCatalog) -> str:
    """A file of no snapshot, four days old, goes."""
    orphan = local(_table(lake).location()) / "data" / "orphan.parquet"
    orphan.write_bytes(b"PAR1")
    long_ago = orphan.stat().st_mtime - 4 * DAY_S
    os.utime(orphan, (long_ago, long_ago))
    _opened(lake).remove_orphan_files(dry_run=False)
    assert not orphan.exists()
    return "finishes"


@dataclass(frozen=True)
class Operation:
    """An operation of icesize: its column, the failpoint at which the other writer commits, and its new rows."""

    column: str
    play: Callable[[SqlCatalog], str]
    point: str = "files-written"
    added: frozenset[int] = frozenset()


OPERATIONS = {
    "compact": Operation("merge", _compact),
    "cluster": Operation("merge", _cluster),
    "maintain": Operation("merge", _maintain),
    "sink": Operation("merge", _sink, "before-swap", frozenset({6000})),
    "upsert": Operation("upsert batch", _upsert, "before-swap", frozenset({1, 6000})),
    "rewrite-deletes": Operation("`rewrite-deletes`", _rewrite_deletes),
    "restore": Operation("`restore`", _restore),
    "expire-snapshots": Operation("expiry, orphan removal", _expire_snapshots, "before-swap"),
    "remove-orphan-files": Operation("expiry, orphan removal", _remove_orphans, "before-delete"),
}
SLOW = {"cluster", "maintain", "expire-snapshots", "remove-orphan-files"}
"""Operations whose cells another one shows in quick tests, or whose cells are all the same."""


ALWAYS = {
    "sink rows": ("New rows of a sink", "commit"),
    "upsert batch": ("upsert batches", "commits"),
    "expiry, orphan removal": ("expiry and orphan removal finish beside every statement", "finishes"),
}
"""Operations with one outcome for all statements -> the words of the page, the outcome."""


def page_cells() -> dict[tuple[str, str], str]:
    """The cells of the page: statement and column -> outcome; a sentence before the table has those of `ALWAYS`."""
    before, head, rest = (
        (DOCS / "other-writers.md").read_text(encoding="utf-8").partition("| their statement | merge |")
    )
    sentence = " ".join(before.rpartition("\n## ")[2].split())
    assert [words for words, _ in ALWAYS.values() if words not in sentence] == []
    lines = (head + rest).partition("\n\n")[0].splitlines()
    (_, *columns), _, *rows = [line.strip("| ").split(" | ") for line in lines]
    always = {(statement, column): outcome for statement, *_ in rows for column, (_, outcome) in ALWAYS.items()}
    return always | {
        (statement, column): cell for statement, *cells in rows for column, cell in zip(columns, cells, strict=True)
    }


def _prepared(lake: SqlCatalog, statement: str, name: str) -> None:
    """Three files in partition `a` and two in `b`; the newest commit adds to `a`."""
    make_table(lake)
    first, *others = IDS["a"]
    for kind, ids in (("a", first), *(("b", ids) for ids in IDS["b"]), *(("a", ids) for ids in others)):
        append(lake, ids, kind)
    if name == "rewrite-deletes":
        for position in (30, 35):
            delete_positions(_table(lake), {small_files(_table(lake), "a")[0].path: [position]})
    elif statement == WITH_DELETES:
        delete_rows(lake, small_files(_table(lake), "b")[0])
    elif name == "upsert":
        # the rule is stored before
        icesize.open(None, "db.t", catalog=lake).upsert(arrow([300]), key="id")


def _cells() -> list[pytest.param]:  # type: ignore[valid-type]
    """Each cell with each of its operations."""
    pairs = [(name, statement) for name in OPERATIONS for statement in STATEMENTS]
    marks = {name: [pytest.mark.engine] if name in SLOW else [] for name in OPERATIONS}
    return [
        pytest.param(name, statement, marks=marks[name])
        for name, statement in pairs
        if (name, statement) != ("rewrite-deletes", NO_DELETES)
    ]


@pytest.mark.parametrize(("name", "statement"), _cells())
def test_each_cell(lake: SqlCatalog, name: str, statement: str) -> None:
    """The other writer commits between icesize's plan and its commit: the outcome in format v2 is that of the page, no
    deleted row returns, and no row is lost."""
    operation, theirs = OPERATIONS[name], list[set[int]]()
    _prepared(lake, statement, name)

    def act() -> None:
        if not theirs:
            theirs.append(set())
            STATEMENTS[statement](lake)
            theirs[0] |= _ids(lake)

    with failpoints.armed(operation.point, act):
        outcome = operation.play(lake)
    assert theirs, "the other writer had no turn"
    check(_table(lake))
    if (name, outcome) != ("restore", "commits"):
        assert _ids(lake) == theirs[0] | operation.added
    cells = page_cells()
    assert outcome == cells[statement, operation.column].partition("; v3: ")[0]
    if name == "sink":
        assert cells[statement, "sink rows"] == "commit"


def _ids(lake: SqlCatalog) -> set[int]:
    rows = [row[0] for row in live_rows(lake)]
    assert len(rows) == len({*rows})
    return {*rows}


def test_the_page_has_these_cells_and_no_other() -> None:
    """Each statement and each operation has its cell."""
    columns = {"sink rows", *(operation.column for operation in OPERATIONS.values())}
    assert page_cells().keys() == {(statement, column) for statement in STATEMENTS for column in columns}
