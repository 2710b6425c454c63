"""Facts of many manifests, read by Spark tasks: a driver alone would read those of ten million files in 22 s."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyiceberg.manifest import ManifestFile
from pyspark.sql import SparkSession

from icesize.environment import WorkLimits
from icesize.errors import IcesizeError, RewriteFailed
from icesize.parquet.files.settings import WriteSettings
from icesize.planning.sizing import in_batches
from icesize.spark.engine import session
from icesize.spark.engine.jobs import balanced, bin_numbers, run_job
from icesize.spark.engine.worker import bins_of
from icesize.table.manifests.entries import entries_in
from icesize.table.manifests.facts import Columns, read_facts
from icesize.table.manifests.spill import decoded, encoded
from icesize.table.manifests.store import ManifestStore
from icesize.table.state.handle import Current
from icesize.table.state.layouts import Prefetch

LOG = logging.getLogger("icesize")

JOB_ENTRIES = 4_000_000
"""Entries that one job reads: their columns take about 400 MB in the driver, and Spark's limit for results is 1 GB."""
_TASKS_PER_CORE = 2


def prefetching(spark: SparkSession, current: Current, limits: WorkLimits) -> Prefetch:
    """Return what reads manifests into the store in Spark tasks, if there are more than the driver reads alone."""

    def prefetch(store: ManifestStore, manifests: Sequence[ManifestFile]) -> None:
        read = partial(read_manifests, spark, current.settings())
        store.prefetch(manifests, read, more_than=limits.driver_manifest_entries)

    return prefetch


def read_manifests(
    spark: SparkSession, settings: WriteSettings, manifests: Sequence[ManifestFile]
) -> Iterator[tuple[ManifestFile, Columns]]:
    """Yield manifests with their columns, as `read_facts` finds them; those that the tasks cannot read are left out.

    Args:
        spark: The session whose tasks read.
        settings: Settings of the table, for its storage.
        manifests: Data manifests.

    Raises:
        EngineUnavailable: The workers have no icesize.
    """
    for job in in_batches(manifests, entries_in, JOB_ENTRIES):
        loads = {number: entries_in(manifest) for number, manifest in enumerate(job)}
        bins = balanced(loads, _TASKS_PER_CORE * session.parallelism(spark))
        function = ReadManifests([[(number, job[number]) for number in numbers] for numbers in bins], settings)
        try:
            answers = run_job(bin_numbers(spark, len(bins)), function, "read manifests")
        except RewriteFailed as error:
            LOG.warning("%s; the driver reads them", error)
            return
        for number, content in answers:
            yield job[number], decoded(content, job[number].partition_spec_id)


@dataclass(frozen=True)
class ReadManifests:
    """Reads manifests, from bin numbers to pairs of a manifest's number and its encoded columns."""

    bins: Sequence[Sequence[tuple[int, ManifestFile]]]
    settings: WriteSettings

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, bytes]]:
        for _, manifests in bins_of(batches, self.bins):
            for number, manifest in manifests:
                try:
                    content = encoded(read_facts(self.settings.io, manifest).columns)
                except (IcesizeError, OSError):
                    continue  # the driver reads it again, and reports the error
                if content is not None:
                    yield number, content
