"""`icesize.toml`: what is read from it, which mistakes are found on which line, and whose policy wins."""

from __future__ import annotations

import pickle
from datetime import datetime, timezone
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icesize.config_file import Configuration, Hours, find, load, policy_of, read
from icesize.errors import ArgumentError
from icesize.policy import SizePolicy
from tests.support.tables import make_table

WHOLE = """
[catalog.lake]
uri = "https://catalog.example.com"
s3.endpoint = "https://s3.example.com"
s3.path-style-access = true

[tables]
include = ["lake.db.*", "lake.logs"]
exclude = "lake.db.tmp_*"

[maintain]
hours = ["22:00-06:00", "12:00-13:30"]
time-zone = "Europe/Berlin"
budget-bytes = "20GiB"
budget-seconds = 1500
concurrency = 4

[[policy]]
tables = "lake.db.events"
max-small-files = 3

[[policy]] # for the rest
tables = ["lake.db.*", "lake.logs"]
max-small-files = 12
target-file-size-bytes = "128MiB"
"""


def configured(folder: Path, text: str) -> Path:
    path = folder / "icesize.toml"
    path.write_text(text)
    return path


def test_a_whole_configuration_is_read(tmp_path: Path) -> None:
    """Catalogs with keys of several parts, patterns, hours, budgets and policies; it can be sent to other processes."""
    found = load(configured(tmp_path, WHOLE))
    assert found.catalogs["lake"] == {
        "uri": "https://catalog.example.com", "s3.endpoint": "https://s3.example.com", "s3.path-style-access": "true",
    }  # fmt: skip
    assert (found.budget_bytes, found.budget_seconds, found.concurrency) == (20 * 2**30, 1500, 4)
    names = ("lake.db.a", "lake.db.tmp_a", "lake.logs.a.b", "lake.other.a", "sea.db.a")
    assert [name for name in names if found.is_chosen(name)] == ["lake.db.a", "lake.logs.a.b"]
    assert found.hours.text == "22:00-06:00, 12:00-13:30 Europe/Berlin"
    assert pickle.loads(pickle.dumps(found.policy({}))) == found.policy({})
    assert "example.com" not in repr(found)


def test_without_a_file_everything_has_its_default() -> None:
    """All tables are chosen at all hours, and a policy argument stays what it is."""
    assert Configuration().is_chosen("lake.db.t")
    assert Configuration().hours.are_open(0)
    assert Configuration().policy({"max-small-files": "3"}) == {"max-small-files": "3"}


