"""Every block of code in README and docs runs, and transcripts say what commands say today."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from docs_tools.blocks import DOCS, ROOT, Block, blocks, pages
from docs_tools.commands import command_lines, is_run, run
from docs_tools.lake import EVENTS, batch_of, configured, fill
from docs_tools.transcripts import TUTORIAL, told_today, without_numbers

SCRIPT = DOCS / "quickstart.md"
RUN = ("python", "sql", "shell")
PAGES = [
    page for page in pages() if page not in (SCRIPT, TUTORIAL) and any(block.is_run for block in blocks(page, *RUN))
]
TRANSCRIPTS = [page for page in pages() if blocks(page, "console")]


_FRUGAL = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""Three batches never earn back what compiling them well costs."""


@pytest.fixture
def events(lake: SqlCatalog, servers_dir: Path) -> Iterator[SqlCatalog]:
    """The table `lake.db.events`, small files and all, for the pages to work on; commands find it by its name."""
    lake.create_namespace_if_not_exists("db")
    fill(lake, batches=3)
    with configured(f"sqlite:///{servers_dir}/lake.db"):
        yield lake
    for name in lake.list_tables("db"):
        lake.drop_table(name)


@pytest.fixture
def names(spark: SparkSession, tmp_path: Path) -> dict[str, object]:
    """What pages take for granted: a session, a stream of two files, a batch, and folders."""
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(2):
        batch_of(20 + number, 60).to_pandas().to_json(
            folder / f"{number}.json", orient="records", lines=True, date_format="iso"
        )
    schema = "id bigint, hour string, user_id bigint, event_time timestamp_ntz, amount double"
    stream = spark.readStream.schema(StructType.fromDDL(schema)).option("maxFilesPerTrigger", 1).json(str(folder))
    df = spark.read.schema(schema).json(str(folder))
    assert {field.name for field in EVENTS.fields} == set(df.columns)
    return {"spark": spark, "stream": stream, "df": df, "checkpoint": str(tmp_path / "checkpoint")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_code_of_a_page_runs(
    page: Path, events: SqlCatalog, names: dict[str, object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The blocks of a page run one after the other, as its reader would type them."""
    monkeypatch.chdir(tmp_path)
    spark = names["spark"]
    assert isinstance(spark, SparkSession)
    for block in blocks(page, *RUN):
        if block.is_run:
            _run(block, spark, names)


def _run(block: Block, spark: SparkSession, names: dict[str, object]) -> None:
    if "SparkSession.builder" in block.code:
        return  # the quick start: it has a test of its own
    if block.language == "python":
        # line numbers in errors are those of the page
        exec(compile("\n" * block.line + block.code, block.place, "exec"), names)
        for query in spark.streams.active:
            query.processAllAvailable()
            query.stop()
    elif block.language == "sql":
        for statement in filter(str.strip, block.code.split(";")):
            spark.sql(statement)
    else:
        for arguments in filter(is_run, command_lines(block)):
            run(arguments)


def test_the_quick_start_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script of the quick start, in a process of its own, then its commands, as a new user would type them."""
    [program] = blocks(SCRIPT, "python")
    assert "batches) < 15 " in program.code
    script = program.code.replace("batches) < 15 ", "batches) < 3 ").replace("/tmp/lake", str(tmp_path / "lake"))
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__WAREHOUSE", (tmp_path / "lake").as_uri())
    with configured(f"sqlite:///{tmp_path / 'lake.db'}"):
        script_told = _python(script, tmp_path)
    assert "INFO:icesize:lake.db.events: batch 0: " in script_told.stderr
    assert "\n4 partitions  " in script_told.stdout
    shells = [*blocks(SCRIPT, "shell"), *blocks(ROOT / "README.md", "shell")]
    typed = [line for block in shells for line in command_lines(block) if "lake.db.events" in line]
    assert len(typed) >= 10
    monkeypatch.chdir(tmp_path)
    with configured(f"sqlite:///{tmp_path / 'lake.db'}"):
        told = [run(arguments) for arguments in typed]
    assert not any("nothing was chosen" in text for text in told)


def _python(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, env=os.environ | _FRUGAL | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.mark.parametrize("page", TRANSCRIPTS, ids=lambda page: page.name)
def test_transcripts_say_what_commands_say(page: Path) -> None:
    """But for numbers, each transcript is what its commands print today; `python -m docs_tools` writes them anew."""
    for block, told in told_today(page).items():
        assert without_numbers(block.code) == without_numbers(told), block.place
