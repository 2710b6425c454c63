"""The process of the program `icesize`: what it leaves out to start sooner is there for whoever needs it."""

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


def test_merging_needs_no_pandas_and_collects_garbage(uri: str) -> None:
    """While a command works, what it makes is collected; what was loaded before is not looked at again."""
    code = (
        "import gc, sys\n"
        "from icesize.__main__ import run\n"
        "try:\n"
        "    run()\n"
        "finally:\n"
        "    print('pandas' in sys.modules, gc.isenabled(), gc.get_freeze_count() > 100_000)"
    )
    lines = printed(code, "compact", "lake.db.t", "--catalog-uri", uri)
    assert lines[-1] == "False True True"
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


def test_arrow_that_was_loaded_alone_knows_pandas() -> None:
    """It makes a DataFrame when it is asked for one, and takes pandas' values for what they are."""
    code = (
        "import sys\n"
        "from icesize.cli import process\n"
        "process.load_arrow_alone()\n"
        "import pyarrow as pa, pyiceberg.io.pyarrow\n"
        "print('pandas' in sys.modules)\n"
        "frame = pa.table({'a': ['x', None]}).to_pandas()\n"
        "print(type(frame).__name__, pa.array(frame['a'].astype('category')).type)"
    )
    expected = "DataFrame dictionary<values=large_string, indices=int8, ordered=0>"
    assert printed(code) == ["False", expected]


@pytest.mark.parametrize("where", [[], ["--where", "id >= 0"]])
def test_the_parser_of_filters_is_loaded_for_a_filter(uri: str, where: list[str]) -> None:
    """A command without a filter does not pay for PyIceberg's parser, and one with a filter has it."""
    code = (
        "import sys\nfrom icesize.__main__ import run\ntry:\n    run()\nfinally:\n    print('pyparsing' in sys.modules)"
    )
    lines = printed(code, "plan", "lake.db.t", "--catalog-uri", uri, *where)
    assert lines[-1] == str(bool(where))


def test_settings_in_a_file_are_read(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parser of PyIceberg's file of settings is there when there is a file."""
    (tmp_path / ".pyiceberg.yaml").write_text(f"catalog:\n  lake:\n    uri: {uri}\n")
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-m", "icesize", "plan", "lake.db.t", "--json"], capture_output=True, text=True, check=True
    )
    assert '"groups"' in done.stdout
