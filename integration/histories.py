"""Tables that many hands wrote: icesize, PyIceberg and Iceberg's Spark runtime, in an order that a seed decides."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyspark.sql import SparkSession

import icesize
from icesize.sized_table import SizedTable
from integration.tools import POLICY, local_path
from tests.support.tables import SCHEMA, arrow, request_on, run, spec_of, write

DAY_MS = 86_400_000
_BRANCH_RETENTIONS: Sequence[dict[str, int]] = (
    {},
    {"max_snapshot_age_ms": 1},
    {"max_snapshot_age_ms": 1, "min_snapshots_to_keep": 2},
    {"max_snapshot_age_ms": DAY_MS},
)


@dataclass
class History:
    """A table of the catalog that Spark and PyIceberg share, and what can happen to it.

    Rows have ids that never come twice, partitions are `a` and `b`, and `r`, whose rows only icesize writes.
    """

    spark: SparkSession
    lake: SqlCatalog
    namespace: str
    chance: random.Random
    ids: Iterator[int] = field(default_factory=lambda: iter(range(10**9)))

    @property
    def name(self) -> str:
        return f"{self.namespace}.t"

    @property
    def table(self) -> Table:
        return self.lake.load_table(self.name)

    @property
    def icesize(self) -> SizedTable:
        """Without Spark: what is expired, merged and restored here needs none."""
        return icesize.open(None, self.name, catalog=self.lake, policy=dict(POLICY))

    @property
    def folder(self) -> Path:
        return Path(local_path(self.table.location()))

    def create(self, version: int) -> None:
        properties = {"format-version": str(version)}
        if version == 2:
            properties |= dict.fromkeys(("write.delete.mode", "write.update.mode"), "merge-on-read")
        spec = spec_of({"kind": "identity"})
        self.lake.create_table(self.name, SCHEMA, partition_spec=spec, properties=properties)

    def sql(self, statement: str) -> list[Any]:
        return self.spark.sql(statement.format(t=f"lake.{self.name}", n=self.name)).collect()

    def next_ids(self, count: int) -> list[int]:
        return [next(self.ids) for _ in range(count)]

    def kind(self) -> str:
        return self.chance.choice("ab")

    def append(self, kind: str | None = None) -> None:
        """One file, in an icesize commit."""
        table = self.table
        run(self.lake, request_on(table, [write(table, self.next_ids(4), kind or self.kind())]), table)

    def append_by_pyiceberg(self) -> None:
        self.table.append(arrow(self.next_ids(3), self.kind()))

    def compact(self) -> None:
        """All that may be merged, in an icesize commit."""
        self.icesize.compact()

    def insert(self, branch: str = "") -> None:
        """One file, by Spark."""
        first, *_ = self.next_ids(6)
        self.sql(
            f"INSERT INTO {{t}}{branch} SELECT /*+ COALESCE(1) */ id, '{self.kind()}', timestamp_ntz '2024-01-01' "
            f"FROM range({first}, {first + 6})"
        )

    def delete(self) -> None:
        """Some rows of each partition that is not only ours: delete files in format version 2."""
        self.sql(f"DELETE FROM {{t}} WHERE kind <> 'r' AND id % 7 = {self.chance.randrange(7)}")

    def update(self) -> None:
        self.sql(f"UPDATE {{t}} SET id = id + 1000000 WHERE kind = '{self.kind()}' AND id % 5 = 0")

    def overwrite(self) -> None:
        first, *_ = self.next_ids(6)
        self.sql(
            f"INSERT OVERWRITE {{t}} PARTITION (kind = '{self.kind()}') "
            f"SELECT id, timestamp_ntz '2024-01-01' FROM range({first}, {first + 6})"
        )

    def drop_partition(self) -> None:
        """A delete of whole files, which touches metadata only."""
        self.sql(f"DELETE FROM {{t}} WHERE kind = '{self.kind()}'")

    def rewrite_manifests(self) -> None:
        if self.chance.random() < 0.5:
            self.icesize.rewrite_manifests()
        else:
            self.sql("CALL lake.system.rewrite_manifests('{n}')")

    def rewrite_data_files(self) -> None:
        self.sql("CALL lake.system.rewrite_data_files(table => '{n}', options => map('rewrite-all', 'true'))")

    def rollback(self) -> None:
        """Snapshots that no branch leads to any more."""
        self.table.manage_snapshots().rollback_to_snapshot(self.chance.choice(self.main()[:3])).commit()

    def tag(self) -> None:
        """A tag on any snapshot, every third of them too old already."""
        age_ms = 1 if self.chance.random() < 0.33 else None
        self.table.manage_snapshots().create_tag(self.any_snapshot(), f"tag{next(self.ids)}", age_ms).commit()

    def branch(self) -> None:
        """A branch of any snapshot, with rows of its own and a retention of its own."""
        name = f"branch{next(self.ids)}"
        retention = self.chance.choice(_BRANCH_RETENTIONS)
        self.table.manage_snapshots().create_branch(self.any_snapshot(), name, **retention).commit()
        self.insert(f".branch_{name}")

    def drop_ref(self) -> None:
        refs = sorted(name for name in self.table.metadata.refs if name != "main")
        if refs:
            name = self.chance.choice(refs)
            self.sql(f"ALTER TABLE {{t}} DROP {'BRANCH' if name.startswith('branch') else 'TAG'} {name}")

    def expire(self) -> None:
        """The oldest snapshots, so that parents are missing; PyIceberg leaves all of their files where they are."""
        main = self.main()
        if (by := self.chance.randrange(3)) == 0:
            self.icesize.expire_snapshots(retain_last=3, older_than=timedelta(0))
        elif by == 1:
            self.sql("CALL lake.system.expire_snapshots(table => '{n}', retain_last => 3, older_than => now())")
        else:
            held = {ref.snapshot_id for ref in self.table.metadata.refs.values()}
            ids = [snapshot_id for snapshot_id in main[3:] if snapshot_id not in held]
            self.table.maintenance.expire_snapshots().by_ids(ids).commit()

    def statistics(self) -> None:
        """A statistics file and one of partition statistics, of the newest snapshot."""
        self.sql("CALL lake.system.compute_table_stats('{n}')")
        self.sql("CALL lake.system.compute_partition_stats('{n}')")

    def main(self) -> list[int]:
        """The snapshots of main, newest first."""
        by_id, found = {s.snapshot_id: s for s in self.table.metadata.snapshots}, self.table.current_snapshot()
        ids = []
        while found is not None:
            ids.append(found.snapshot_id)
            found = by_id.get(found.parent_snapshot_id or 0)
        return ids

    def any_snapshot(self) -> int:
        return self.chance.choice([s.snapshot_id for s in self.table.metadata.snapshots])

    def files(self) -> set[str]:
        """Everything below the table's location but hidden files, as are Hadoop's checksums."""
        paths = (path for path in self.folder.rglob("*") if path.is_file() and not path.name.startswith("."))
        return {str(path.relative_to(self.folder)) for path in paths}

    def snapshot_files(self) -> set[str]:
        """The same without metadata files: icesize deletes those that have dropped out of the log, Iceberg does not."""
        return {path for path in self.files() if not path.endswith(".json")}

    def contents(self) -> dict[int, tuple[int, int]]:
        """Rows and a sum over all values of every snapshot, read in full by Iceberg's runtime."""
        ids = [s.snapshot_id for s in self.table.metadata.snapshots]
        reads = (f"SELECT {i}, count(*), sum(hash(*)) FROM {{t}} VERSION AS OF {i}" for i in ids)
        return {row[0]: (row[1], row[2]) for row in self.sql(" UNION ALL ".join(reads))}


