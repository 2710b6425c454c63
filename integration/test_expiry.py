"""Expiry and orphan cleanup delete exactly what Iceberg's own procedures delete, on tables that many hands wrote.

Each table is expired twice: by icesize, and then, put back as it was on disk and in the catalog, by Iceberg.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

from icesize import failpoints
from icesize.table.cleanup.expiry import ExpiryReport
from integration.histories import History, in_turn, random_history
from integration.tools import local_path
from tests.support.tables import live_paths, write

FAST = 1
"""Of the twenty histories, those that every run goes through."""
RACED = (3, 7, 11, 15, 19)
"""Histories whose expiry loses its first two swaps to a restore and a new tag."""


@dataclass
class Kept:
    """The table at one moment: files on disk (with a copy), what its snapshots hold, and the catalog's pointer."""

    files: set[str]
    contents: dict[int, tuple[int, int]]
    metadata_location: str
    copy: Path

    @classmethod
    def of(cls, history: History, copy: Path) -> Kept:
        shutil.copytree(history.folder, copy)
        return cls(history.snapshot_files(), history.contents(), history.table.metadata_location, copy)

    def put_back(self, history: History) -> None:
        shutil.copytree(self.copy, history.folder, dirs_exist_ok=True)
        history.lake.drop_table(history.name)
        history.lake.register_table(history.name, self.metadata_location)


def expire_by_iceberg(history: History, ours: ExpiryReport, older_than: datetime, retain_last: int) -> dict[str, int]:
    """Iceberg's expiry by the same rules, less the newest run that icesize keeps beyond them for stream readers."""
    kept = {int(i) for i, why in ours.kept.items() if all("newest append of branch 'main'" in reason for reason in why)}
    if kept:
        ids = ", ".join(map(str, ours.snapshot_ids_expired)) or "-1"
        rules = f"snapshot_ids => array({ids})"
    else:
        rules = f"older_than => timestamp '{older_than:%Y-%m-%d %H:%M:%S.%f}', retain_last => {retain_last}"
    (counts,) = history.sql(f"CALL lake.system.expire_snapshots(table => '{{n}}', {rules})")
    return {name.removeprefix("deleted_").removesuffix("_count"): n for name, n in counts.asDict().items() if n}


def counted_as_iceberg_does(report: ExpiryReport) -> dict[str, int]:
    names = {
        "data_files": "data_files",
        "delete_files": "position_delete_files",
        "manifests": "manifest_files",
        "manifest_lists": "manifest_lists",
        "other_files": "statistics_files",
    }
    return {name: report.files_deleted[kind] for kind, name in names.items() if kind in report.files_deleted}


@pytest.mark.parametrize(
    "seed", [pytest.param(n, marks=[pytest.mark.slow] if n >= FAST else [], id=f"{n}") for n in range(20)]
)
def test_expiry_deletes_what_iceberg_deletes(
    spark: SparkSession, lake: SqlCatalog, namespace: str, tmp_path: Path, seed: int
) -> None:
    """On a random history, by random rules, and on some while a restore and a new tag come between."""
    history = random_history(spark, lake, namespace, seed)
    times = sorted(s.timestamp_ms for s in history.table.metadata.snapshots)
    older_than = datetime.fromtimestamp(history.chance.choice(times[-3:]) / 1000, timezone.utc)
    retain_last = history.chance.choice([1, 1, 2, 2])
    before = [Kept.of(history, tmp_path / "0")]

    def rivals() -> Iterator[None]:
        history.append("r")
        history.icesize.restore({"kind": "r"}, history.main()[-1])
        before.append(Kept.of(history, tmp_path / "1"))
        yield
        history.sql(f"ALTER TABLE {{t}} CREATE TAG late AS OF VERSION {history.main()[-2]}")
        before.append(Kept.of(history, tmp_path / "2"))
        yield

    with failpoints.armed("before-swap", in_turn(rivals())) if seed in RACED else nullcontext():
        report = history.icesize.expire_snapshots(older_than=older_than, retain_last=retain_last)
    assert len(before) == (3 if seed in RACED else 1)
    check_against_iceberg(history, before[-1], report, older_than, retain_last)


@pytest.mark.parametrize("engine", ["iceberg", "pyiceberg"])
def test_an_expiry_after_one_of_another_engine(
    spark: SparkSession, lake: SqlCatalog, namespace: str, tmp_path: Path, engine: str
) -> None:
    """Files of snapshots that somebody else expired go with the last snapshot that has them, whoever added them."""
    history = History(spark, lake, namespace, random.Random(0))
    history.create(2)
    history.append("r")
    history.append("r")
    if engine == "iceberg":
        # snapshots keep the ids of parents that are gone
        history.sql("CALL lake.system.expire_snapshots(table => '{n}', older_than => now(), retain_last => 1)")
    else:
        history.table.maintenance.expire_snapshots().by_ids(history.main()[1:]).commit()
    history.compact()
    history.append("r")
    before, older_than = Kept.of(history, tmp_path / "0"), datetime.now(timezone.utc)
    report = history.icesize.expire_snapshots(older_than=older_than, retain_last=1)
    assert report.files_deleted["data_files"] == 2
    check_against_iceberg(history, before, report, older_than, 1)


def check_against_iceberg(
    history: History, then: Kept, report: ExpiryReport, older_than: datetime, retain_last: int
) -> None:
    """What is left can be read in full, and Iceberg, given the table as it was then, makes the same of it."""
    assert report.snapshot_ids_expired != ()
    kept = set(then.contents) - set(report.snapshot_ids_expired)
    assert history.contents() == {snapshot_id: then.contents[snapshot_id] for snapshot_id in kept}
    ours = then.files - history.snapshot_files()
    then.put_back(history)
    counts = expire_by_iceberg(history, report, older_than, retain_last)
    assert {s.snapshot_id for s in history.table.metadata.snapshots} == kept
    assert ours == then.files - history.snapshot_files()
    assert counted_as_iceberg_does(report) == counts


