"""The task of each row, from a table of routing keys as an expression that Spark computes.

`to_tasks` then sends the rows to these tasks.

The table becomes an array of small maps, indexed by the key's remainder. Spark receives it as one JSON string: one
call, which Spark folds into a literal before it reads a row. Each lookup compares about four keys.

Plans print their literals, and Spark's history keeps 1,000 printed plans. Longer tables of unsplit keys are therefore
joined instead. Seconds to build, plan and run 1,000,000 rows into 8 tasks (2 cores, Spark 4.1, best of 3).

| keys | key's hash alone | map of literals | broadcast join | two arrays by remainder | this array |
|---|---|---|---|---|---|
| 512 | 0.33 | 1.06 | 0.65 | 0.70 | 0.51 |
| 2,000 | 0.41 | 2.71 | 0.61 | 0.62 | 0.40 |
| 10,000 | 0.22 | - | 0.31 | 0.31 | 0.32 |
| 100,000 | 0.23 | - | 0.62 | 1.35 | 1.16 |

Keys are compared exactly, so a key is never mistaken for another one or for an unknown one. A task is a function of the
row alone.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import mmh3
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

LITERAL_KEYS = 1_000
"""Most unsplit keys written into the plan: each has 25 bytes, and Spark keeps a thousand plans as text."""

ENTRIES_PER_PART = 64
"""Entries that divide the rows of a split key, per part: each share is within a 128th of an average part."""

MOST_ENTRIES = 16_384
"""Most entries of all split keys together; a part has at least 8, so with thousands of tasks shares are coarser."""

_BUCKET_KEYS = 4
TASK = "_icesize_task"
_KEY = "_icesize_key"
_OWNER = "_icesize_owner"

TaskShares: TypeAlias = "tuple[tuple[int, float], ...]"
"""Tasks of one key, with the share of its rows that each receives; shares are > 0 and sum to 1."""


@dataclass(frozen=True)
class TaskAssignment:
    """Destinations of rows: the tasks of known routing keys (`by_key`), and those of all other rows (`unknown`).

    `unknown` None sends all rows of an unknown key to one task, by the key. `spread_by` is a hash of the row (a long)
    that divides the rows of one key. None means that rows cannot be divided: each key has one task, and unknown ones go
    to the first task of `unknown`.
    """

    tasks: int
    by_key: Mapping[int, TaskShares] = field(default_factory=dict)
    spread_by: Column | None = None
    unknown: TaskShares | None = None


def with_task(df: DataFrame, key: Column, assignment: TaskAssignment, *, literal_keys: int = LITERAL_KEYS) -> DataFrame:
    """Return the rows with their tasks, ints, in column `TASK`; more than `literal_keys` unsplit keys are joined."""
    whole = {k: choices[0][0] for k, choices in assignment.by_key.items() if len(choices) == 1}
    if len(whole) <= literal_keys:
        known = [_looked_up(key, whole, "int")] if whole else []
    else:
        # a list, because Spark before 4.0 takes no Arrow table
        owners = df.sparkSession.createDataFrame(list(whole.items()), f"{_KEY} long, {_OWNER} int", verifySchema=False)
        df = df.withColumn(_KEY, key).join(F.broadcast(owners), _KEY, "left")
        key, known = F.col(_KEY), [F.col(_OWNER)]
    # The expression names the key several times, at no cost per row.
    task = F.coalesce(*known, *_divided(key, assignment), _other(key, assignment))
    return df.withColumn(TASK, task.cast("int")).drop(_KEY, _OWNER)


def _looked_up(key: Column, values: Mapping[int, object], kind: str) -> Column:
    """Return the value of `values` (ready for JSON, of Spark type `kind`) for a long; null for unknown keys."""
    count = max(1, len(values) // _BUCKET_KEYS)
    buckets: list[dict[int, object]] = [{} for _ in range(count)]
    for each, value in values.items():
        buckets[each % count][each] = value
    text = json.dumps(buckets, separators=(",", ":"))
    # Keys stay strings, because Spark refuses to cast the keys of a map without ANSI mode.
    table = F.from_json(F.lit(text), f"array<map<string,{kind}>>")
    return F.get(table, F.pmod(key, F.lit(count)).cast("int"))[key.cast("string")]


def _divided(key: Column, assignment: TaskAssignment) -> list[Column]:
    """Return the tasks of split keys, null for all others; nothing if no rows can be divided."""
    split = {k: choices for k, choices in assignment.by_key.items() if len(choices) > 1}
    if assignment.spread_by is None or not split:
        return []
    per_part = max(8, min(ENTRIES_PER_PART, MOST_ENTRIES // sum(map(len, split.values()))))
    runs = _looked_up(key, {k: _run(choices, per_part) for k, choices in split.items()}, "array<int>")
    return [_one_of(runs, assignment.spread_by)]


def _other(key: Column, assignment: TaskAssignment) -> Column:
    if assignment.unknown is None:
        return F.pmod(key, F.lit(assignment.tasks))
    if len(assignment.unknown) == 1 or assignment.spread_by is None:
        return F.lit(assignment.unknown[0][0])
    run = json.dumps(_run(assignment.unknown, ENTRIES_PER_PART))
    return _one_of(F.from_json(F.lit(run), "array<int>"), assignment.spread_by)


def _one_of(run: Column, spread_by: Column) -> Column:
    return F.get(run, F.pmod(spread_by, F.size(run)).cast("int"))


def _run(choices: TaskShares, per_part: int) -> list[int]:
    """Return the tasks, each as often as its share requires, by largest remainder, and at least once."""
    length = per_part * len(choices)
    total = sum(share for _, share in choices)
    exact = [share / total * length for _, share in choices]
    counts = [max(1, int(entries)) for entries in exact]
    by_remainder = sorted(range(len(choices)), key=lambda i: (counts[i] - exact[i], i))
    for i in by_remainder[: max(0, length - sum(counts))]:
        counts[i] += 1
    return [task for (task, _), count in zip(choices, counts, strict=True) for _ in range(count)]


def to_tasks(df: DataFrame, tasks: int) -> DataFrame:
    """Return the rows in `tasks` Spark tasks, exactly as their column `TASK` requires, without that column.

    Rows are hashed by numbers that Spark's own hash sends to the wanted tasks (`repartitionById` came with Spark 4.1).
    The number of tasks is fixed, so that adaptive execution leaves it unchanged.
    """
    keys = F.array(*(F.lit(key) for key in chosen_keys(tasks)))
    return df.withColumn(TASK, keys[F.col(TASK)]).repartition(tasks, F.col(TASK)).drop(TASK)


def chosen_keys(tasks: int) -> list[int]:
    """Return an int for each task that Spark's hash partitioning sends to it: pmod(murmur3(int, seed 42), tasks)."""
    found: dict[int, int] = {}
    candidate = 0
    while len(found) < tasks:
        found.setdefault(mmh3.hash(struct.pack("<i", candidate), 42) % tasks, candidate)
        candidate += 1
    return [found[task] for task in range(tasks)]
