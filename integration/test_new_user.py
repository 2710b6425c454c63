"""The way of docs/whole-catalogs.md from a first look to cron, on a catalog that Spark alone has written.

Commands are those of the page, and the line for cron is that of docs/schedulers.md, run by a shell whose environment is
as empty as that of cron.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

from docs_tools.blocks import DOCS, ROOT, Block, blocks
from docs_tools.lake import gone_bad
from icesize.environment import Environment
from icesize.maintenance.passes.many_tables import ManyTables
from icesize.maintenance.passes.survey import CatalogTables
from icesize.maintenance.rounds import Budget
from icesize.planning.merging.contention import QUIET_MS
from icesize.table.catalog.tables import TablePattern
from integration.many_tables import FORTY, OTHERS, WORST, Made, attach, make

PAGE, SECTION = DOCS / "whole-catalogs.md", "## From a first look to a schedule"
INSTALLED = "/opt/icesize/bin/icesize"
"""Where icesize is in the docs."""
LOST = "archive.y2025"
"""A table whose files somebody deleted."""
_TIMEOUT_S = 300


def _fewer(made: Made) -> Made:
    """The same table with fewer batches: the tests make more of them in their time."""
    return replace(made, batches=max(min(made.batches, 2), made.batches // 4))


TABLES = (*map(_fewer, (*WORST, *OTHERS[:5])), *OTHERS[5:7], *(made for made in FORTY if made.name == LOST))


@dataclass(frozen=True)
class User:
    """A user of the machine: a home directory, and an installed icesize."""

    home: Path
    program: Path

    def shell(self, line: str, variables: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run a line as cron does: by `sh`, in the home directory, with the variables that cron sets."""
        return subprocess.run(
            ["/bin/sh", "-c", self.installed(line)], cwd=self.home, env=self.environment | (variables or {}),
            capture_output=True, text=True, check=False, timeout=_TIMEOUT_S,
        )  # fmt: skip

    def typed(self, line: str) -> str:
        """The output of a line that a person types, and that succeeds."""
        done = self.shell(line, {"PATH": f"{self.program.parent}:{self.environment['PATH']}"})
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def installed(self, line: str) -> str:
        """A line of the docs with the path of this user's icesize."""
        return line.replace(INSTALLED, str(self.program))

    @property
    def environment(self) -> dict[str, str]:
        """What cron sets; the wrapper has what tests need."""
        return {"HOME": str(self.home), "LOGNAME": "user", "SHELL": "/bin/sh", "PATH": "/usr/bin:/bin"}


@pytest.fixture
def user(tmp_path: Path) -> User:
    """A user who has installed icesize and configured nothing."""
    home, program = tmp_path / "home", tmp_path / "bin" / "icesize"
    home.mkdir()
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {shlex.quote(sys.executable)} -m icesize "$@"\n')
    program.chmod(0o755)
    return User(home, program)


@pytest.fixture
def own(spark: SparkSession, tmp_path: Path) -> SparkSession:
    """Spark with a catalog `lake` of this test's own, and its tables."""
    session = spark.newSession()
    attach(session, "lake", tmp_path)
    make(session, "lake", TABLES)
    return session


def _steps(language: str) -> list[Block]:
    """The blocks of the section, in their order."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    begin = lines.index(SECTION) + 1
    end = next(number for number, line in enumerate(lines, 1) if number > begin and line.startswith("## "))
    return [block for block in blocks(PAGE, language) if begin < block.line < end]


def _line_of_cron() -> str:
    """The command that cron runs, without the times before it."""
    (cron,) = [block for block in blocks(DOCS / "schedulers.md", "text") if block.code.startswith("17 * * * *")]
    return cron.code.split(maxsplit=5)[5]


def _of_each(spark: SparkSession, sums: str, suffix: str = "") -> dict[str, tuple[Any, ...]]:
    """Two aggregates of each table that is there, in one query, by Iceberg's runtime."""
    names = [made.name for made in TABLES if made.name != LOST]
    every = " UNION ALL ".join(f"SELECT '{name}', {sums} FROM lake.{name}{suffix}" for name in names)
    return {row[0]: (row[1], row[2]) for row in spark.sql(every).collect()}


def _rows(spark: SparkSession) -> dict[str, tuple[Any, ...]]:
    """Number and sum of hashes of the rows of each table."""
    return _of_each(spark, "count(*), sum(cast(xxhash64(id, part, user_id, amount, note) AS decimal(38)))")


def _files(spark: SparkSession) -> dict[str, tuple[Any, ...]]:
    """Data files and delete files of each table."""
    return _of_each(spark, "count_if(content = 0), count_if(content > 0)", ".files")


