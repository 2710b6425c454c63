"""What holds for every command: none that changes a table goes without a dry run, and none deletes without a question
at a terminal."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import click
import pytest
from pyiceberg.table import Table

from icesize.cli.main import main
from icesize.planning.files import PartitionKey
from tests.support import tables
from tests.support.command_line import Run, catalog_uri, on_a_terminal
from tests.support.delete_files import delete_positions

LOOKING = {
    "inspect": [],
    "plan": ["--by", "id"],
    "versions": [],
    "history": [],
    "doctor": [],
    "report": [],
    "scan": [],
    "streams": [],
    "verify": [],
}
"""Commands that change no table, with the options of their test."""
WELL_SIZED = ("max-delete-files=1", "target-file-size-bytes=1", "small-file-limit-bytes=1", "close-file-cost-bytes=0")
"""Every file is well sized, and one more file costs nothing: only many delete files are due."""
CHANGING = {
    "compact": [],
    "cluster": ["--by", "id", "--strategy", "hilbert"],
    "cluster --forget": ["--forget"],
    "maintain": [],
    "rewrite-deletes": [word for key in WELL_SIZED for word in ("--policy", key)],
    "remove-dangling-deletes": [],
    "rewrite-manifests": [],
    "deduplicate": ["--key", "kind"],
    "rekey": ["--key", "id", "--order-by", "ts"],
    "restore": ["--partition", "kind=a", "--as-of", "2999-01-01"],
    "repair": [],
    "expire-snapshots": ["--older-than", "0s", "--retain-last", "1"],
    "remove-orphan-files": ["--delete"],
    "streams --forget": ["--forget", "s"],
}
DELETING = (
    "maintain",
    "deduplicate",
    "restore",
    "repair",
    "expire-snapshots",
    "remove-orphan-files",
    "streams --forget",
)
"""Those of them after which something is gone. `cluster --forget` takes back settings, which it tells."""
WITHOUT_TABLE = {"demo", "completion", "config"}
"""They have no table but one of their own, or name something else first."""
NEVER_PROMISED = {
    "doctor": "it is the one that tells",
    "completion": "it needs nothing",
    "config": "it has no table",
}
"""Commands that `doctor` does not name, and why."""
AT_ONCE = {"history.expire.max-snapshot-age-ms": "1", "history.expire.min-snapshots-to-keep": "1"}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Small files of a stream, sorted by a column that the table remembers, two delete files of one of them and one of
    a file that is gone, and an orphan ten days old: something to do for every command."""
    catalog = tables.sqlite_catalog(tmp_path)
    remembered = {"icesize.cluster.by": "id", "icesize.cluster.field-ids": "1:id", "icesize.cluster.strategy": "zorder"}
    made = tables.make_table(catalog, properties=AT_ONCE | remembered)
    for batch in range(8):
        tables.append(catalog, range(10 * batch, 10 * batch + 10), batch=batch)
    paths = tables.live_paths(catalog.load_table("db.t"))
    for path in (paths[0], paths[0], f"{made.location()}/data/kind=a/gone.parquet"):
        delete_positions(made, {path: [0]}, PartitionKey(0, ("a",)))
    orphan = Path(tables.local(made.location())) / "data" / "orphan.parquet"
    orphan.write_bytes(b"nobody needs it")
    ten_days_ago = time.time() - 10 * 86_400
    os.utime(orphan, (ten_days_ago, ten_days_ago))
    return made


def _state(folder: Path) -> dict[str, bytes]:
    """Every file of catalog and table."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_every_command_is_looked_at() -> None:
    """A new command is to be named above, as one that changes a table or as one that does not."""
    named = {name.split()[0] for name in (*LOOKING, *CHANGING)} | WITHOUT_TABLE
    assert named == set(main.commands)


def test_doctor_names_every_command(table: Table, run: Run) -> None:
    """On a table that is well, on a machine that has everything, all will work, but those that it never speaks of."""
    promised = {command.split()[0] for command in json.loads(run("doctor", "--json").stdout)["will_work"]}
    assert promised - {"--master"} == set(main.commands) - NEVER_PROMISED.keys()


@pytest.mark.parametrize("name", sorted(set(main.commands) - WITHOUT_TABLE))
def test_every_command_on_a_table_has_a_document(name: str) -> None:
    """`--json` is an option of each."""
    assert "--json" in {option for parameter in main.commands[name].params for option in parameter.opts}


@pytest.mark.parametrize("name", LOOKING)
def test_what_only_looks_changes_nothing(table: Table, run: Run, tmp_path: Path, name: str) -> None:
    """Neither catalog nor any file of the table."""
    before = _state(tmp_path)
    result = run(name, *LOOKING[name], "--json")
    assert result.exit_code == 0, result.output
    json.loads(result.stdout)
    assert _state(tmp_path) == before


@pytest.mark.parametrize("name", CHANGING)
def test_a_dry_run_changes_nothing_and_the_command_does(table: Table, run: Run, tmp_path: Path, name: str) -> None:
    """`--dry-run` tells something, as a document, too; without it the command finds something to do."""
    command, options = name.split()[0], CHANGING[name]
    before = _state(tmp_path)
    told = run(command, *options, "--dry-run")
    assert (told.exit_code, bool(told.stdout)) == (0, True), told.output
    json.loads(run(command, *options, "--dry-run", "--json").stdout)
    assert _state(tmp_path) == before
    if command == "restore":
        options = ["--partition", "kind=a", "--snapshot", str(table.refresh().metadata.snapshots[0].snapshot_id)]
    yes = ["--yes"] if name in DELETING else []
    result = run(command, *options, *yes)
    assert result.exit_code == 0, result.output
    assert _state(tmp_path) != before


@pytest.mark.parametrize("name", DELETING)
def test_what_deletes_asks_at_a_terminal(table: Table, tmp_path: Path, name: str) -> None:
    """No is an answer: exit code 1, and nothing has changed, also with `--json`. `--yes` asks nothing."""
    arguments = [name.split()[0], "lake.db.t", "--catalog-uri", catalog_uri(tmp_path), *CHANGING[name]]
    before = _state(tmp_path)
    for options in ([], ["--json"]):
        code, told = on_a_terminal([*arguments, *options], "n\n")
        assert (code, "[y/N]: " in told) == (1, True), told
        assert _state(tmp_path) == before
    code, told = on_a_terminal([*arguments, "--yes"], "")
    assert (code, "[y/N]" in told) == (0, False), told


def test_no_command_but_those_asks() -> None:
    """`--yes` is an option of commands that delete, and of no other."""
    asking = {
        command.name
        for command in main.commands.values()
        if any(isinstance(parameter, click.Option) and "--yes" in parameter.opts for parameter in command.params)
    }
    assert asking == {name.split()[0] for name in DELETING}
