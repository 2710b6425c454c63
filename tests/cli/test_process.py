"""The process of the program `icesize`: it collects garbage while it works, and not before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import tables

pytestmark = pytest.mark.engine


def printed(code: str, *arguments: str) -> list[str]:
    """The lines that a program prints."""
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """The address of a catalog whose table has three small files."""
    made = tables.make_table(tables.sqlite_catalog(tmp_path))
    for first in range(0, 30, 10):
        made.append(tables.arrow(range(first, first + 10), "a"))
    return f"sqlite:///{tmp_path}/catalog.db"


def test_merging_collects_garbage(uri: str) -> None:
    """While a command works, what it makes is collected; what was loaded before is not looked at again."""
    code = (
        "import gc\n"
        "from icesize.__main__ import run\n"
        "try:\n"
        "    run()\n"
        "finally:\n"
        "    print(gc.isenabled(), gc.get_freeze_count() > 100_000)"
    )
    lines = printed(code, "compact", "lake.db.t", "--catalog-uri", uri)
    assert lines[-1] == "True True"
    assert any(" replace  -3 +1 file, rows unchanged" in line for line in lines)


def test_a_collector_that_was_not_stopped_is_left_alone() -> None:
    """Where somebody else's process calls a command, what it has made so far can be collected as ever."""
    code = (
        "import gc\n"
        "from icesize.cli import process\n"
        "process.collect_from_now_on()\n"
        "print(gc.isenabled(), gc.get_freeze_count())"
    )
    assert printed(code) == ["True 0"]
