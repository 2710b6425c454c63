"""Rows per partition of a batch, counted by Spark: one pass over the source columns of the partition values only."""

from __future__ import annotations

from collections import Counter

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from icesize.parquet.files.settings import WriteSettings
from icesize.planning.files import PartitionKey
from icesize.planning.routing.expected_rows import MOST_KEYS
from icesize.spark.engine.jobs import fetch
from icesize.spark.routing import partition_keys, sketches
from icesize.spark.routing.write_plan import PartitionRows

_KEY = "_icesize_key"
_ROWS = "_icesize_rows"


def count_rows(df: DataFrame, settings: WriteSettings) -> PartitionRows:
    """Rows of each partition, by routing key too; of more than `MOST_KEYS` the heaviest, from sketches of another pass.

    Spark counts by key and keeps one row of each; which partition that row belongs to is computed here, exactly as
    where rows are written. Raises SchemaMismatch when a row does not fit.
    """
    key = partition_keys.partition_key(settings.spec, settings.schema)
    columns = partition_keys.source_columns(settings.spec, settings.schema)
    kept = [F.first(F.col(f"`{column}`")).alias(column) for column in columns]
    counted = df.groupBy(key.alias(_KEY)).agg(F.count(F.lit(1)).alias(_ROWS), *kept)
    table = fetch(counted.limit(MOST_KEYS + 1) if columns else counted)
    if table.num_rows > MOST_KEYS:
        return _partition_rows(*sketches.heavy_keys(df, settings, columns, key), is_complete=False)
    rows = dict(zip(table.column(_KEY).to_pylist(), table.column(_ROWS).to_pylist(), strict=True))
    if not columns:
        # nothing to compute a partition from: there is one
        void = PartitionKey(settings.spec_id, tuple(None for _ in settings.spec.fields))
        return _partition_rows({(number, void): count for number, count in rows.items()}, sum(rows.values()), True)
    found = sketches.partitions_of(table.select([_KEY, *columns]), settings, columns) if rows else ()
    return _partition_rows({(number, partition): rows[number] for number, partition in found}, sum(rows.values()), True)


def _partition_rows(counted: dict[tuple[int, PartitionKey], int], in_all: int, is_complete: bool) -> PartitionRows:
    rows: Counter[PartitionKey] = Counter()
    by_key: dict[int, PartitionKey] = {}
    # a key that two partitions share goes where the heavier one goes
    for (key, partition), count in sorted(counted.items(), key=lambda item: (-item[1], item[0][0])):
        rows[partition] += count
        by_key.setdefault(key, partition)
    return PartitionRows(rows, by_key, in_all, is_complete=is_complete)
