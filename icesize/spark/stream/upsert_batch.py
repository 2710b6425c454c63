"""The rows of a batch of upserts, as events with the table's columns.

The condition for deletes is computed on the columns of the batch, before columns that the table lacks are dropped. The
driver fetches the events, and `icesize.table.upserts.batch` resolves them. A batch that the driver cannot
hold stays in Spark's cache, and the driver fetches slice after slice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as spark_types

from icesize.parquet.files.data_file import Results
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.files.uncommitted import Uncommitted
from icesize.planning.file_counts import in_batches
from icesize.planning.plan import MergeTask
from icesize.planning.upsert_rule import UpsertRule
from icesize.spark.engine import columns, session
from icesize.spark.engine.jobs import fetch
from icesize.spark.engine.merge_job import MergeRun
from icesize.spark.stream.new_columns import fold_of, with_columns_of
from icesize.spark.stream.options import SinkOptions
from icesize.spark.stream.process_state import TableState
from icesize.table.commit.batch_commit import Batch
from icesize.table.commit.exactly_once import PlanAgain
from icesize.table.state.handle import Current
from icesize.table.upserts.batch import FetchSlice, RunMerges, Upserts
from icesize.table.upserts.conditions import deletes
from icesize.table.upserts.events import Mask
from icesize.table.upserts.settings import UpsertOptions, require_columns, rule_columns

_LEAST_ROW_BYTES = 4
"""Bytes of a row at its source, at least: a few columns, compressed."""
_FEW_ENOUGH = 0.1
"""Share of the driver's limit up to which the rows of the last batch make a count of this one unnecessary."""
_HASH, _HASHES = "_icesize_hash", 4096
_IS_DELETE = spark_types.StructField("_icesize_is_delete", spark_types.BooleanType())


def upserts(df: DataFrame, options: SinkOptions, state: TableState, cached: ExitStack) -> Upserts:
    """Return the rows of a batch as upserts. They may stay in Spark's cache until `cached` ends."""
    wanted = options.upsert or UpsertOptions()
    events = EventsOfBatch(df, options, wanted.unwritten, state, cached)
    return Upserts(
        wanted, events.fetch, state.upserts, events.prepare, wanted.null_key == "skip", _merges(df, options),
        wanted.maps,
    )  # fmt: skip


def _merges(df: DataFrame, options: SinkOptions) -> RunMerges | None:
    if options.merge != "inline":
        return None
    environment = options.environment
    if session.is_local(df.sparkSession):
        # nothing else runs on the cores: Spark's workers would start on them first, which took up to ten seconds
        most = environment.limits.local_work_bytes
        limits = replace(environment.limits, driver_merge_bytes=most, driver_copy_bytes=most)
        environment = replace(environment, limits=limits)

    def run(
        groups: Mapping[int, MergeTask], settings: WriteSettings, owner: Uncommitted, timeout_seconds: float | None
    ) -> Results:
        with MergeRun(df.sparkSession, settings, owner, environment) as merging:
            merging.start(groups)
            return merging.finish(timeout_seconds)

    return run