COMMITS: Sequence[tuple[Callable[[History], None], int]] = (
    (History.append, 5),
    (History.append_by_pyiceberg, 3),
    (History.compact, 4),
    (History.insert, 3),
    (History.delete, 3),
    (History.update, 1),
    (History.overwrite, 2),
    (History.drop_partition, 1),
    (History.rewrite_manifests, 2),
    (History.rewrite_data_files, 1),
    (History.rollback, 2),
    (History.tag, 2),
    (History.branch, 2),
    (History.drop_ref, 1),
    (History.statistics, 1),
    (History.expire, 1),
)
"""What may happen to a table, and how often in proportion."""


def random_history(spark: SparkSession, lake: SqlCatalog, namespace: str, seed: int) -> History:
    """Two batches that can be restored, then 6 to 13 steps by any hand; every fourth table is of format version 1."""
    history = History(spark, lake, namespace, random.Random(seed))
    history.create(1 if seed % 4 == 2 else 2)
    history.append("r")
    history.append("r")
    actions, weights = zip(*COMMITS, strict=True)
    for action in history.chance.choices(actions, weights, k=history.chance.randrange(6, 14)):
        action(history)
    # a merge at the end is kept with the append before it; Iceberg's own rules do not know of that
    for action in history.chance.choices([History.append, History.compact, History.delete], k=4):
        action(history)
    return history


def in_turn(rivals: Iterator[None]) -> Callable[[], None]:
    """Runs one rival each time it is called; what the rivals themselves pass on their way calls nothing."""
    running: list[bool] = []

    def act() -> None:
        if not running:
            running.append(True)
            next(rivals, None)
            running.clear()

    return act