def test_the_file_is_found_as_pyiceberg_finds_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable wins over the working directory, which wins over the home directory."""
    home, here = tmp_path / "home", tmp_path / "here"
    for folder in (home, here):
        folder.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    assert find({}) is None
    (home / ".icesize.toml").touch()
    assert find({}) == home / ".icesize.toml"
    local = configured(here, "")
    assert find({}) == Path("icesize.toml")
    assert find({"ICESIZE_CONFIG": str(local)}) == local
    with pytest.raises(ArgumentError, match=r"ICESIZE_CONFIG is 'gone\.toml', and there is no such file"):
        find({"ICESIZE_CONFIG": "gone.toml"})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[tables]\ninclude = [", "no TOML: "),
        ("[tables]\ninclude = 1 2", "line 2: no TOML: "),
        ("[tables]\nexclud = []", "line 2: unknown key 'exclud': did you mean 'exclude'?"),
        ("\nzzz = 1", "line 2: unknown key 'zzz': the keys are catalog, tables, policy, maintain"),
        ("tables = 1", "line 1: 'tables' must be a table, such as [tables]"),
        ("[catalog]\nlake = 1", "line 2: 'catalog.lake' must be a table, such as [catalog.lake]"),
        ("[catalog.lake]\nuri = 'x'\nwarehouse = []", "line 3: 'warehouse' must be a text, a number, true or false"),
        ("[tables]\ninclude = [1]", "line 2: 'include' must be a pattern such as 'lake.db.*', or an array of patterns"),
        ("[tables]\nexclude = '*'", "line 2: Cannot select tables by '*'"),
        ("[maintain]\nhours = ['9-17']", "line 2: 'hours' (['9-17']) must be an array of hours such as"),
        ("[maintain]\nhours = ['01:60-02:00']", "line 2: 'hours' (['01:60-02:00']) must be"),
        (
            "[maintain]\n'time-zone' = 'Mars'",
            "line 2: 'time-zone' ('Mars') must be a time zone such as 'Europe/Berlin'",
        ),
        ("[maintain]\nbudget-bytes = '20GB'", "line 2: 'budget-bytes' ('20GB') must be a size such as"),
        ("[maintain]\nbudget-seconds = true", "line 2: 'budget-seconds' (True) must be a duration such as"),
        ("[maintain]\nconcurrency = 0", "line 2: 'concurrency' (0) must be a whole number above 0"),
        ("[policy]\ntables = 'lake'", "line 1: 'policy' must be an array of tables: write [[policy]]"),
        ("[[policy]]\nmax-small-files = 3", "line 1: a policy needs 'tables', a pattern such as 'lake.db.*'"),
        (
            "[[policy]]\ntables = 'a.b'\n[[policy]]\ntables = 'a.c'\nmax-smal = 3",
            "line 5: unknown policy key 'max-smal': did you mean",
        ),
        (
            "[[policy]]\ntables = 'lake'\nmax-small-files = 'x'",
            "line 3: 'max-small-files' ('x') must be a whole number",
        ),
        (
            "[[policy]]\ntables = 'lake'\ntarget-file-size-bytes = 10\nsmall-file-limit-bytes = 20",
            "line 1: 'small-file-limit-bytes' (20) must be <= 'target-file-size-bytes' (10)",
        ),
    ],
)
def test_each_mistake_names_its_line(tmp_path: Path, text: str, problem: str) -> None:
    """The problem has line and reason, and a command that needs the file refuses it."""
    path = configured(tmp_path, text)
    _, problems = read(path)
    (found,) = map(str, problems)
    assert found.startswith(problem)
    with pytest.raises(ArgumentError, match="Cannot use '"):
        load(path)


def test_all_mistakes_are_found_at_once(tmp_path: Path) -> None:
    """They come in the order of their lines, and do not hide each other."""
    path = configured(tmp_path, "[maintain]\nconcurrency = 0\nhour = []\n[[policy]]\n[[policy]]\n")
    _, problems = read(path)
    assert [problem.line for problem in problems] == [2, 3, 4, 5]


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    """Its message has the name of the file."""
    with pytest.raises(ArgumentError, match=r"Cannot read the configuration '.*none\.toml'"):
        read(tmp_path / "none.toml")


@pytest.mark.parametrize(("hour", "is_open"), [(21, False), (22, True), (23, True), (0, True), (5, True), (6, False)])
def test_hours_pass_midnight_in_their_time_zone(hour: int, is_open: bool) -> None:
    """From 22 to 6 in Berlin, in winter and in summer."""
    zone = ZoneInfo("Europe/Berlin")
    hours = Hours(((22 * 60, 6 * 60),), zone)
    for month in (1, 7):
        now = datetime(2026, month, 15, hour, 30 if hour != 22 else 0, tzinfo=zone)
        assert hours.are_open(int(now.timestamp() * 1000)) == is_open
    assert Hours(((0, 24 * 60),)).are_open(int(datetime(2026, 1, 1, tzinfo=timezone.utc).timestamp() * 1000))


def test_each_place_of_a_policy_yields_to_the_one_before_it(tmp_path: Path, lake: SqlCatalog) -> None:
    """Argument, property of icesize, property of Iceberg, the first rule of the file, later rules, the default."""
    properties = {"icesize.policy.cold-after-commits": "7", "write.target-file-size-bytes": "1000000"}
    make_table(lake, name="db.events", properties=properties)
    text = WHOLE + "cold-after-commits = 8\nmax-delete-files = 9\n"
    configuration = load(configured(tmp_path, text))
    found = policy_of(lake, "lake.db.events", configuration, {"max-delete-files": "2"})
    assert {one.key: (one.value, one.source, one.overridden) for one in found.keys if one.source != "default"} == {
        "target-file-size-bytes": (1_000_000, "table property write.target-file-size-bytes", ("icesize.toml:22",)),
        "max-small-files": (3, "icesize.toml:18", ("icesize.toml:22",)),
        "cold-after-commits": (7, "table property icesize.policy.cold-after-commits", ("icesize.toml:22",)),
        "max-delete-files": (2, "argument", ("icesize.toml:22",)),
    }
    assert found.is_chosen
    make_table(lake, name="db.others")
    others = {one.key: one.source for one in policy_of(lake, "lake.db.others", configuration, {}).keys}
    assert (others["max-small-files"], others["target-file-size-bytes"]) == ("icesize.toml:22", "icesize.toml:22")
    resolved, _ = SizePolicy.resolve(properties, configuration.policy({}), "lake.db.events")
    assert (resolved.max_small_files, resolved.cold_after_commits, resolved.max_delete_files) == (3, 7, 9)


def test_the_default_of_tables_with_upserts_is_named(lake: SqlCatalog) -> None:
    """Deletes fall due earlier there, and no rule sets that."""
    make_table(lake, properties={"icesize.upsert": "{}"})
    sources = {one.key: one.source for one in policy_of(lake, "lake.db.t", Configuration(), {}).keys}
    assert (sources["max-small-files"], sources["delete-ratio-spread"]) == ("default", "default with upserts")
