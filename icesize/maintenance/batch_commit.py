"""Makes visible what was written for a batch, or for merges as for a batch without rows."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass

from icesize import failpoints
from icesize.clock import Environment, Stopwatch
from icesize.errors import RewriteFailed
from icesize.maintenance.reporting import Outcome, WrittenBatch
from icesize.parquet.files.data_file import MergeResult
from icesize.planning.merging.contention import BackOff
from icesize.table.catalog.access_errors import readable
from icesize.table.commit.ledger import LedgerEntry
from icesize.table.commit.request import CommitOutcome, CommitRequest
from icesize.table.state.handle import TableHandle
from icesize.table.state.input_metrics import with_carried_over_metrics

LONG_RUN_SECONDS = 12 * 3600
"""Half of the least age at which orphan cleanup, ours and Iceberg's, takes a file: what runs shorter need not look, and
a commit that looks has hours left for its attempts."""
_THREADS = 16


@dataclass(frozen=True)
class CommitContext:
    """How a commit is made: under which id, beside whom, and, for a batch of a stream, with which ledger entry.

    `lock` is held meanwhile: what shares the table with others of this process waits there, and may raise instead.
    `environment` is the one that tells the owner of uncommitted files of the commit.
    """

    run_id: str
    environment: Environment
    watch: Stopwatch
    lock: AbstractContextManager[object]
    ledger: LedgerEntry | None = None
    accept_new_checkpoint: bool = False


def commit(written: WrittenBatch, handle: TableHandle, how: CommitContext) -> CommitOutcome:
    """Make the files visible in one step. A commit that lost to another is tried again with the same files.

    Raises what `icesize.table.commit.commit_files.commit_files` raises, Overtaken among it: then the files have to be
    written again. Raises RewriteFailed when orphan cleanup took some of them meanwhile.
    """
    current, appended = written.current, written.rows.files
    # takes reading manifests: before a commit keeps others waiting
    merged = with_carried_over_metrics(written.merges.merged, appended, current.table.io, current.settings)
    failpoints.reach("files-written")
    request = _request(written, merged, how)
    check_still_there(handle, sorted(request.paths()), how.watch)
    with how.lock:
        outcome = CommitOutcome()
        if appended or merged:
            outcome = handle.commit(current, request, how.environment)
    how.watch.lap("commit")
    return outcome


def _request(written: WrittenBatch, merged: tuple[MergeResult, ...], how: CommitContext) -> CommitRequest:
    metadata = written.current.table.metadata
    return CommitRequest(
        table_uuid=written.current.uuid,
        base_snapshot_id=written.layout.snapshot_id,
        base_sequence_number=written.layout.sequence_number,
        schema_id=metadata.current_schema_id,
        spec_id=metadata.default_spec_id,
        schema=metadata.schema(),
        spec=metadata.spec(),
        run_id=how.run_id,
        appended=written.rows.files,
        merged=merged,
        absorbed=written.rows.absorbed,
        ledger=how.ledger,
        accept_new_checkpoint=how.accept_new_checkpoint,
    )


def remember(backoff: BackOff, outcome: Outcome) -> None:
    """Partitions in which others came first are left alone for some batches, those where we did are not any more."""
    backoff.lost(outcome.commit.contested)
    absorbed = outcome.written.rows.absorbed if outcome.written else ()
    backoff.landed(file.partition for file in (*(f for g in outcome.commit.merged for f in g.inputs), *absorbed))


def check_still_there(handle: TableHandle, paths: Sequence[str], watch: Stopwatch) -> None:
    """Looks for files written by a run that took long; `watch` is its clock.

    Raises RewriteFailed when one is gone: a commit that names it would make the table unreadable.
    """
    watch.lap("check")
    if watch.seconds["total"] < LONG_RUN_SECONDS:
        return
    table = handle.name
    with readable(table), ThreadPoolExecutor(_THREADS) as pool:
        # the credentials that the files were written with have ended by now
        io = handle.load().table.io
        there = list(pool.map(lambda path: io.new_input(path).exists(), paths))
    gone = [path for path, exists in zip(paths, there, strict=True) if not exists]
    if gone:
        hours = watch.seconds["total"] / 3600
        raise RewriteFailed(
            f"Cannot commit to '{table}': {len(gone)} of {len(paths)} files written for it are gone, {gone[0]} is one; "
            f"this took {hours:.0f} h, and orphan cleanup took them: it must spare files for longer than that "
            "('older-than'). Nothing is visible; run it again",
            table=table,
            gone=tuple(gone),
        )
