"""Facts that pages state, compared with the code: precedence, properties, exit codes and the words of log lines."""

from __future__ import annotations

import inspect
import re
import signal

import pytest

from docs_tools.blocks import ROOT, pages
from docs_tools.messages import HOLE, is_printed
from icesize.cli import main, options
from icesize.policy import PolicyRule, RuledPolicy, SizePolicy, origins_of

PAGES = {path.name: path.read_text(encoding="utf-8") for path in pages()}
KEY, VALUE = "target-file-size-bytes", 2**20
PLACES = {
    "argument": "argument `policy`", f"table property icesize.policy.{KEY}": "`icesize.policy.KEY`",
    f"table property write.{KEY}": f"`write.{KEY}`", "icesize.toml:1": "configuration file", "default": "default",
}  # fmt: skip
"""Source of a value, as the code names it -> words of the page."""


def test_the_precedence_of_settings_is_that_of_the_code() -> None:
    """The numbered list of one page has the places in the order of the code, and no other page has a list."""
    rule = PolicyRule("icesize.toml:1", lambda name: True, {KEY: VALUE})
    ruled, properties = RuledPolicy({KEY: VALUE}, (rule,)), {f"icesize.policy.{KEY}": "1", f"write.{KEY}": "1"}
    policy, _ = SizePolicy.resolve(properties, ruled, "lake.db.t")
    (origin,) = (each for each in origins_of(policy, properties, ruled, "lake.db.t") if each.key == KEY)
    places = [PLACES[place] for place in (origin.source, *origin.overridden, "default")]
    section = PAGES["settings.md"].partition("### Order of precedence")[2].partition("\n\n`icesize config")[0]
    items = re.findall(r"^\d\. (.*)$", section, re.MULTILINE)
    assert [place in item for place, item in zip(places, items, strict=True)] == [True] * len(PLACES)
    assert [name for name, page in PAGES.items() if "precedence" in page.lower() and name != "settings.md"] == []


STORED = {
    name
    for path in [*(ROOT / "icesize" / "table").rglob("*.py"), *(ROOT / "icesize" / "planning").rglob("*.py")]
    for name in re.findall(r'^\w+ = "(icesize\.[a-z.-]+)"', path.read_text(encoding="utf-8"), re.MULTILINE)
} | {"icesize.policy."}
SUMMARY = (ROOT / "icesize" / "table" / "records" / "summary.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", ["settings.md", "moving.md"])
def test_every_property_is_on_the_pages_that_list_them(page: str) -> None:
    """Each property that icesize stores is there, or its family (`icesize.cluster.*`); moving lists no summaries."""
    assert len(STORED) >= 18
    stored = {name for name in STORED if page != "moving.md" or name not in SUMMARY}
    families = re.findall(r"`(icesize\.[a-z]+\.)\*`", PAGES[page])
    missing = {name for name in stored if name not in PAGES[page] and not name.startswith(tuple(families))}
    assert {name for name in missing if page != "moving.md" or not name.startswith("icesize.cluster.")} == set()
    assert "--forget" in PAGES["moving.md"], "it removes the clustering properties"


def test_exit_codes_are_those_of_the_code() -> None:
    """The table has each exit code of the command line, and names the commands that report problems of a table."""
    table = PAGES["output.md"].partition("## Exit codes")[2].partition("\n\nAfter")[0]
    rows = {
        int(code): row
        for row in table.splitlines()
        for code in re.findall(r"\d+", row.split("|")[1] if "|" in row else "")
    }
    codes = {0, options.FAILED, options.USAGE, options.UNKNOWN, options.UNHEALTHY}
    assert rows.keys() == codes | {128 + signal.SIGINT, 128 + signal.SIGTERM}
    named = [
        name for name, command in main.main.commands.items()
        if "UNHEALTHY" in inspect.getsource(inspect.unwrap(command.callback or print))
    ]  # fmt: skip
    assert [name for name in named if f"`{name}" not in rows[options.UNHEALTHY]] == []


LINES = [(name, line) for name, page in PAGES.items() for line in re.findall(r"INFO:icesize:\S+: (batch .*)", page)]
LABELS = [
    (name, label)
    for name in dict(LINES)
    for label in re.findall(r"^(?:- |\| )`([a-z]+ [^`]*)`(?:: | \|)", PAGES[name], re.M)
]
"""Words of log lines that the same page explains, in a list or a table."""


@pytest.mark.parametrize(("page", "line"), [*LINES, *LABELS])
def test_log_lines_of_the_docs_are_printed_by_the_code(page: str, line: str) -> None:
    """Each part of a batch's log line has the label that the code prints."""
    parts = [re.sub(r"\d[\d,.]*", HOLE, part) for part in re.split(r" {2,}|: ", line)]
    assert [part for part in parts if not is_printed(part)] == []
