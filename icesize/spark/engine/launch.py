"""Starts a Spark session for the command line.

Importing this module imports no pyspark, which is an extra. Finding Java starts one process.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from icesize.errors import EngineUnavailable, needs_extra

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def java_version() -> str | None:
    """Return the version line of the Java runtime in JAVA_HOME or on PATH; None if none runs.

    Without Java, macOS has a `java` that only prints where to get one.
    """
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if java is None or not os.path.exists(java):
        return None
    version = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)  # noqa: S603
    return next(iter(version.stderr.splitlines()), "java") if version.returncode == 0 else None


def pyspark_version() -> str | None:
    """Return the version of PySpark, or None without it. The list of installed packages lacks that of a platform."""
    try:
        import pyspark
    except ImportError:
        return None
    return pyspark.__version__


def require_spark(*, java: bool = True) -> None:
    """Raise EngineUnavailable if PySpark is missing, or the Java that a session of this machine needs."""
    with needs_extra("spark", "start Spark"):
        import pyspark  # noqa: F401
    if java and java_version() is None:
        raise EngineUnavailable("Cannot start Spark: there is no Java runtime in JAVA_HOME or on PATH; install Java 17")


def start_session(
    app: str, *, master: str | None = None, remote: str | None = None, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Return a session on `master`, or of the Spark Connect server `remote`.

    The default master is Spark's own default, or `local[*]`. Workers on this machine run this Python. Raises
    EngineUnavailable if PySpark or Java is missing, or Spark does not start.
    """
    settings = dict(conf or {})
    remote = remote or settings.pop("spark.remote", None)
    require_spark(java=remote is None)
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    where = remote or master or settings.get("spark.master") or "local[*]"
    if where.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", settings.get("spark.pyspark.python", sys.executable))
    builder = SparkSession.builder.appName(app)
    builder = builder.remote(where) if remote else builder.master(where)
    # Spark's progress bar and icesize's would overwrite each other.
    quiet = {} if remote else {"spark.ui.showConsoleProgress": "false"}
    for key, value in {**quiet, **settings}.items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except (PySparkException, ImportError, OSError, RuntimeError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise EngineUnavailable(
            f"Cannot start Spark at '{where}': {reason} (Spark 4 needs Java 17 or later)"
        ) from error
