"""`icesize doctor`: checks what the commands need, and lists the commands that will work."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from icesize.cli.options import FAILED, Target, command, table_options
from icesize.cli.spark_choice import SparkChoice, spark_options
from icesize.errors import install_command

if TYPE_CHECKING:
    from icesize.maintenance.verify.checkup import Check

_PACKAGES = ("pyiceberg", "pyarrow")


@command(
    "doctor", "Check catalog, rights, Java, Spark and versions",
    "icesize doctor", "icesize doctor lake.db.events", "icesize doctor lake.db.events --master 'local[2]'",
)  # fmt: skip
@spark_options
@partial(table_options, required=False)
def doctor(target: Target, *, spark: SparkChoice) -> None:
    """Check what the commands need: versions, Java and, for TABLE, its catalog, read access and write access.

    The check writes two small files to the directories of the table and deletes them. With --master, --remote or
    --conf, it starts Spark and checks that its workers have icesize. It cannot check the right to commit. Exit code 1
    if a check failed.
    """
    checks = list(_examined(target, spark))
    working = _working(target, checks)

    from icesize.presentation.views import jobs  # slow: imports PyIceberg

    shown = (*jobs.checks(checks), (f"will work: {', '.join(working)}",))
    failed = any(check.state == "failed" for check in checks)
    target.answer({"checks": checks, "will_work": working}, shown, exit_code=FAILED if failed else 0)


def _examined(target: Target, spark: SparkChoice) -> Iterator[Check]:
    """Yield the checks, each after the checks that it depends on."""
    from importlib.metadata import PackageNotFoundError, version  # slow: imports the parser of emails

    from icesize.maintenance.verify.checkup import Check, check_of
    from icesize.spark.engine.launch import java_version, pyspark_version

    def optional(name: str, found: str | None, missing: str) -> Check:
        return Check(name, "ok", found) if found else Check(name, "missing", missing)

    yield Check("icesize", "ok", f"{version('icesize')}, Python {platform.python_version()}")
    yield from (check_of(package, partial(version, package)) for package in _PACKAGES)
    without_pyspark = f"streams and --master need it, all else works without: {install_command('spark')}"
    yield optional("pyspark", pyspark_version(), without_pyspark)
    without_java = "none in JAVA_HOME or on PATH; Spark needs Java 17, all else works without"
    yield optional("Java", java_version(), without_java)
    drawing = None
    with suppress(PackageNotFoundError):
        drawing = version("matplotlib")
    yield optional("matplotlib", drawing, f"`report` needs it to draw: {install_command('report')}")
    if target.table:
        yield from _table(target)
    if spark.is_wanted:
        yield check_of("Spark", partial(_spark, spark))


def _table(target: Target) -> Sequence[Check]:
    """Return the checks of the table, or the error that prevents opening it."""
    from icesize.maintenance.verify.checkup import Check
    from icesize.table.catalog.access_errors import said

    try:
        return target.open().doctor()
    except Exception as error:  # libraries of catalogs have no common error class
        return (Check("table", "failed", said(error)),)


def _spark(choice: SparkChoice) -> str:
    """Start a session and check that one of its workers has icesize."""
    with choice.session("doctor") as session:
        if session is None:
            return "not asked for"

        def look(batches: Iterable[Any]) -> Iterable[Any]:
            import icesize

            return (batch for batch in batches if icesize.__name__)

        session.range(1).mapInArrow(look, "id long").collect()
        return f"{session.version}; its workers have icesize"


def _working(target: Target, checks: Sequence[Check]) -> list[str]:
    """Return the commands that will work, from the results of the checks."""
    state = {check.name: check.state for check in checks}
    working = ["demo --no-spark"]
    if target.table and state.get("reading") == "ok":
        working += ["scan", "inspect", "plan", "versions", "streams", "history", "verify"]
        if state["matplotlib"] == "ok":
            working += ["report"]
        if state["writing"] == "ok":
            working += ["compact", "cluster", "maintain", *([] if "history" in state else ["restore"]), "repair"]
            working += ["rewrite-deletes", "remove-dangling-deletes", "rewrite-manifests", "deduplicate", "rekey"]
        if state["deleting"] == state["writing"] == "ok":
            working += ["expire-snapshots", "remove-orphan-files"]
    if state["pyspark"] == state["Java"] == "ok" and state.get("Spark") != "failed":
        working += ["demo", "--master"]
    return working
