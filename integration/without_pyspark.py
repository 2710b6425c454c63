"""`python integration/without_pyspark.py FOLDER`: what works where icesize is installed and PySpark is not.

The command line and the API work on one local table. `.ci/run` runs this in an environment of the wheel with the extra
`report` alone, and a test runs it in a process that cannot import PySpark. It needs nothing else, and fails with an
AssertionError.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog import load_catalog

import icesize
from icesize.cli.main import main

COMMANDS = """
scan lake
inspect lake.db.events
plan lake.db.events
compact lake.db.events
cluster lake.db.events --by id
maintain lake.db.events
maintain lake --all
report lake.db.events -o {folder}/report.html
versions lake.db.events
history lake.db.events
verify lake.db.events --deep
deduplicate lake.db.events --key id
expire-snapshots lake.db.events --yes
remove-orphan-files lake.db.events
doctor lake.db.events
"""
APPENDS, ROWS = 4, 100


def rows(first: int) -> pa.Table:
    """Events with numbers from `first` on."""
    return pa.table({"id": range(first, first + ROWS), "kind": ["a"] * ROWS})


def run(folder: Path) -> None:
    """Make a table, upsert into it, run the commands on it, and compare its rows."""
    uri = f"sqlite:///{folder}/catalog.db"
    catalog = load_catalog("lake", type="sql", uri=uri, warehouse=f"file://{folder}")
    catalog.create_namespace("db")
    events = catalog.create_table("db.events", rows(0).schema)
    for number in range(APPENDS):
        events.append(rows(number * ROWS))
    report = icesize.open(None, "lake.db.events", catalog=catalog).upsert(rows(ROWS // 2), key="id")
    assert report.upsert is not None
    assert report.upsert["updated"] == ROWS
    for line in COMMANDS.format(folder=folder).strip().splitlines():
        command, *options = shlex.split(line)
        print(f"$ icesize {line}", flush=True)
        assert sys.modules.get("pyspark") is None
        code = main([command, *options, "--catalog-uri", uri], standalone_mode=False)
        assert not code, f"icesize {line}: exit code {code}"
    ids = catalog.load_table("db.events").scan().to_arrow()["id"].to_pylist()
    assert sorted(ids) == list(range(APPENDS * ROWS))
    assert (folder / "report.html").stat().st_size > 10_000


if __name__ == "__main__":
    run(Path(sys.argv[1]))