def test_a_new_user_comes_from_a_first_look_to_cron(own: SparkSession, user: User, tmp_path: Path) -> None:
    """The worst tables are named in their order, and the line for cron brings every table into shape, silently.

    No row changes. Tables in which Spark has just changed rows wait for a later pass.
    """
    rows, files = _rows(own), _files(own)
    shutil.rmtree(tmp_path / "lake" / LOST.replace(".", "/"))
    (settings,) = _steps("yaml")
    uri = f"sqlite:///{tmp_path}/lake.db"
    (user.home / ".pyiceberg.yaml").write_text(settings.code.replace("https://catalog.example.com", uri))
    ranking, preview, one_pass = [block.code.splitlines() for block in _steps("shell")]

    told = "".join(map(user.typed, ranking))
    worst = sorted(files, key=lambda name: -sum(files[name]))[:5]
    assert worst == [made.name for made in WORST]
    assert [line.split()[0] for line in told.splitlines()[2:7]] == [f"lake.{name}" for name in worst]
    assert f"skipped {LOST} (unreadable)" in told
    pages = sorted(page.name for page in user.home.glob("lake*.html"))
    assert (len(pages), pages[0]) == (11, f"lake.01.lake.{worst[0]}.html")
    assert LOST in (user.home / "lake.html").read_text()

    lost = user.shell(f"{INSTALLED} {preview[0].removeprefix('icesize ')}")
    assert (lost.returncode, lost.stdout.startswith(f"lake.{LOST} failed: ")) == (1, True)
    (user.home / ".icesize.toml").write_text(f'[tables]\nexclude = ["lake.{LOST}"]\n')
    assert [line.split()[0] for line in user.typed(preview[0]).splitlines()[2:7]] == [f"lake.{name}" for name in worst]
    assert _files(own) == files

    line = _line_of_cron()
    assert line.startswith(f"{INSTALLED} {one_pass[0].removeprefix('icesize ')} >")
    done = user.shell(line)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    changed = {made.name for made in TABLES if made.changes}
    note = f"! other writers changed {len(changed)} tables in the last ten minutes; a later pass merges "
    assert note in (user.home / "icesize.log").read_text()
    shape = {made.name: (max(1, made.parts), 0) for made in TABLES if made.name != LOST}
    assert _files(own) == {name: files[name] if name in changed else shape[name] for name in shape}

    _pass_later(tmp_path)
    assert _files(own) == shape
    assert _rows(own) == rows


def _pass_later(folder: Path) -> None:
    """What the line for cron does when the other writers have paused."""
    now_ms = Environment().now_ms
    later = Environment(now_ms=lambda: now_ms() + QUIET_MS)
    catalog = SqlCatalog("lake", uri=f"sqlite:///{folder}/lake.db")
    try:
        selected, is_chosen = TablePattern.of("lake"), lambda name: not name.endswith(LOST)
        tables = CatalogTables(catalog, selected, later, is_chosen=is_chosen)
        assert ManyTables(tables).run(Budget()).succeeded
    finally:
        catalog.close()


def test_a_line_of_cron_that_fails_prints_its_log(user: User) -> None:
    """A catalog that is not configured is an error in the mail that cron sends."""
    done = user.shell(_line_of_cron())
    assert "icesize: Cannot open catalog 'lake'" in done.stdout
    assert done.stderr == ""


def test_the_service_of_systemd_maintains_the_catalog(user: User, tmp_path: Path) -> None:
    """The unit's command works without a home directory, maintains each table, and ends with 0 when it is stopped."""
    (unit,) = [block for block in blocks(DOCS / "schedulers.md", "text") if "ExecStart=" in block.code]
    settings = [line.partition("=") for line in unit.code.splitlines()]
    (command,) = [value for key, _, value in settings if key == "ExecStart"]
    (variable,) = [value.partition("=")[0] for key, _, value in settings if key == "Environment"]
    with gone_bad(tmp_path):
        service = subprocess.Popen(
            shlex.split(user.installed(command)), cwd="/", stdout=subprocess.PIPE,
            env={"PATH": os.defpath, variable: f"sqlite:///{tmp_path}/catalog.db"},
        )  # fmt: skip
        with service:
            assert service.stdout is not None
            report = json.loads(service.stdout.readline())
            service.send_signal(signal.SIGTERM)
            assert service.wait(_TIMEOUT_S) == 0
    assert ([table["table"] for table in report["tables"]], report["failed"]) == (["lake.db.events"], {})
