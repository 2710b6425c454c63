"""A catalog that Spark alone has written for a while: forty tables in five namespaces, and a view.

`python -m integration.many_tables DIRECTORY` makes it in a directory. Iceberg's own writer fills the tables, so they
are what a new user brings: few of them have most of the small files, and many of them need nothing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from integration.jars import spark_jars
from integration.servers import session_settings

_COLUMNS = "id bigint, part string, user_id bigint, amount double, note string"
_ROW = (
    "id, format_string('p%02d', id % {parts}) AS part, id * 7919 % 1000 AS user_id, id / 7D AS amount, "
    "md5(string(id)) AS note"
)
_AS_WRITTEN = "'write.distribution-mode'='none', 'write.spark.fanout.enabled'='true'"
"""Every task writes its rows to the partitions that they belong to, as a stream's tasks do."""
_MERGE_ON_READ = ", ".join(f"'write.{statement}.mode'='merge-on-read'" for statement in ("delete", "update", "merge"))


@dataclass(frozen=True)
class Made:
    """A table that Spark makes: `batches` times `tasks` files in each of `parts` partitions, and changed rows.

    `parts` is 0 for a table without partitions. Each of `changes` is one commit that deletes, updates or merges rows.
    """

    name: str
    parts: int = 0
    batches: int = 1
    tasks: int = 1
    version: int = 2
    changes: tuple[str, ...] = ()
    rows: int = 400

    def statements(self, name: str) -> Iterator[str]:
        """SQL that makes the table under this name."""
        by = "PARTITIONED BY (part) " if self.parts else ""
        properties = f"'format-version'='{self.version}', {_AS_WRITTEN}, {_MERGE_ON_READ}"
        yield f"CREATE TABLE {name} ({_COLUMNS}) USING iceberg {by}TBLPROPERTIES ({properties})"
        row = _ROW.format(parts=max(self.parts, 1))
        for start in range(0, self.batches * self.rows, self.rows):
            yield f"INSERT INTO {name} SELECT {row} FROM range({start}, {start + self.rows}, 1, {self.tasks})"
        for change in self.changes:
            yield change.format(name=name)


_DELETE = "DELETE FROM {name} WHERE id % 11 = 3"
_UPDATE = "UPDATE {name} SET amount = 0 WHERE user_id < 100"
_MERGE = (
    "MERGE INTO {name} t USING (SELECT id * 5 AS id FROM range(60)) s ON t.id = s.id "
    "WHEN MATCHED AND t.id % 2 = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET amount = -1"
)

WORST = (
    Made("shop.orders", parts=16, batches=30, tasks=2),
    Made("logs.requests", batches=40, tasks=12),
    Made("logs.sessions", parts=6, batches=8, tasks=4, changes=(_DELETE, _UPDATE, _MERGE)),
    Made("iot.readings", parts=8, batches=10, tasks=4, version=3),
    Made("crm.eu.events", parts=10, batches=12, version=3, changes=(_MERGE, _DELETE)),
)
"""Those with most files and delete files first."""

OTHERS = (
    Made("shop.carts", parts=4, batches=5),
    Made("shop.payments", batches=6, tasks=2, changes=(_MERGE,)),
    Made("iot.alarms", parts=3, batches=2, version=3, changes=(_DELETE,)),
    Made("logs.heartbeats", batches=60, rows=20),
    Made("crm.eu.contacts", version=3, changes=(_UPDATE, _DELETE)),
    *(Made(f"shop.dim_{name}") for name in ("country", "currency", "color", "size", "brand", "carrier")),
    *(Made(f"crm.{name}", parts=4, version=3) for name in ("accounts", "leads", "notes", "owners", "regions")),
    *(Made(f"logs.day_{day:02}", parts=8, rows=800) for day in range(1, 9)),
    *(Made(f"iot.device_{number}", tasks=3, batches=2) for number in range(1, 7)),
    *(Made(f"archive.y{year}", parts=12, rows=1200) for year in range(2021, 2026)),
)
FORTY = (*WORST, *OTHERS)
VIEW = "shop.daily"


def attach(spark: SparkSession, catalog: str, folder: Path) -> None:
    """Give a session a catalog in one SQLite file of a directory, as the quick start configures it."""
    prefix = f"spark.sql.catalog.{catalog}"
    spark.conf.set(prefix, "org.apache.iceberg.spark.SparkCatalog")
    spark.conf.set(f"{prefix}.type", "jdbc")
    spark.conf.set(f"{prefix}.uri", f"jdbc:sqlite:{folder}/lake.db")
    spark.conf.set(f"{prefix}.jdbc.schema-version", "V1")
    spark.conf.set(f"{prefix}.warehouse", f"file://{folder}/lake")
    spark.conf.set(f"{prefix}.cache-enabled", "false")


def make(spark: SparkSession, catalog: str, tables: tuple[Made, ...]) -> None:
    """Make these tables and a view in a catalog of the session."""
    for namespace in sorted({made.name.rpartition(".")[0] for made in tables}):
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {catalog}.{namespace}")
    for made in tables:
        for statement in made.statements(f"{catalog}.{made.name}"):
            spark.sql(statement)
    spark.sql(
        f"CREATE VIEW {catalog}.{VIEW} AS SELECT part, sum(amount) AS amount FROM {catalog}.shop.orders GROUP BY part"
    )


def main() -> None:
    """Make the whole catalog `lake` in a directory."""
    parser = argparse.ArgumentParser(description="Make the catalog `lake` of forty tables with Spark.")
    parser.add_argument("directory", type=Path)
    folder: Path = parser.parse_args().directory.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    builder = SparkSession.builder.master("local[2]").config("spark.jars", ",".join(map(str, spark_jars())))
    for key, value in session_settings(folder).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    attach(spark, "lake", folder)
    make(spark, "lake", FORTY)
    spark.stop()


if __name__ == "__main__":
    sys.exit(main())
