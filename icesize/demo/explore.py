"""Next steps: commands for the demo's tables, and a Python shell with everything set."""

from __future__ import annotations

import code
import shlex
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING

from icesize.demo.lake import EVENTS, NAMESPACE, Lake, full_name
from icesize.demo.stream import SHORT_LIVED, start
from icesize.sized_table import open as open_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COMMANDS = ("inspect", "plan", "compact", "versions", "history")

SUGGESTIONS = (
    "print(table.inspect())",
    "table.plan().files_removed",
    "print(table.history())",
    f'catalog.load_table("{NAMESPACE}.{EVENTS}").scan(limit=5).to_arrow()',
)
WITH_SPARK = ("newest = table.versions()[0]", "table.read_version(newest.partition, newest.snapshot_id).show(5)")

_BANNER = """
table      the table {name}, as icesize.open() gives it
catalog    its catalog, as PyIceberg loads it
spark      {spark}

Try   {suggestions}
Leave with Ctrl-D; the tables stay.
"""


def commands(lake: Lake, names: Iterable[str] = COMMANDS) -> list[str]:
    """Return command lines for the demo's table, ready to be copied."""
    uri = shlex.quote(lake.uri)
    return [f"icesize {name} {full_name(EVENTS)} --catalog-uri {uri}" for name in names]


def shell(lake: Lake, *, with_spark: bool) -> None:
    """Run a Python shell with `table`, `catalog` and `spark` (None without it) until the user leaves it."""
    catalog = lake.catalog()
    spark = _quiet_spark(lake) if with_spark else None
    name = full_name(EVENTS)
    table = open_table(spark, name, catalog=catalog)
    with suppress(ImportError):
        import_module("readline")  # makes lines editable, if the system has it
    try:
        banner = _BANNER.format(
            name=name,
            spark="a local SparkSession" if spark else "None: there is no Spark in this shell",
            suggestions="\n      ".join((*SUGGESTIONS, *(WITH_SPARK if spark else ()))),
        )
        code.interact(banner, local={"table": table, "catalog": catalog, "spark": spark}, exitmsg="")
    finally:
        if spark is not None:
            spark.stop()


def _quiet_spark(lake: Lake) -> SparkSession:
    spark = start(lake, "icesize demo: explore", SHORT_LIVED)
    spark.sparkContext.setLogLevel("ERROR")
    return spark
