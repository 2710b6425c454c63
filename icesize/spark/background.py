"""Merges of one stream beside its batches: `merge="async"`.

Each committed batch *kicks* them. A thread lives while there is something to look at: it loads the newest state with a
handle of its own, plans, merges and commits one REPLACE, then looks whether it was kicked meanwhile, however often.
Partitions that lately got rows are kept at k small files, those gone cold are finished. Nothing here fails a batch:
what went wrong is told in the report of the next one.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable
from weakref import WeakSet

from pyiceberg.catalog import Catalog
from pyspark.sql import SparkSession

from icesize.environment import Environment
from icesize.planning.backoff import BackOff
from icesize.planning.layout import PartitionKey
from icesize.report import Report
from icesize.spark.background_run import Job, Kick, Run
from icesize.spark.merges import CANCEL_AGAIN_SECONDS
from icesize.table.expiry import expire_by_own_rules
from icesize.table.handle import TableHandle
from icesize.table.request import brief

LOG = logging.getLogger("icesize")

EXIT_SECONDS = 60.0
"""Longest wait for a run when the interpreter ends: as long as a call to a catalog that does not answer takes."""

_TABLE = PartitionKey(-1)
"""Stands for the table as a whole where partitions back off: no partition spec has this number."""


class Background:
    """The merges of one stream in this process: at most one run at a time. Safe to call from any thread but its own."""

    def __init__(self, commit_lock: threading.Lock) -> None:
        self._commit_lock = commit_lock
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._cancelled = threading.Event()
        self._newest: Kick | None = None
        self._pending = self._forced = self._expiry_due = False
        # batches committed; those that the newest run has before it; those that a finished run has looked at
        self._committed = self._seen = self._looked_at = 0
        self._bytes = 0
        self._notes: list[str] = []
        self._report: Report | None = None
        self._backoff = BackOff()
        self._handles: tuple[TableHandle, TableHandle] | None = None
        self._tag = f"icesize-background-{id(self):x}"
        _all.add(self)

    def kick(self, kick: Kick, batch: Report, expire: bool = False) -> int:
        """Look at the table, now or when the run in flight has ended; `expire`: and expire snapshots after that.

        Returns how many batches committed here, this one included, no finished run has looked at.
        """
        with self._changed:
            self._newest = kick
            self._committed += bool(batch.snapshot_ids)
            self._bytes += batch.bytes_ingested
            self._expiry_due = self._expiry_due or expire
            self._pending = True
            lag = self._committed - self._looked_at
            self._start()
            return lag

    @property
    def lag(self) -> int:
        """Batches committed here that no finished run has looked at."""
        with self._changed:
            return self._committed - self._looked_at

    def take_notes(self) -> tuple[str, ...]:
        """What runs that ended since the last call had to say, each sentence once."""
        with self._changed:
            notes = tuple(dict.fromkeys(self._notes))
            self._notes.clear()
            return notes

    def drain(self, timeout_seconds: float | None = None) -> Report | None:
        """Wait until a run has looked at everything committed before this call; returns the last run's report.

        None when there was no run. Raises TimeoutError; the run then goes on.
        """
        with self._changed:
            if self._newest is not None and self._committed > self._seen:
                self._pending = self._forced = True
                self._start()
            if not self._changed.wait_for(lambda: self._thread is None, timeout_seconds):
                raise TimeoutError(f"Cannot drain: merges in the background have not ended after {timeout_seconds} s")
            return self._report

    def stop(self, timeout_seconds: float = float("inf")) -> bool:
        """Stop what runs, remove its files, forget what it was kicked for; whether it has ended in time.

        A commit under way is finished. The next kick starts anew.
        """
        waited = 0.0
        while waited < timeout_seconds:
            with self._changed:
                thread, kick = self._thread, self._newest
                self._pending = self._forced = self._expiry_due = False
                self._cancelled.set()
            if thread is None or kick is None:
                return True
            _cancel_jobs(kick.spark, self._tag)
            thread.join(CANCEL_AGAIN_SECONDS)
            waited += CANCEL_AGAIN_SECONDS
        return False

    def _start(self) -> None:
        if self._thread is not None:
            return
        thread = threading.Thread(target=self._work, name="icesize-background", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no more threads, or the interpreter is ending
            self._notes.append(f"background merge failed: {brief(error)}")
        else:
            # it waits for the lock that is held here
            self._thread = thread

    def _work(self) -> None:
        try:
            while (job := self._next()) is not None:
                if job.merge:
                    self._merge(job)
                if job.expire and not job.stopped():
                    self._expire(job)
        finally:
            with self._changed:
                if self._thread is threading.current_thread():
                    self._thread = None
                    self._changed.notify_all()

    def _next(self) -> Job | None:
        """What to do now; None, and the thread is nobody's any more, when there is nothing."""
        with self._changed:
            if self._pending and self._newest is not None:
                contested = self._backoff.next_batch()
                merge, expire = self._forced or _TABLE not in contested, self._expiry_due
                self._pending = self._forced = self._expiry_due = False
                if merge:
                    self._seen = self._committed
                if merge or expire:
                    self._cancelled = threading.Event()
                    return Job(
                        self._newest, self._tag, self._seen, self._bytes, contested, merge, expire, self._cancelled
                    )
            self._thread = None
            self._changed.notify_all()
            return None

    def _merge(self, job: Job) -> None:
        try:
            current, report = Run(job, self._own_handle(job.kick), self._backoff, self._commit_lock).run()
        except Exception as error:
            self._failed(job, error)
            return
        with self._changed:
            self._looked_at = job.batches
            self._bytes -= job.size_bytes
            self._report = report
            said = (*report.conflicts, *(n for n in report.notes if n not in current.warnings))
            self._notes += [f"background merge: {sentence}" for sentence in said]
        self._backoff.landed([_TABLE])
        if report.snapshot_ids:
            job.kick.refresh()
        if report.snapshot_ids or said:
            LOG.info("%s: in the background: %s", report.table, report)
            job.kick.tell(report)

    def _expire(self, job: Job) -> None:
        kick = job.kick
        note = expiry_note(kick.handle.name, lambda: self._own_handle(kick), kick.environment, self._commit_lock)
        with self._changed:
            self._notes.append(note)

    def _failed(self, job: Job, error: Exception) -> None:
        name = job.kick.handle.name
        with self._changed:
            self._seen = self._looked_at
        if job.stopped():
            LOG.info("%s: merges in the background were stopped", name)
            return
        LOG.warning("%s: merges in the background failed, the batches are committed", name, exc_info=error)
        self._backoff.lost([_TABLE])
        report = Report(table=name, notes=(f"background merge failed: {brief(error)}",))
        with self._changed:
            self._report = report
            self._notes += report.notes
        job.kick.tell(report)

    def _own_handle(self, kick: Kick) -> TableHandle:
        """A handle for this thread alone: what it remembers of manifests is not shared."""
        if self._handles is None or self._handles[0] is not kick.handle:
            theirs = kick.handle
            own = TableHandle(_for_another_thread(theirs.catalog), theirs.identifier, theirs.policy, theirs.spark_conf)
            self._handles = (theirs, own)
        return self._handles[1]


