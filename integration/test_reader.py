"""A stream reader of a table whose old versions are cleaned up while it reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path

from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import DataFrame, SparkSession

from icesize.sized_table import SizedTable
from integration.streams import created, reading
from integration.tools import local_path, sized

BATCHES = 12
ROWS = 40
LATE_EVERY = 5


def hour_of(row: int) -> str:
    """An hour has the rows of four batches; every fifth row comes three batches late."""
    batch = row // ROWS - (3 if row % LATE_EVERY == 0 else 0)
    return f"h{max(0, batch) // 4}"


def batch_of(spark: SparkSession, batch: int) -> DataFrame:
    ids = range(batch * ROWS, batch * ROWS + ROWS)
    return spark.createDataFrame([(i, hour_of(i), i / 2) for i in ids], "id long, hour string, v double")


def versions_of(hour: str) -> list[set[int]]:
    """What the partition holds after each batch with rows for it, newest first."""
    versions: list[set[int]] = []
    for batch in range(BATCHES):
        new = {i for i in range(batch * ROWS, batch * ROWS + ROWS) if hour_of(i) == hour}
        if new:
            versions.insert(0, new | (versions[0] if versions else set()))
    return versions


def test_a_reader_goes_on_while_its_table_is_cleaned(
    spark: SparkSession, lake: SqlCatalog, namespace: str, tmp_path: Path
) -> None:
    """Each row once, also for a reader that is away for a while; two versions stay, and little more on disk."""
    table = sized(spark, created(spark, f"lake.{namespace}.t"))
    sink, checkpoint = table.sink("arena", query_id="q"), tmp_path / "checkpoint"
    batches: dict[int, int] = {}
    expired: list[int] = []
    seen: Counter[int] = Counter()

    def write(first: int, last: int) -> Iterator[int]:
        for batch in range(first, last):
            batches.update(dict.fromkeys(sink.run(batch_of(spark, batch), batch).snapshot_ids, batch))
            if batch % 3 == 2:
                expired.extend(expire(table, checkpoint))
            yield batch

    def write_and_read(first: int, last: int) -> None:
        with reading(spark, table.name, checkpoint) as reader:
            for batch in write(first, last):
                if batch % 2 == 0:
                    reader.catch_up()
            reader.catch_up()
        seen.update(reader.seen)

    write_and_read(0, 5)
    assert list(write(5, 9)) == [5, 6, 7, 8]
    write_and_read(9, BATCHES)
    assert seen == Counter(range(BATCHES * ROWS))
    expired += expire(table, checkpoint)
    assert len(expired) >= len(batches) // 2
    check_versions(table)
    check_snapshots(spark, table.name, batches)
    check_disk(spark, table.name, Path(local_path(lake.load_table(f"{namespace}.t").location())))


def expire(table: SizedTable, checkpoint: Path) -> tuple[int, ...]:
    report = table.expire_snapshots(keep_versions=2, older_than=timedelta(0), readers=[str(checkpoint)])
    assert (report.files_failed, report.files_outside, report.dropped_versions) == (0, 0, ())
    return report.snapshot_ids_expired


def check_versions(table: SizedTable) -> None:
    """The last two versions of each partition are listed and can be read."""
    for hour in sorted({hour_of(i) for i in range(BATCHES * ROWS)}):
        newest = table.versions({"hour": hour})[:2]
        rows = [table.read_version({"hour": hour}, v.snapshot_id).select("id").collect() for v in newest]
        assert [sorted(row["id"] for row in found) for found in rows] == list(map(sorted, versions_of(hour)[:2]))


def check_snapshots(spark: SparkSession, name: str, batches: dict[int, int]) -> None:
    """Every snapshot that is left can be read in full by Iceberg's runtime, and shows all batches up to its own."""
    kept = [row["snapshot_id"] for row in spark.sql(f"SELECT snapshot_id FROM {name}.snapshots").collect()]
    reads = (f"SELECT {i}L, count(*), sum(id), sum(hash(hour, v)) FROM {name} VERSION AS OF {i}" for i in kept)
    rows = {row[0]: (row[1], row[2]) for row in spark.sql(" UNION ALL ".join(reads)).collect()}
    ends = {i: (batches[i] + 1) * ROWS for i in kept}
    assert rows == {i: (end, sum(range(end))) for i, end in ends.items()}


def check_disk(spark: SparkSession, name: str, folder: Path) -> None:
    """What lies in the table's folder is hardly more than what the table refers to; of data files, nothing more."""
    data = paths(spark, f"SELECT file_path FROM {name}.all_files")
    reachable = data | paths(spark, f"SELECT path FROM {name}.all_manifests")
    reachable |= paths(spark, f"SELECT manifest_list FROM {name}.snapshots")
    reachable |= paths(spark, f"SELECT file FROM {name}.metadata_log_entries")
    on_disk = {path for path in folder.rglob("*") if path.is_file()}
    assert {path for path in on_disk if path.suffix == ".parquet"} == data
    assert size_of(on_disk) <= 1.1 * size_of(reachable)


def paths(spark: SparkSession, query: str) -> set[Path]:
    return {Path(local_path(row[0])) for row in spark.sql(query).collect()}


def size_of(files: Iterable[Path]) -> int:
    return sum(file.stat().st_size for file in files)
