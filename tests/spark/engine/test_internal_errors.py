"""Mistakes of icesize in the workers of Spark: the driver logs and reports them as internal errors."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
import pytest

from icesize.environment import Environment, Stopwatch
from icesize.parquet.files.data_file import MergeFailure, Results, Written
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.files.uncommitted import Uncommitted
from icesize.planning.merging.planner import plan_merges
from icesize.planning.plan import MergeTask
from icesize.policy import SizePolicy
from icesize.report import Report
from icesize.spark.engine.jobs import GroupRewrite
from icesize.spark.engine.worker import RewriteGroups
from icesize.table.commit.attempted_steps import CommitOutcome
from icesize.table.commit.batch_commit import Batch, commit_written
from icesize.table.commit.batch_report import MergeResults, WrittenBatch, outcome_of
from icesize.table.state.handle import TableHandle
from tests.support.internal_errors import watched
from tests.support.tables import landed, layout_of, small_files, sqlite_catalog, two_files, write

Rewrite = Callable[[MergeTask, WriteSettings, FileNames], NoReturn]


def with_a_bug(group: MergeTask, settings: WriteSettings, names: FileNames) -> NoReturn:
    raise IndexError("list index out of range")


def without_room(group: MergeTask, settings: WriteSettings, names: FileNames) -> NoReturn:
    raise OSError("no space left on device")


def committed(folder: Path, rewrite: Rewrite) -> tuple[Report, list[str]]:
    """The report of a batch whose merge runs in a worker that ends with an error, and what the driver logged of it."""
    catalog = sqlite_catalog(folder)
    table = two_files(catalog)
    new, group = write(table, [3]), MergeTask(tuple(small_files(table)), small_files(table)[0].partition)
    handle, layout, environment = TableHandle(catalog, ("db", "t")), layout_of(table), Environment()
    current = handle.load()
    settings = current.settings()
    owner = Uncommitted(settings.storage, "p-0")
    task = RewriteGroups([[(0, group)]], settings, {0: "p-0"}, rewrite)
    answers = pickle.dumps(list(task([pa.record_batch([pa.array([0])], names=["bin"])])))
    results: Results = {}
    run = GroupRewrite(
        "merge files", {0: group}, settings, owner, {0: "p-0"}, rewrite, results, lambda size_bytes: None,
        threading.Event(),
    )  # fmt: skip
    with watched() as logged:
        run.by(lambda: dict(pickle.loads(answers)), [0])
    merges = MergeResults.of({0: group}, results)
    written = WrittenBatch(current, layout, plan_merges(layout, SizePolicy()), merges, Written((new,)))
    outcome = commit_written(written, Batch(handle, environment, Stopwatch(environment)), owner, environment)
    landed(catalog, [1, 2, 3])
    return outcome_of(current, outcome, written, {}, ()).report, logged


@pytest.mark.internal_error
def test_a_mistake_in_a_worker_is_logged_and_reported_by_the_driver(tmp_path: Path) -> None:
    """The rows of the batch are committed, and the traceback of the worker is in the driver's log."""
    report, logged = committed(tmp_path, with_a_bug)
    assert report.operations == ("append",)
    [why] = report.internal_errors
    assert "merge of 2 files in '' dropped: " in why
    assert "internal error IndexError: list index out of range, report this" in why
    assert why in report.notes
    assert ["in with_a_bug" in each for each in logged] == [True]


def test_an_error_of_storage_in_a_worker_is_a_note(tmp_path: Path) -> None:
    """It is no mistake of icesize."""
    report, logged = committed(tmp_path, without_room)
    assert (report.operations, report.internal_errors, logged) == (("append",), (), [])
    assert "no space left on device" in report.notes[0]


@pytest.mark.internal_error
def test_a_mistake_while_older_files_are_absorbed_is_reported(tmp_path: Path) -> None:
    """The batch was written without them."""
    catalog = sqlite_catalog(tmp_path)
    table = two_files(catalog)
    current, layout = TableHandle(catalog, ("db", "t")).load(), layout_of(table)
    failed = (MergeFailure("Cannot read a", is_internal=True), MergeFailure("Cannot read b"))
    written = WrittenBatch(current, layout, plan_merges(layout, SizePolicy()), rows=Written(failed=failed))
    assert outcome_of(current, CommitOutcome(), written, {}, ()).report.internal_errors == ("Cannot read a",)
