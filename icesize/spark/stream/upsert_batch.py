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
from icesize.planning.file_sizes import parts_within
from icesize.planning.plan import MergeTask
from icesize.planning.upsert_rule import UpsertRule
from icesize.spark.engine import columns, session
from icesize.spark.engine.jobs import fetch
from icesize.spark.engine.merge_job import MergeRun
from icesize.spark.stream.new_columns import fold_of, with_columns_of
from icesize.spark.stream.options import SinkOptions
from icesize.spark.stream.process_state import TableState
from icesize.table.commit.batch_commit import Batch
from icesize.table.commit.batch_life import PlanAgain
from icesize.table.state.handle import Current
from icesize.table.upserts.batch import FetchSlice, RunMerges, Upserts
from icesize.table.upserts.conditions import deletes
from icesize.table.upserts.newest_events import Mask
from icesize.table.upserts.settings import UpsertOptions, require_columns, rule_columns

_HASH, _HASHES = "_icesize_hash", 4096
_IS_DELETE = spark_types.StructField("_icesize_is_delete", spark_types.BooleanType())


def upserts(df: DataFrame, options: SinkOptions, state: TableState, cached: ExitStack) -> Upserts:
    """Return the rows of a batch as upserts. They may stay in Spark's cache until `cached` ends."""
    wanted = options.upsert or UpsertOptions()
    events = EventsOfBatch(df, options, wanted.unwritten, state, cached)
    return Upserts(wanted, events.fetch, events.prepare, wanted.null_key == "skip", _merges(df, options), wanted.maps)


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

    def prepare(self, batch: Batch, current: Current) -> Current:
        """Add the columns that the table lacks if the options allow it; return the newest state of the table.

        Raises SchemaMismatch for columns that are neither known nor wanted.
        """
        require_columns({"except_columns": self.except_columns}, self.df.columns, current.name, self._fold)
        way_on = "leave them out with 'except_columns', drop them"
        return with_columns_of(self._written, batch, current, self.options, is_whole=False, way_on=way_on)

    def fetch(self, current: Current, rule: UpsertRule) -> list[FetchSlice]:
        """Return the functions that fetch the events, with the columns of the table, and which of them are deletes.

        A batch that the driver cannot hold has a slice for each range of hashes of the key. The last batch shows
        whether this one may be so large, or an attempt to fetch it as a whole.
        """
        fitted, limit = self.fitted(current, rule), self.options.environment.limits.driver_upserts
        if self.state.rows_upserted <= limit:
            return [partial(self._whole, fitted, limit)]
        schema = current.table.metadata.schema()
        keys = [F.col(f"`{schema.find_column_name(each)}`") for each in rule.key]
        marked = fitted.withColumn(_HASH, F.pmod(F.xxhash64(*keys), F.lit(_HASHES)))
        # sorted, so that each slice is a range of Spark's cache, whose other parts are not read
        cached = marked.sortWithinPartitions(_HASH).persist()
        self.cached.callback(cached.unpersist)
        counts = fetch(cached.groupBy(_HASH).count()).sort_by(_HASH).to_pylist()
        self.state.rows_upserted = sum(int(each["count"]) for each in counts)
        ranges = parts_within(counts, lambda each: int(each["count"]), limit)
        slices = [cached.where(F.col(_HASH).between(some[0][_HASH], some[-1][_HASH])) for some in ranges]
        return [partial(_events, each.drop(_HASH)) for each in slices or [cached]]

    def _whole(self, fitted: DataFrame, limit: int) -> tuple[pa.Table, Mask]:
        """Return all events. Raises PlanAgain if they are more than the driver holds."""
        rows, is_delete = _events(fitted.limit(limit + 1))
        self.state.rows_upserted = rows.num_rows
        if rows.num_rows > limit:
            raise PlanAgain("the batch has more rows than the driver holds, and was read again in slices")
        return rows, is_delete

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


def _events(fitted: DataFrame) -> tuple[pa.Table, Mask]:
    rows = fetch(fitted)
    is_delete: Mask = np.asarray(rows.column(_IS_DELETE.name), dtype=np.bool_)
    return rows.drop_columns([_IS_DELETE.name]), is_delete
