"""How many tasks write a batch, and how many merge beside them, so that both end at one time."""

from __future__ import annotations

import math
from collections.abc import Sequence

MOST_TASK_BYTES = 2**30
"""Bytes that one task writes at most, half a minute: what is lost when it fails and runs again."""

MERGE_COST = 0.5
"""Time of merging a byte, of writing a new one: 65-75 MB/s decoded and encoded against 35 MB/s through Spark."""


def tasks_for(work_bytes: float, cores: int, task_bytes: int) -> int:
    """Tasks for a batch: one per core, fewer for little work, more in whole waves where one would write too much.

    `work_bytes` are bytes to write and the cost of closing files; fewer than `task_bytes` are not worth a task.
    """
    waves = max(1, math.ceil(work_bytes / (MOST_TASK_BYTES * cores)))
    return max(1, min(waves * cores, math.ceil(work_bytes / task_bytes)))


def side_by_side(work_bytes: float, merges_bytes: Sequence[int], tasks: int, cores: int) -> tuple[int, int]:
    """Tasks that write the batch, and Spark tasks that merge at the same time.

    Divides the cores between a write job that would take `tasks` tasks and the merge groups of a Spark job.

    Rows can be divided over any number of tasks, a merge group cannot: where groups would still run when the rows
    are written they get cores of their own from the start. Of all divisions the one that ends first, of equal ones
    that with most tasks for the rows. A batch of several waves is not divided: merges fill the gaps at its end.
    """
    merging = MERGE_COST * sum(merges_bytes)
    slots = max(1, min(cores, len(merges_bytes)))
    if not merging or tasks > cores:
        return tasks, slots
    longest = MERGE_COST * max(merges_bytes)
    one_after_the_other = work_bytes / tasks + max(merging / slots, longest)
    divisions = [(one_after_the_other, -tasks, slots)]
    for merge_tasks in range(1, min(cores - 1, len(merges_bytes)) + 1):
        writers = min(tasks, cores - merge_tasks)
        divisions.append((max(work_bytes / writers, merging / merge_tasks, longest), -writers, merge_tasks))
    _, writers, merge_tasks = min(divisions)
    return -writers, merge_tasks
