"""Which tasks a cycle beside a stream runs, and for which batches, without threads."""

from __future__ import annotations

from icesize.spark.stream.background import CLUSTER, EXPIRE, MERGE, Backlog

TASKS = (MERGE, CLUSTER, EXPIRE)


def test_one_cycle_covers_all_batches_that_triggered_it() -> None:
    """Batches that come during a cycle wait for the next one, with their bytes."""
    begun = Backlog().plus(1, 10, [MERGE]).plus(1, 20, [MERGE]).taken(covers=True)
    assert (begun.lag, begun.begun, begun.size_bytes, begun.due) == (2, 2, 30, frozenset())
    done = begun.plus(1, 5, [MERGE]).done(2, 30)
    assert (done.lag, done.size_bytes, done.next_tasks(TASKS, ())) == (1, 5, (MERGE,))
    assert done.done(2, 30) == done


def test_paused_tasks_wait_unless_they_are_forced() -> None:
    """A pause holds a task back, and a drain does not wait for its end; tasks keep their order."""
    backlog = Backlog().plus(1, 10, [EXPIRE, MERGE])
    assert backlog.next_tasks(TASKS, [MERGE]) == (EXPIRE,)
    assert backlog.drained([MERGE, CLUSTER]).next_tasks(TASKS, [MERGE]) == TASKS


def test_a_drain_of_nothing_new_is_nothing() -> None:
    """A run that began after the last batch covers all."""
    backlog = Backlog().plus(1, 10, [MERGE]).taken(covers=True)
    assert backlog.drained([MERGE]) is backlog
    assert backlog.forgotten() == backlog


def test_a_drain_after_a_failed_run_runs_again() -> None:
    """No other run has begun for its batches."""
    failed = Backlog().plus(1, 10, [MERGE]).taken(covers=True).failed()
    assert (failed.lag, failed.due) == (1, frozenset())
    assert failed.drained([MERGE]).next_tasks(TASKS, [MERGE]) == (MERGE,)
