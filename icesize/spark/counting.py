"""Rows per partition of a batch, counted by Spark: one pass over the source columns of the partition values only."""

from __future__ import annotations

from collections import Counter

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from icesize.parquet.settings import WriteSettings
from icesize.planning.layout import PartitionKey
from icesize.planning.traffic import MOST_KEYS
from icesize.spark import keys, sketches
from icesize.spark.jobs import fetch
from icesize.spark.shapes import Holdings

_KEY = "_icesize_key"
_ROWS = "_icesize_rows"


def count_rows(df: DataFrame, settings: WriteSettings) -> Holdings:
    """Rows of each partition, by routing key too; of more than `MOST_KEYS` the heaviest, from sketches of another pass.

    Spark counts by key and keeps one row of each; which partition that row belongs to is computed here, exactly as
    where rows are written. Raises SchemaMismatch when a row does not fit.
    """
    key = keys.partition_key(settings.spec, settings.schema)
    columns = keys.source_columns(settings.spec, settings.schema)
    kept = [F.first(F.col(f"`{column}`")).alias(column) for column in columns]
    counted = df.groupBy(key.alias(_KEY)).agg(F.count(F.lit(1)).alias(_ROWS), *kept)
    table = fetch(counted.limit(MOST_KEYS + 1) if columns else counted)
    if table.num_rows > MOST_KEYS:
        return _holdings(*sketches.heavy_keys(df, settings, columns, key), is_complete=False)
    rows = dict(zip(table.column(_KEY).to_pylist(), table.column(_ROWS).to_pylist(), strict=True))
    if not columns:
        # nothing to compute a partition from: there is one
        void = PartitionKey(settings.spec_id, tuple(None for _ in settings.spec.fields))
        return _holdings({(number, void): count for number, count in rows.items()}, sum(rows.values()), True)
    found = sketches.partitions_of(table.select([_KEY, *columns]), settings, columns) if rows else ()
    return _holdings({(number, partition): rows[number] for number, partition in found}, sum(rows.values()), True)


def _holdings(counted: dict[tuple[int, PartitionKey], int], in_all: int, is_complete: bool) -> Holdings:
    rows: Counter[PartitionKey] = Counter()
    by_key: dict[int, PartitionKey] = {}
    # a key that two partitions share goes where the heavier one goes
    for (key, partition), count in sorted(counted.items(), key=lambda item: (-item[1], item[0][0])):
        rows[partition] += count
        by_key.setdefault(key, partition)
    return Holdings(rows, by_key, in_all, is_complete=is_complete)
