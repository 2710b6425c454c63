"""Which rights in the catalog each command needs, by a server that denies one at a time, and by the docs."""

from __future__ import annotations

import os
import re
import time

import pytest
from click.testing import CliRunner, Result

from docs_tools.blocks import DOCS
from icesize.cli.main import main
from icesize.planning.files import PartitionKey
from tests.support.delete_files import delete_positions
from tests.support.rest_server import MiniRest
from tests.support.tables import append, live_paths, local, make_table

AT_ONCE = {"history.expire.max-snapshot-age-ms": "1", "history.expire.min-snapshots-to-keep": "1"}
NAMED = {
    "list": "right to list namespaces and tables",
    "load": "right to load the table",
    "commit": "right to commit to the table",
    "properties": "to set its properties",
}
"""The words of a message for each right."""
FEW_DELETES = "max-delete-files=1 target-file-size-bytes=1 small-file-limit-bytes=1 close-file-cost-bytes=0"
"""Every file is well sized, and two delete files of one file are too many."""
COMMANDS = {
    "scan": "scan lake.db",
    "report of one table": "report lake.db.t --json",
    "report of many tables": "report lake.db.* --json",
    "inspect": "inspect lake.db.t",
    "plan": "plan lake.db.t",
    "versions": "versions lake.db.t",
    "streams": "streams lake.db.t",
    "history": "history lake.db.t",
    "verify": "verify lake.db.t",
    "config show": "config show lake.db.t",
    "compact": "compact lake.db.t",
    "cluster --by": "cluster lake.db.t --by id",
    "maintain of one table": "maintain lake.db.t",
    "maintain of many tables": "maintain lake.db.*",
    "rewrite-deletes": "rewrite-deletes lake.db.t " + " ".join(f"--policy {key}" for key in FEW_DELETES.split()),
    "remove-dangling-deletes": "remove-dangling-deletes lake.db.t",
    "rewrite-manifests": "rewrite-manifests lake.db.t",
    "deduplicate": "deduplicate lake.db.t --key kind --yes",
    "rekey": "rekey lake.db.t --key id --order-by ts",
    "restore": "restore lake.db.t --partition kind=a --yes --snapshot OLDEST",
    "repair": "repair lake.db.t --yes",
    "expire-snapshots": "expire-snapshots lake.db.t --older-than 0s --retain-last 1 --yes",
    "remove-orphan-files --delete": "remove-orphan-files lake.db.t --delete --yes",
    "remove-orphan-files --delete --trust-location": "remove-orphan-files lake.db.t --delete --yes --trust-location",
    "streams --forget": "streams lake.db.t --forget s --yes",
}


NO_FAILURES = {("remove-orphan-files --delete", "list")}
"""A doubt about other tables deletes no file."""


def needs() -> dict[str, set[str]]:
    """The rights of each command, as docs/catalogs.md lists them."""
    page = (DOCS / "catalogs.md").read_text(encoding="utf-8").partition("## Rights")[2]
    found = dict[str, set[str]]()
    for line in page.splitlines():
        names, *marks = (cell.strip() for cell in line.strip("|").split("|"))
        if len(marks) == 5 and names.startswith("`"):
            rights = {right for right, mark in zip(NAMED, marks, strict=False) if mark == "yes"}
            found |= {name.replace("`", ""): rights for name in names.split(", ")}
    return found


def test_the_docs_list_each_command() -> None:
    """The table has the commands of this module, and every command of the program that needs a catalog."""
    assert needs().keys() == COMMANDS.keys()
    others = {"demo", "doctor", "completion"}
    assert {re.split("[ ]", name)[0] for name in COMMANDS} | others >= set(main.commands)


@pytest.fixture
def work(mini: MiniRest) -> MiniRest:
    """A table with something to do for every command: small files of a stream, deletes, an orphan, old snapshots."""
    catalog = mini.catalog("lake")
    made = make_table(catalog, properties=AT_ONCE)
    for batch in range(4):
        append(catalog, range(10 * batch, 10 * batch + 10), batch=batch)
    paths = live_paths(catalog.load_table("db.t"))
    for path in (paths[0], paths[0], f"{made.location()}/data/kind=a/gone.parquet"):
        delete_positions(made, {path: [0]}, PartitionKey(0, ("a",)))
    orphan = local(made.location()) / "data" / "orphan.parquet"
    orphan.write_bytes(b"not needed")
    ten_days_ago = time.time() - 10 * 86_400
    os.utime(orphan, (ten_days_ago, ten_days_ago))
    return mini


def run(mini: MiniRest, name: str, *options: str) -> Result:
    line = COMMANDS[name]
    if "OLDEST" in line:
        denied, mini.denied = mini.denied, set()
        oldest = mini.catalog("lake").load_table("db.t").metadata.snapshots[0].snapshot_id
        line, mini.denied = line.replace("OLDEST", str(oldest)), denied
    arguments = [each for each in line.split() if not options or each != "--yes"]
    return CliRunner().invoke(main, [*arguments, *options, "--catalog-uri", mini.uri])


@pytest.mark.parametrize("name", COMMANDS)
def test_each_right_of_the_docs_is_needed_and_no_other(work: MiniRest, name: str) -> None:
    """Without one of its rights, a command names it and does nothing. With no other rights than these, it works."""
    rights = needs()[name]
    for right in rights:
        work.denied = {right}
        result = run(work, name)
        text = " ".join(result.output.split())
        assert NAMED[right] in text, text
        assert result.exit_code == (0 if (name, right) in NO_FAILURES else 1)
    work.denied = NAMED.keys() - rights
    result = run(work, name)
    assert result.exit_code == 0, result.output


# `streams` alone only lists, and takes `--dry-run` with `--forget`
PREVIEWS = [
    name for name, line in COMMANDS.items()
    if any("--dry-run" in each.opts for each in main.commands[line.split()[0]].params) and name != "streams"
]  # fmt: skip


@pytest.mark.parametrize("name", PREVIEWS)
def test_a_preview_needs_only_the_rights_to_read(work: MiniRest, name: str) -> None:
    """With `--dry-run`, no command commits or sets properties."""
    work.denied = {"commit", "properties"} | (set() if "many" in name else {"list"})
    result = run(work, name, "--dry-run")
    assert result.exit_code == 0, result.output


def test_clustering_by_stored_columns_sets_no_property(work: MiniRest) -> None:
    """After `cluster --by`, `cluster` alone needs only the rights of `compact`."""
    assert run(work, "cluster --by").exit_code == 0
    catalog = work.catalog("lake")
    for batch in range(4, 8):
        append(catalog, range(40), batch=batch)
    work.denied = NAMED.keys() - needs()["compact"]
    small = "--policy", "target-file-size-bytes=1500"
    result = CliRunner().invoke(main, ["cluster", "lake.db.t", *small, "--catalog-uri", work.uri])
    assert result.exit_code == 0, result.output
    assert "replace" in result.output