def test_an_expiry_in_the_middle_of_a_restore(spark: SparkSession, lake: SqlCatalog, namespace: str) -> None:
    """The version that is being restored keeps its files, although no rule of the expiry keeps its snapshot."""
    history = History(spark, lake, namespace, random.Random(0))
    history.create(2)
    for _ in range(4):
        history.append("r")
    history.overwrite()
    history.compact()
    contents, first = history.contents(), history.main()[-1]
    expired: list[int] = []

    def rivals() -> Iterator[None]:
        # the first swap makes the tag, the second the restore
        yield
        report = history.icesize.expire_snapshots(older_than=timedelta(0), retain_last=1)
        expired.extend(report.snapshot_ids_expired)
        yield

    with failpoints.armed("before-swap", in_turn(rivals())):
        history.icesize.restore({"kind": "r"}, first)
    assert expired == sorted(set(contents) - {first, *history.main()[1:]}, key=list(contents).index)
    found = history.contents()
    assert {i: found[i] for i in found if i in contents} == {i: contents[i] for i in contents if i not in expired}
    restored = history.sql("SELECT count(*) FROM {t} WHERE kind = 'r'")[0][0]
    assert (len(expired) >= 2, restored) == (True, 4)
    assert set(history.table.metadata.refs) == {"main"}


@pytest.mark.parametrize(
    "seed", [pytest.param(n, marks=[pytest.mark.slow] if n >= 1 else [], id=f"{n}") for n in range(10)]
)
def test_orphan_cleanup_deletes_what_iceberg_names(
    spark: SparkSession, lake: SqlCatalog, namespace: str, seed: int
) -> None:
    """Files that nobody needs, of every kind and age and in every folder, on a table whose own files are old too."""
    history = random_history(spark, lake, namespace, 100 + seed)
    contents = history.contents()
    leave_orphans(history)
    named = iceberg_orphans(history)
    assert len(named) >= 2
    before = history.files()
    report = history.icesize.remove_orphan_files(timedelta(days=3), dry_run=False)
    assert before - history.files() == named
    assert (report.files_deleted, report.files_failed, report.from_committed_batches) == (len(named), 0, 0)
    assert history.contents() == contents
    assert iceberg_orphans(history) == set()


def leave_orphans(history: History) -> None:
    """Data files, manifests and lists that no snapshot has, in folders of all kinds; some younger than three days."""
    folder, chance = history.folder, history.chance
    write(history.table, history.next_ids(3), "a")
    file = next(folder.glob("data/kind=r/*.parquet"))
    names = ["data/kind=a/old.parquet", "data/deep/er/b.parquet", "data/kind=_a/under.parquet", "c.parquet", "other/d"]
    names += ["data/.hidden/e.parquet", "_temporary/0/f.parquet", "data/_g.parquet", "data/.h.parquet", "data/i j.txt"]
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, folder / name)
    for kind in ("snap-*.avro", "*-m0.avro", "*.metadata.json"):
        found = sorted(folder.glob(f"metadata/{kind}"))[0]
        shutil.copy(found, found.with_name(f"{found.name.split('.')[0]}-copy.{found.name.split('.', 1)[1]}"))
    now_s = time.time()
    for path in [p for p in folder.rglob("*") if p.is_file()]:
        age_hours = chance.choice([1, 71, 73, 100, 240])
        os.utime(path, (now_s, now_s - age_hours * 3600))


def iceberg_orphans(history: History) -> set[str]:
    """What Iceberg's procedure would delete, as paths below the table's location."""
    older_than = datetime.now(timezone.utc) - timedelta(days=3)
    found = history.sql(
        "CALL lake.system.remove_orphan_files(table => '{n}', dry_run => true, "
        f"older_than => timestamp '{older_than:%Y-%m-%d %H:%M:%S}')"
    )
    return {str(Path(local_path(row[0])).relative_to(history.folder)) for row in found}


@pytest.mark.parametrize("removed_by", ["compact", "overwrite"])
def test_what_was_restored_outlives_an_expiry_by_iceberg(
    spark: SparkSession, lake: SqlCatalog, namespace: str, removed_by: str
) -> None:
    """Iceberg's Java library deletes what an expired snapshot has removed, without looking whether it is live again.

    It does so where snapshots are one line without tags, when called by its own API, as Flink and Trino do.
    """
    history = History(spark, lake, namespace, random.Random(0))
    history.create(2)
    for _ in range(3):
        history.append("r")
    version, rows = history.main()[0], history.sql("SELECT * FROM {t} WHERE kind = 'r' ORDER BY id")
    if removed_by == "compact":
        history.compact()
    else:
        history.sql("INSERT OVERWRITE {t} PARTITION (kind = 'r') SELECT 99L, timestamp_ntz '2024-01-01'")
    history.append("a")
    history.icesize.restore({"kind": "r"}, version)
    expire_by_java(history)
    assert history.sql("SELECT * FROM {t} WHERE kind = 'r' ORDER BY id") == rows
    assert all(Path(local_path(path)).is_file() for path in live_paths(history.table))


def expire_by_java(history: History) -> None:
    """All but the head, by the Java API, which takes its shorter way."""
    history.sql("REFRESH TABLE {t}")
    jvm, session = history.spark._jvm, history.spark._jsparkSession  # type: ignore[attr-defined]
    table = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(session, f"lake.{history.name}")
    table.expireSnapshots().expireOlderThan(int(time.time() * 1000)).retainLast(1).commit()
    assert len(history.table.metadata.snapshots) == 1