_all: WeakSet[Background] = WeakSet()


@atexit.register
def _stop_all() -> None:
    """A run does not outlive the interpreter half done: stopped here, its files are still removed."""
    for background in list(_all):
        if not background.stop(EXIT_SECONDS):
            LOG.warning("merges in the background did not end in time; orphan cleanup will find their files")


def expiry_note(
    table: str, handle: Callable[[], TableHandle], environment: Environment, commit_lock: threading.Lock
) -> str:
    """Expire snapshots by the table's own rules; what came of it in one line. The batch before it stays committed."""
    try:
        return str(expire_by_own_rules(handle(), environment, commit_lock))
    except Exception as error:
        LOG.warning("%s: snapshots were not expired, the batch is committed", table, exc_info=True)
        return f"expiring snapshots failed: {brief(error)}"


def _cancel_jobs(spark: SparkSession, tag: str) -> None:
    try:
        spark.sparkContext.cancelJobsWithTag(tag)
    except Exception as error:  # Spark is gone, and its jobs with it
        LOG.debug("jobs were not cancelled: %s", type(error).__name__)


def _for_another_thread(catalog: Catalog) -> Catalog:
    """A catalog that this thread may use while another uses the one given.

    SQLAlchemy's engine, boto3's clients and the connections of an HTTP session serve several threads. A Hive catalog
    has one Thrift connection, which each call opens and closes.
    """
    if any(kind.__name__ == "HiveCatalog" for kind in type(catalog).__mro__):
        return type(catalog)(catalog.name, **catalog.properties)
    return catalog
