"""Facts about a Spark session: its settings, its size, the query of a batch, the plan of a batch.

Works on classic sessions and on Spark Connect. Spark Connect gives no access to a JVM, so icesize assumes nothing
there.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any, cast
from weakref import WeakKeyDictionary

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

LOG = logging.getLogger("icesize")

_LOOK_SECONDS = 0.02
_CASE_SENSITIVE = "spark.sql.caseSensitive"
_MASKED = "(redacted)"
"""Spark's replacement for a value, or a part of one, that it does not show."""
_BETWEEN, _IS = "\0", " -> "
"""Separators between settings, and between a name and its value, in the text of a Scala map: one call to the JVM."""

_CORES = "SELECT max(part) FROM (SELECT spark_partition_id() AS part FROM range(16384))"
"""Counts the parts of a range; it has enough rows that each part has one."""
_ASKS_APART = 100
_known_cores: WeakKeyDictionary[SparkSession, tuple[int, int]] = WeakKeyDictionary()
"""Cores of servers, with the number of calls so far."""

_CHEAP_LEAVES = {"LocalRelation", "InMemoryRelation", "OneRowRelation", "Range"}
_COLUMNAR = ("ParquetFileFormat", "OrcFileFormat", "ParquetScan", "OrcScan", "SparkBatchQueryScan")
_COSTLY = ("PYTHON_UDF", "PLAN_EXPRESSION")
"""Kinds of expressions that are expensive in every position: Python functions and subqueries."""
_CHEAP_NODES = {"Project", "Filter", "Union", "SubqueryAlias", "EventTimeWatermark", "LocalLimit", "GlobalLimit"}


def is_connect(spark: SparkSession) -> bool:
    """Return whether this is a Spark Connect session, which has no driver JVM on this side."""
    return not hasattr(spark, "_jsparkSession")


def same_application(one: SparkSession, other: SparkSession) -> bool:
    """Return whether two sessions share a running Spark application."""
    if is_connect(one) or is_connect(other):
        return one is other
    return one.sparkContext is other.sparkContext


def settings_of(spark: SparkSession) -> dict[str, str]:
    """Return the session's explicit settings of catalogs, WAP and case sensitivity, secrets unmasked."""
    if not is_connect(spark):
        # The SQL command `SET` is a Spark job, which would add 15 ms to each batch.
        settings = cast("Any", spark.conf)._jconf.getAll().mkString(_BETWEEN).split(_BETWEEN)
        return _relevant(dict(setting.split(_IS, 1) for setting in settings if _IS in setting))
    relevant = _relevant({row["key"]: row["value"] for row in spark.sql("SET").collect()})
    # Each `conf.get` is a request to the server, so only masked settings cause one.
    return {k: str(spark.conf.get(k)) if _MASKED in v else v for k, v in relevant.items()}


def _relevant(settings: Mapping[str, str]) -> dict[str, str]:
    return {k: v for k, v in settings.items() if k.startswith(("spark.sql.catalog.", "spark.wap.", _CASE_SENSITIVE))}


def is_case_sensitive(spark: SparkSession) -> bool:
    """Return whether column names that differ only in case are different."""
    return str(spark.conf.get(_CASE_SENSITIVE, "false")).lower() == "true"


def parallelism(spark: SparkSession) -> int:
    """Return the number of tasks that run at one time: the cluster's cores, or `spark.default.parallelism`."""
    if is_connect(spark):
        return _cores_of_server(spark)
    return int(spark.sparkContext.defaultParallelism)


def _cores_of_server(spark: SparkSession) -> int:
    """Return the cores of a Spark Connect server, which divides a range into as many parts.

    The server has no method for this number. A session runs one small job at its first call and one every `_ASKS_APART`
    calls, because executors come and go.
    """
    cores, asked = _known_cores.get(spark, (0, 0))
    if asked % _ASKS_APART == 0:
        row = spark.sql(_CORES).first()
        cores = 1 + int(row[0] or 0) if row else 1
    _known_cores[spark] = (cores, asked + 1)
    return cores


def is_local(spark: SparkSession) -> bool:
    """Return whether tasks run on this machine, in the driver's JVM."""
    return not is_connect(spark) and str(spark.sparkContext.master).split("[")[0] == "local"


