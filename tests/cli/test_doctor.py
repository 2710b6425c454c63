"""`icesize doctor` on real catalogs: what is well, what fails, and what it leaves behind."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform

import icesize
from icesize.cli.main import main
from tests.support import tables


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """One small file."""
    made = tables.make_table(tables.sqlite_catalog(tmp_path))
    made.append(tables.arrow(range(10)))
    return made


def examine(tmp_path: Path, *options: str, name: str = "lake.db.t") -> Result:
    uri = f"sqlite:///{tmp_path}/catalog.db"
    return CliRunner().invoke(main, ["doctor", name, "--catalog-uri", uri, *options])


def test_a_table_that_is_well_has_a_line_for_each_check(table: Table, tmp_path: Path) -> None:
    """Versions, table, reading, writing, deleting; nothing is left behind and no metadata is written."""
    before = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    result = examine(tmp_path)
    assert result.exit_code == 0, result.output
    told = result.stdout
    assert "ok  table" in told
    assert "lake.db.t, format version 2, in a SqlCatalog: 1 snapshot, 1 partition spec, 1 ref" in told
    assert "1 manifest and a data file of " in told
    assert "whose clock is that of this machine" in told
    assert ", compact, cluster, maintain, " in told.splitlines()[-1]
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == before


def test_a_sort_order_with_a_dropped_column_is_named(table: Table, tmp_path: Path) -> None:
    """Spark cannot write such a table, also if another order is the current one by now."""
    for column in ("ts", "id"):
        with table.update_sort_order() as update:
            update.asc(column, IdentityTransform())
    assert "sort orders" not in examine(tmp_path).stdout
    with table.update_schema() as change:
        change.delete_column("ts")
    result = examine(tmp_path)
    assert "no  sort orders  sort order 1 has a column that was dropped: Iceberg 1.11 on Spark" in result.stdout
    assert (result.exit_code, "compact" in result.stdout.splitlines()[-1]) == (1, True)


def test_without_a_table_the_installation_is_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages and Java; a machine without Java is told what goes without."""
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    result = CliRunner().invoke(main, ["doctor"])
    assert result.exit_code == 0
    assert "--  Java        none in JAVA_HOME or on PATH; Spark needs Java 17, all else works without" in result.stdout
    assert result.stdout.splitlines()[-1] == "will work: demo --no-spark"


def test_what_draws_is_not_promised_without_its_library(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing has failed: an extra is not installed, how it is stands there, and `report` is not among what works."""

    def installed(name: str) -> str:
        if name == "matplotlib":
            raise PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr("importlib.metadata.version", installed)
    result = examine(tmp_path)
    assert result.exit_code == 0
    assert (
        "--  matplotlib  `report` needs it to draw: `pip install '.[report]'` in the checkout of icesize"
        in result.stdout
    )
    assert ", history, verify, compact, " in result.stdout.splitlines()[-1]


def test_an_unknown_table_fails(table: Table, tmp_path: Path) -> None:
    """Exit code 1, the sentence that every command would say, and nothing else of the table."""
    result = examine(tmp_path, "--json", name="lake.db.tt")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    failed = [check for check in document["checks"] if check["state"] == "failed"]
    assert [(check["name"], check["detail"]) for check in failed] == [
        ("table", "Cannot find table 'lake.db.tt'; did you mean 't'?")
    ]
    assert "inspect" not in document["will_work"]


def test_a_catalog_that_does_not_answer_fails() -> None:
    """No traceback for what the network does."""
    result = CliRunner().invoke(main, ["doctor", "lake.db.t", "--catalog-uri", "http://127.0.0.1:1/"])
    assert result.exit_code == 1
    assert "no  table" in result.stdout
    assert "ConnectionError" in result.stdout


def test_a_folder_that_cannot_be_written_fails(table: Table, tmp_path: Path) -> None:
    """Reading goes on where writing is impossible, and so do the commands that only look."""
    (tmp_path / "file").touch()
    with table.transaction() as change:
        change.set_properties({"write.data.path": f"file://{tmp_path}/file/data"})
    result = examine(tmp_path, "--json")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert [check["name"] for check in document["checks"] if check["state"] == "failed"] == ["writing"]
    assert "inspect" in document["will_work"]
    assert "compact" not in document["will_work"]


def test_a_table_whose_files_are_gone_cannot_be_read(table: Table, tmp_path: Path) -> None:
    """The missing file is named; looking at metadata still works, merging would not."""
    for path in tables.live_paths(table):
        tables.local(path).unlink()
    result = examine(tmp_path, "--json")
    assert result.exit_code == 1
    state = {check["name"]: check["state"] for check in json.loads(result.stdout)["checks"]}
    assert (state["table"], state["reading"], state["writing"]) == ("ok", "failed", "ok")


def test_a_table_that_must_not_be_collected_says_so(table: Table, tmp_path: Path) -> None:
    """`gc.enabled` false forbids what deletes files, and nothing else."""
    with table.transaction() as change:
        change.set_properties({"gc.enabled": "false"})
    document = json.loads(examine(tmp_path, "--json").stdout)
    assert "expire-snapshots" not in document["will_work"]
    assert "compact" in document["will_work"]


def test_a_file_io_instead_of_the_client_is_named(tmp_path: Path, properties: dict[str, str], bucket: str) -> None:
    """A table in S3 has a line with the reason if PyIceberg's FileIO reaches it, and still passes."""
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"s3://{bucket}/lake", **properties)
    catalog.create_namespace("db")
    tables.make_table(catalog)
    checks = {check.name: check for check in icesize.open(None, "lake.db.t", catalog=catalog).doctor()}
    assert {check.state for check in checks.values()} <= {"ok", "missing"}
    assert ("storage" in checks) == ("py-io-impl" in properties)
    if "storage" in checks:
        assert "slower requests than by icesize's own client: " in checks["storage"].detail
        assert checks["storage"].detail.endswith(properties["py-io-impl"].rpartition(".")[2])


def test_a_clock_that_differs_is_told(table: Table, tmp_path: Path) -> None:
    """Ages of orphans are measured by the storage's clock: a difference is said."""
    from icesize import open as open_table
    from icesize.environment import Environment

    late = Environment(now_ms=lambda: 1_000_000_000_000)
    sized = open_table(None, "lake.db.t", catalog=tables.sqlite_catalog(tmp_path), environment=late)
    [writing] = [check for check in sized.doctor() if check.name == "writing"]
    assert " s ahead of this machine" in writing.detail
    assert str(writing).startswith("writing: ok: ")
