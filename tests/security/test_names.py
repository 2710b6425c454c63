"""Names, ids and values that try to be something else: they are what they say, or are refused in a sentence."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import ForbiddenError

import icesize
from icesize.cli.main import main
from icesize.errors import BatchError, TableError, TableNotFound
from icesize.spark.engine import session
from icesize.storage.locations import is_inside
from icesize.table.records.ledger import LedgerEntry, parse
from tests.support.rest_server import MiniRest
from tests.support.tables import append, check, ids_of, make_table, request_on, run, write

HOSTILE = [
    "it's \"quoted\"", "a/b/../../c", "line\nbreak\r\t", "🧊 emoji", "\u202eright to left", "nul\x00byte",
    "`; DROP TABLE t",    "x" * 10_000, "%2e%2e%2f", "a=b&c?d#e*[f]", "..", " ", "\ud800",
]  # fmt: skip
NAMES = [repr(each)[:20] for each in HOSTILE]


@pytest.mark.parametrize("stream_id", HOSTILE, ids=NAMES)
def test_stream_ids_are_only_text(lake: SqlCatalog, stream_id: str) -> None:
    """A batch lands once, its entry comes back as it was, and the stream can be listed and forgotten."""
    make_table(lake)
    entry = LedgerEntry(stream_id, stream_id, 7)
    for _ in range(2):
        table = lake.load_table("db.t")
        run(lake, request_on(table, [write(table, [1])], batch=entry), table)
    opened = icesize.open(None, "db.t", catalog=lake)
    (listed,) = opened.streams()
    assert ids_of(lake) == [1]
    assert (listed.stream_id, listed.query_id, listed.batch_id) == (stream_id, stream_id, 7)
    assert max(len(key) for key in lake.load_table("db.t").properties) < 64
    opened.forget_stream(stream_id)
    assert opened.streams() == []
    check(lake.load_table("db.t"))


def test_the_command_line_lists_and_forgets_any_stream(lake: SqlCatalog) -> None:
    """As JSON each id is what it was; in a list for people it cannot fail either."""
    make_table(lake)
    ids = [each for each in HOSTILE if "\x00" not in each and "\ud800" not in each]
    for number, stream_id in enumerate(ids):
        table = lake.load_table("db.t")
        run(lake, request_on(table, [write(table, [number])], batch=LedgerEntry(stream_id, "q", 0)), table)
    given = ["streams", "lake.db.t", "--catalog-uri", lake.properties["uri"]]
    listed = CliRunner().invoke(main, [*given, "--json"])
    assert sorted(entry["stream_id"] for entry in json.loads(listed.output)) == sorted(ids)
    assert CliRunner().invoke(main, given).exit_code == 0
    for stream_id in ids:
        assert CliRunner().invoke(main, [*given, "--forget", stream_id]).exit_code == 0
    assert json.loads(CliRunner().invoke(main, [*given, "--json"]).output) == []


@pytest.mark.parametrize("value", [v for v in HOSTILE if len(v) < 100 and v != "\ud800"])
def test_partition_values_stay_inside_of_the_table(lake: SqlCatalog, value: str) -> None:
    """Files lie below the table's location, whatever their partition is called, and can be compacted."""
    make_table(lake)
    append(lake, [1], kind=value)
    append(lake, [2], kind=value)
    assert icesize.open(None, "db.t", catalog=lake).compact().files_removed == 2
    table = lake.load_table("db.t")
    paths = [task.file.file_path for task in table.scan().plan_files()]
    assert all(is_inside(path, f"{table.location()}/data") for path in paths)
    assert set(table.scan().to_arrow()["kind"].to_pylist()) == {value}
    check(table)


@pytest.mark.parametrize("name", ["a`b", "t'; DROP TABLE x; --", 'q"q', "new\nline", "täble🧊", "x" * 10_000])
def test_table_names_are_no_sql(name: str) -> None:
    """What Spark is told to refresh is one quoted name, with backticks doubled."""
    said: list[str] = []

    class Told:
        def sql(self, statement: str) -> None:
            said.append(statement)

    session.refresh(Told(), f"lake.db.{name}", {"spark.sql.catalog.lake": "x"})  # type: ignore[arg-type]
    quoted = name.replace("`", "``")
    assert said == [f"REFRESH TABLE `lake`.`db`.`{quoted}`"]


@pytest.mark.parametrize("name", ["a`b", "t'; DROP TABLE x; --", 'q"q', "../t", "täble🧊"])
def test_hostile_table_names_are_not_found_by_name(lake: SqlCatalog, name: str) -> None:
    """A table that is not there is told as such; nothing of its name is taken for a command or a path."""
    with pytest.raises(TableNotFound, match="Cannot find table"):
        icesize.open(None, f"db.{name}", catalog=lake)


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_ledger_entries_of_other_versions_are_refused(lake: SqlCatalog, version: object) -> None:
    """A later release may mean something else by them: the batch is refused, and the entry stays as it is."""
    make_table(lake)
    entry = LedgerEntry("clicks", "q", 3)
    value = json.dumps({**json.loads(entry.to_json()), "version": version})
    with lake.load_table("db.t").transaction() as transaction:
        transaction.set_properties({entry.key: value})
    table = lake.load_table("db.t")
    with pytest.raises(BatchError, match=r"Cannot read the ledger entry.*newer icesize"):
        run(lake, request_on(table, [write(table, [1])], batch=entry), table)
    assert (ids_of(lake), lake.load_table("db.t").properties[entry.key]) == ([], value)
    assert parse(entry.to_json()) == entry


def test_loading_without_the_right_names_it(mini: MiniRest) -> None:
    """403 at the load: the table, and what the principal lacks."""
    make_table(mini.catalog("mini"))

    def refuse() -> dict[str, str]:
        raise ForbiddenError("Principal 'joe' is not authorized")

    mini.credentials = refuse
    with pytest.raises(TableError, match=r"Cannot load 'mini\.db\.t'.*right to load the table.*TABLE_READ_DATA"):
        icesize.open(None, "db.t", catalog=mini.catalog("mini"))