def use_this_python(spark: SparkSession) -> None:
    """Let workers on this machine run this Python, unless the user has chosen another one.

    Spark starts the first `python3` on PATH. For `venv/bin/python job.py`, that is not the environment's Python.
    """
    if is_connect(spark) or not str(spark.sparkContext.master).startswith("local"):
        return
    if "PYSPARK_PYTHON" not in os.environ and spark.conf.get("spark.pyspark.python", None) is None:
        cast("Any", spark.sparkContext).pythonExec = sys.executable


def python_of_workers(spark: SparkSession) -> str:
    """Return the command that starts Spark's Python workers, as far as this side knows it."""
    return "the server's Python" if is_connect(spark) else f"'{cast('Any', spark.sparkContext).pythonExec}'"


def query_id_of(spark: SparkSession) -> str | None:
    """Return the id of the streaming query of the current batch; None outside of a query and on Spark Connect."""
    if is_connect(spark):
        return None
    value = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
    return str(value) if value else None


def is_cheap_to_read_again(df: DataFrame) -> bool:
    """Return whether counting the batch first costs little.

    That holds if the batch is cached, local, or read from columnar files without heavy operators. Streams from Kafka or
    text files, joins, aggregations, Python functions and nondeterministic expressions are not cheap. Neither is a batch
    whose plan this side cannot read (Spark Connect, RDDs).
    """
    if is_connect(df.sparkSession):
        return bool(df.is_cached)
    plan = df._jdf.queryExecution().withCachedData()
    patterns = cast("Any", df.sparkSession)._jvm.org.apache.spark.sql.catalyst.trees.TreePattern
    if any(plan.containsPattern(getattr(patterns, name)()) for name in _COSTLY):
        return False
    return all(_is_cheap(node) for node in _nodes(plan))


def source_bytes(df: DataFrame) -> int:
    """Return the size of the batch's sources in bytes, as Spark's optimizer estimates it; very large if unknown."""
    if is_connect(df.sparkSession):
        return sys.maxsize
    try:
        plan = df._jdf.queryExecution().optimizedPlan()
    except PySparkException:
        return sys.maxsize  # a value cannot be computed; the job that reads the batch reports which
    return sum(int(str(leaf.stats().sizeInBytes())) for leaf in _nodes(plan) if leaf.children().size() == 0)


def wait_for_a_job(spark: SparkSession, stop: threading.Event, most_seconds: float = 1.0) -> None:
    """Return when Spark runs a job, `stop` is set, or the time is over.

    Spark gives cores to jobs in the order of their start. A merge that waits for the write job leaves the priority to
    it.
    """
    if is_connect(spark):
        return
    tracker = spark.sparkContext.statusTracker()
    for _ in range(int(most_seconds / _LOOK_SECONDS)):
        if tracker.getActiveJobsIds() or stop.wait(_LOOK_SECONDS):
            return


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    children = plan.children()
    for i in range(children.size()):
        yield from _nodes(children.apply(i))


def _is_cheap(node: Any) -> bool:
    kind = node.getClass().getSimpleName()
    if not node.deterministic():
        return False
    if node.children().size() > 0:
        return kind in _CHEAP_NODES
    if kind == "LogicalRelation":
        relation = node.relation()
        # Only HadoopFsRelation has a file format. Listing a relation's methods would cost a JVM call for each.
        if _type_name(relation) != "HadoopFsRelation":
            return False
        return any(c in _type_name(relation.fileFormat()) for c in _COLUMNAR)
    if kind in ("DataSourceV2ScanRelation", "StreamingDataSourceV2ScanRelation"):
        return any(c in _type_name(node.scan()) for c in _COLUMNAR)
    return kind in _CHEAP_LEAVES


def _type_name(java_object: Any) -> str:
    return str(java_object.getClass().getSimpleName()).rstrip("$")


def refresh(spark: SparkSession, name: str, settings: Mapping[str, str]) -> None:
    """Make Spark's own catalog drop its cache of the table, so that `spark.table(name)` reads the new commit.

    A session without Iceberg's runtime has no such cache.
    """
    if f"spark.sql.catalog.{name.split('.')[0]}" not in settings:
        return
    quoted = ".".join(f"`{part.replace('`', '``')}`" for part in name.split("."))
    try:
        spark.sql(f"REFRESH TABLE {quoted}")
    except Exception as error:  # the rows are committed: a failed refresh must not make Spark replay them
        LOG.debug("REFRESH TABLE %s: %s", name, type(error).__name__)