@dataclass
class EventsOfBatch:
    """The rows of a DataFrame as events of a table. `except_columns` are not written.

    Rows may stay in Spark's cache until `cached` ends.
    """

    df: DataFrame
    options: SinkOptions
    except_columns: tuple[str, ...]
    state: TableState
    cached: ExitStack
    _rows: int | None = None

    def prepare(self, batch: Batch, current: Current) -> Current:
        """Add the columns that the table lacks if the options allow it; return the newest state of the table.

        Raises SchemaMismatch for columns that are neither known nor wanted.
        """
        require_columns({"except_columns": self.except_columns}, self.df.columns, current.name, self._fold)
        way_on = "leave them out with 'except_columns', drop them"
        return with_columns_of(self._written, batch, current, self.options, is_whole=False, way_on=way_on)

    def fetch(self, current: Current, rule: UpsertRule) -> list[FetchSlice]:
        """Return the functions that fetch the events, with the columns of the table, and which of them are deletes.

        A batch that the driver cannot hold has a slice for each range of hashes of the key.
        """
        fitted = self.fitted(current, rule)
        if self._rows is None and not self._is_few:
            self._count()
        if (self._rows or 0) <= self._limit:
            return [partial(self._events, fitted.limit(self._limit + 1))]
        schema = current.table.metadata.schema()
        keys = [F.col(f"`{schema.find_column_name(each)}`") for each in rule.key]
        marked = fitted.withColumn(_HASH, F.pmod(F.xxhash64(*keys), F.lit(_HASHES)))
        # sorted, so that each slice is a range of Spark's cache, whose other parts are not read
        cached = self._cache(marked.sortWithinPartitions(_HASH))
        counts = fetch(cached.groupBy(_HASH).count()).sort_by(_HASH).to_pylist()
        ranges = in_batches(counts, lambda each: int(each["count"]), self._limit)
        slices = [cached.where(F.col(_HASH).between(some[0][_HASH], some[-1][_HASH])) for some in ranges]
        return [partial(self._events, each.drop(_HASH)) for each in slices]

    def _events(self, fitted: DataFrame) -> tuple[pa.Table, Mask]:
        rows = fetch(fitted)
        if self._rows is None and rows.num_rows > self._limit:
            self._count()
            raise PlanAgain("the batch has more rows than were expected, and was read again in slices")
        self.state.rows_upserted = max(rows.num_rows, self._rows or 0)
        is_delete: Mask = np.asarray(rows.column(_IS_DELETE.name), dtype=np.bool_)
        return rows.drop_columns([_IS_DELETE.name]), is_delete

    @property
    def _limit(self) -> int:
        return self.options.environment.limits.driver_upserts

    def _cache(self, df: DataFrame) -> DataFrame:
        self.cached.callback(df.unpersist)
        return df.persist()

    @property
    def _is_few(self) -> bool:
        """Return whether the rows are probably few, by their source or by the last batch."""
        last = self.state.rows_upserted
        if last is not None and last <= _FEW_ENOUGH * self._limit:
            return True
        return session.source_bytes(self.df) <= self._limit * _LEAST_ROW_BYTES

    def _count(self) -> None:
        """Count the rows. Those that are expensive to compute are computed once for both the count and the rest."""
        if not session.is_cheap_to_read_again(self.df):
            self._cache(self.df)
        self._rows = self.df.count()

    def fitted(self, current: Current, rule: UpsertRule) -> DataFrame:
        """Return the batch with the columns of the table, and one that marks the rows that are deletes.

        Raises SchemaMismatch for columns that do not fit, that the rule needs and the batch lacks, or whose condition
        cannot be computed.
        """
        schema = current.table.metadata.schema()
        require_columns(rule_columns(rule, schema), self._written.columns, current.name, self._fold)
        marked = self._marked(current.name, rule.delete_when)
        return columns.align(marked.drop(*self._dropped), schema, current.name, self._fold, kept=[_IS_DELETE])

    def _marked(self, table: str, delete_when: str | None) -> DataFrame:
        """Return the batch with the column that marks the rows that are deletes; NULL is no delete."""
        condition = F.lit(False)
        if delete_when is not None:
            condition = deletes(delete_when, table, columns.Conditions(self.df.schema, self._fold))
        return self.df.withColumn(_IS_DELETE.name, F.coalesce(condition, F.lit(False)))

    @cached_property
    def _written(self) -> DataFrame:
        return self.df.drop(*self._dropped)

    @cached_property
    def _dropped(self) -> list[str]:
        """Return the columns of the batch that are not written, as it spells them."""
        unwanted = {self._fold(name) for name in self.except_columns}
        return [name for name in self.df.columns if self._fold(name) in unwanted]

    @cached_property
    def _fold(self) -> Callable[[str], str]:
        return fold_of(self.df)
