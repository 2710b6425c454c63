"""What every command prints under `--json`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyiceberg.catalog.sql import SqlCatalog

import icesize
from icesize.cli.main import main
from tests.support.tables import append, make_table, sqlite_catalog

MOST_OF_A_DOUBLE = 2**53
COMMANDS = [
    ["inspect"],
    ["plan"],
    ["compact"],
    ["cluster", "--by", "id"],
    ["streams"],
    ["streams", "--forget", "s"],
    ["versions"],
    ["expire-snapshots", "--keep-versions", "1"],
    ["remove-orphan-files"],
    ["rewrite-deletes"],
    ["remove-dangling-deletes"],
    ["rewrite-manifests"],
    ["maintain"],
    ["rekey", "--key", "id"],
    ["deduplicate", "--key", "kind"],
]


@pytest.fixture
def lake(tmp_path: Path) -> SqlCatalog:
    """A table of six appends by icesize and two by PyIceberg."""
    catalog = sqlite_catalog(tmp_path)
    make_table(catalog)
    for number in range(6):
        append(catalog, [number], "ab"[number % 2], batch=number)
    return catalog


def exact(text: str) -> int:
    """A number that readers of JSON can keep."""
    assert abs(int(text)) < MOST_OF_A_DOUBLE, text
    return int(text)


def run(tmp_path: Path, *command: str) -> object:
    """The one document that a command prints."""
    uri = f"sqlite:///{tmp_path}/catalog.db"
    result = CliRunner().invoke(main, [command[0], "lake.db.t", "--catalog-uri", uri, "--json", *command[1:]])
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return json.loads(result.stdout, parse_int=exact)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_one_document_of_exact_numbers_and_nothing_else(lake: SqlCatalog, tmp_path: Path, command: list[str]) -> None:
    """Ids of snapshots are texts, as jq and JavaScript would round numbers; standard error stays empty."""
    assert isinstance(run(tmp_path, *command), (dict, list))


@pytest.mark.engine
def test_no_log_line_or_warning_beside_the_document(lake: SqlCatalog, tmp_path: Path) -> None:
    """What loggers and libraries say stays away from the streams of a process; an error is still told."""
    code = """
import logging, sys, warnings
from icesize import failpoints
from icesize.cli.main import main
def noise():
    warnings.warn("a library warns")
    logging.getLogger("icesize").warning("the catalog's response was lost")
    logging.getLogger("pyiceberg").error("something was odd")
with failpoints.armed("planned", noise):
    main(sys.argv[1:])
"""
    arguments = ["compact", "lake.db.t", "--json", "--catalog-uri", f"sqlite:///{tmp_path}/catalog.db"]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["operations"] == ["replace"]
    assert done.stderr == ""
    failed = subprocess.run([sys.executable, "-c", code, *arguments, "--where", "x ="], capture_output=True, text=True)
    assert (failed.returncode, failed.stdout) == (2, "")
    assert failed.stderr.startswith("icesize: Cannot read the filter")


@pytest.mark.slow
def test_sparks_own_lines_are_not_beside_the_document(lake: SqlCatalog, tmp_path: Path) -> None:
    """Spark's JVM says much on standard error when it starts; not under --json."""
    arguments = ["compact", "lake.db.t", "--json", "--catalog-uri", f"sqlite:///{tmp_path}/catalog.db"]
    spark = ("--master", "local[1]", "--conf", "spark.ui.enabled=false")
    command = [sys.executable, "-m", "icesize", *arguments, *spark]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["operations"] == ["replace"]
    assert done.stderr == ""


def test_an_id_from_json_is_taken_back(lake: SqlCatalog, tmp_path: Path) -> None:
    """What `versions` printed is what `restore` takes, on the command line and in Python."""
    versions = run(tmp_path, "versions", "--partition", "kind=a")
    assert isinstance(versions, list)
    first = versions[-1]["snapshot_id"]
    assert isinstance(first, str)
    restored = run(tmp_path, "restore", "--partition", "kind=a", "--snapshot", first, "--yes")
    assert isinstance(restored, dict)
    assert restored["operations"] == ["overwrite"]
    report = icesize.open(None, "db.t", catalog=lake).restore({"kind": "a"}, versions[0]["snapshot_id"])
    assert report.operations == ("overwrite",)
    assert report.to_dict()["snapshot_ids"] == [str(report.snapshot_ids[0])]
