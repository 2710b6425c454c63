"""Rows per partition of a batch, counted by Spark: one pass over the source columns of the partition values only."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from icesize.parquet.files.partitioning import split_by_partition
from icesize.parquet.files.settings import WriteSettings, pruned
from icesize.parquet.reading.column_matching import ColumnAligner
from icesize.planning.files import PartitionKey
from icesize.planning.routing.expected_rows import MOST_KEYS
from icesize.spark.engine.jobs import fetch
from icesize.spark.routing import partition_keys
from icesize.spark.routing.write_plan import PartitionRows

_KEY = "_icesize_key"
_ROWS = "_icesize_rows"


def count_rows(df: DataFrame, settings: WriteSettings, *, most_keys: int = MOST_KEYS) -> PartitionRows:
    """Rows of each partition, by routing key too; of more than `most_keys` the heaviest, and the number of all rows.

    Spark counts by key, exactly, and keeps one row of each; which partition that row belongs to is computed here, as
    where rows are written. Only the rows of the heaviest keys come to this process. Of more than `most_keys` all rows
    are counted by a second pass, which reads no column. Raises SchemaMismatch when a row does not fit.

    Measured on 1,000,000 rows by two cores (seconds), against frequent-items sketches of a second pass, whose counts
    were up to a 9,000th of all rows too high: 30,000 keys 1.7 (sketches 4.3), 200,000 keys 1.3 (2.1), as many keys as
    rows 3.0 (4.9).
    """
    key = partition_keys.partition_key(settings.spec, settings.schema)
    columns = partition_keys.source_columns(settings.spec, settings.schema)
    kept = [F.first(F.col(f"`{column}`")).alias(column) for column in columns]
    counted = df.groupBy(key.alias(_KEY)).agg(F.count(F.lit(1)).alias(_ROWS), *kept)
    table = fetch(counted.orderBy(F.desc(_ROWS), _KEY).limit(most_keys + 1))
    is_complete, table = table.num_rows <= most_keys, table.slice(0, most_keys)
    rows = dict(zip(table[_KEY].to_pylist(), table[_ROWS].to_pylist(), strict=True))
    in_all = sum(rows.values()) if is_complete else fetch(df.groupBy().count())["count"][0].as_py()
    by_key = _partitions_by_key(table, columns, settings) if rows else {}
    partitions: Counter[PartitionKey] = Counter()
    for number, partition in by_key.items():
        partitions[partition] += rows[number]
    return PartitionRows(partitions, by_key, in_all, is_complete=is_complete)


def _partitions_by_key(samples: pa.Table, columns: list[str], settings: WriteSettings) -> dict[int, PartitionKey]:
    """The partition of each routing key, from `columns` of one row of it."""
    if not columns:
        # nothing to compute a partition from: there is one
        void = PartitionKey(settings.spec_id, tuple(None for _ in settings.spec.fields))
        return dict.fromkeys(samples[_KEY].to_pylist(), void)
    sources = pruned(settings, columns)
    rows = ColumnAligner(sources)(samples.select(columns)).append_column(_KEY, samples[_KEY])
    groups = split_by_partition(rows, sources)
    return {key: partition for partition, group in groups for key in group[_KEY].to_pylist()}
