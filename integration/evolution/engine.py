"""Spark, Iceberg's Java library and PyIceberg over one SQLite catalog, and the Java half of the checks."""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

from integration.jars import spark_jars
from integration.servers import catalog_settings, session_settings

_TINY_QUERIES = {
    # these tables have a handful of rows: what costs is planning and compiling, not the rows
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "1",
    "spark.default.parallelism": "1",
    "spark.sql.ansi.enabled": "true",
    "spark.shuffle.compress": "false",
    # compiling everything twice costs more than these programs ever get back
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
    "-Diceberg.scan.plan-in-worker-pool=false -Diceberg.worker.num-threads=1",
    "spark.sql.catalog.spark_catalog": "org.apache.iceberg.spark.SparkSessionCatalog",
    "spark.sql.catalog.spark_catalog.type": "hadoop",
}
NAMESPACE = "db"
_NEXT = "\u0002"


@dataclass
class Engine:
    """One JVM for many programs. `java` is the catalog as Iceberg's Java library has it, `probe` our `Probe.java`."""

    spark: SparkSession
    java: Any
    probe: Any
    catalog: SqlCatalog
    folder: Path
    _classes: dict[str, Any] = field(default_factory=dict, repr=False)
    _read: dict[str, Any] = field(default_factory=dict, repr=False)
    duckdb: Any = field(default=None, repr=False)

    @classmethod
    def start(cls, folder: Path) -> Engine:
        """A session in this process; it must not have one yet, as jars are given to a JVM when it starts."""
        logging.getLogger("icesize").setLevel(logging.CRITICAL)
        os.environ["PYSPARK_PYTHON"] = sys.executable
        settings = session_settings(folder) | catalog_settings("", folder) | _TINY_QUERIES
        settings["spark.jars"] = ",".join(map(str, spark_jars()))
        settings["spark.sql.catalog.spark_catalog.warehouse"] = f"{folder}/session"
        builder = SparkSession.builder.master("local[2]").appName("icesize evolution")
        for key, value in settings.items():
            if not key.startswith("spark.sql.catalog.rest"):
                builder = builder.config(key, value)
        spark = builder.getOrCreate()
        spark.sparkContext.setLogLevel("OFF")
        java = spark._jsparkSession.sessionState().catalogManager().catalog("lake").icebergCatalog()
        catalog = SqlCatalog("lake", uri=f"sqlite:///{folder}/lake.db", warehouse=f"file://{folder}/lake")
        catalog.create_namespace_if_not_exists(NAMESPACE)
        return cls(spark, java, Probe(spark), catalog, folder)

    def table(self, name: str) -> Any:
        """Iceberg's Java table, loaded now; of metadata that cannot be read the catalog would ask for 90 s."""
        with self.catalog.engine.connect() as connection:
            asked = "SELECT metadata_location FROM iceberg_tables WHERE table_name = ?"
            location = connection.exec_driver_sql(asked, (name,)).scalar()
        if self._read.get(name) != location:
            storage = self.iceberg("hadoop.HadoopFileIO")(self.spark._jsc.hadoopConfiguration())
            self.iceberg("TableMetadataParser").read(storage, location)
            self._read[name] = location
        return self.java.loadTable(self.identifier(name))

    def identifier(self, name: str) -> Any:
        """How the Java catalog calls a table of ours; kept, as each look at a class asks the JVM twice."""
        if name not in self._classes:
            self._classes[name] = self.iceberg("catalog.TableIdentifier").parse(f"{NAMESPACE}.{name}")
        return self._classes[name]

    def iceberg(self, name: str) -> Any:
        """A class of Iceberg's; finding it takes a call for each part of its name, so it is kept."""
        if name not in self._classes:
            self._classes[name] = reduce(getattr, name.split("."), self.spark._jvm.org.apache.iceberg)
        return self._classes[name]

    def stop(self) -> None:
        """End the session, and with it the JVM's work."""
        self.catalog.close()
        self.spark.stop()


class Probe:
    """`Probe.java`, compiled in the session's JVM: each of its methods under its name, lists given and returned."""

    def __init__(self, spark: SparkSession) -> None:
        jvm = spark._jvm
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
        compiler.cook((Path(__file__).parent / "Probe.java").read_text())
        self._java = compiler.getClassLoader().loadClass("Probe").newInstance()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._java, name)

        def call(*arguments: Any) -> list[str] | None:
            found = method(*(_NEXT.join(a) if isinstance(a, (list, tuple)) else a for a in arguments))
            return None if found is None else found.split(_NEXT) if found else []

        return call
