"""README and docs: every page is in the menu, every block is well formed, what comes from the code is up to date."""

from __future__ import annotations

import ast
import re
import warnings
from dataclasses import fields
from pathlib import Path
from urllib.parse import urlsplit
from xml.etree import ElementTree

import click
import pytest
import yaml

from docs_tools.blocks import DOCS, LANGUAGES, NOT_RUN, ROOT, blocks, pages
from docs_tools.commands import command_lines, parse
from docs_tools.messages import is_printed
from docs_tools.parts import PARTS, pages_with_parts, rewritten
from docs_tools.rooms import rooms
from icesize import Report, errors
from icesize.cli.main import main
from icesize.planning.files import SkipReason

PAGES = {path.name: path.read_text(encoding="utf-8") for path in pages()}
_BRITTLE = frozenset({"commands", "rooms"})
"""Parts whose words may be changed without a page being wrong: names alone are compared."""


def _each(*languages: str) -> list[pytest.param]:  # type: ignore[valid-type]
    return [pytest.param(block, id=block.place) for page in pages() for block in blocks(page, *languages)]


def test_every_page_is_in_the_menu() -> None:
    """The menu of the docs has every page, and no other; so does the list on the first page, in the same order."""
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2].partition("\nplugins:")[0]
    listed = re.findall(r"- ([\w-]+\.md)$", menu, re.MULTILINE)
    assert sorted(listed) == sorted(path.name for path in DOCS.glob("*.md"))
    assert ["index.md", *re.findall(r"\(([\w-]+\.md)\)", PAGES["index.md"].partition("\n## All pages")[2])] == listed


_ONLY_ON_THE_SITE = re.compile(r"^ *(!!!|\?\?\?|<(?:div|details)\b|:::)", re.MULTILINE)
"""Markup that the site understands, but that GitHub shows as text."""


def _site_markup(page: Path) -> list[str]:
    directives = {":::"} if page.name == "reference.md" else set()
    return [mark for mark in _ONLY_ON_THE_SITE.findall(page.read_text(encoding="utf-8")) if mark not in directives]


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_pages_can_be_read_on_github(page: Path) -> None:
    """Pages use Markdown that GitHub also shows; the reference alone has directives, and explains them."""
    assert _site_markup(page) == []
    if page.name == "reference.md":
        assert "zensical serve" in PAGES[page.name].partition("\n::: ")[0]


def test_markup_of_the_site_is_found(tmp_path: Path) -> None:
    """Admonitions, HTML and directives are found at the start of a line, and nothing else is."""
    page = tmp_path / "page.md"
    page.write_text("!!! note\n<div class='a'>\n::: icesize.open\n> [!NOTE]\n> !!! and `<div`\n", encoding="utf-8")
    assert _site_markup(page) == ["!!!", "<div", ":::"]


def test_every_block_says_what_it_is() -> None:
    """Code stands between fences that name its language, so that none escapes the tests."""
    found = [block.place for page in pages() for block in blocks(page) if block.language not in LANGUAGES]
    assert found == []


def test_what_does_not_run_says_why() -> None:
    """A block that no test runs tells its reader the reason."""
    for page in pages():
        for block in blocks(page):
            first = block.code.partition("\n")[0]
            assert block.is_run or any(len(first) > len(mark) + 10 for mark in NOT_RUN), block.place


@pytest.mark.parametrize("block", _each("python"))
def test_python_is_python(block) -> None:  # type: ignore[no-untyped-def]
    """Each block of Python can be compiled, without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compile(block.code, block.place, "exec")


@pytest.mark.parametrize("block", _each("yaml"))
def test_yaml_is_yaml(block) -> None:  # type: ignore[no-untyped-def]
    """Each file of settings has the form that PyIceberg reads."""
    assert set(yaml.safe_load(block.code)) == {"catalog"}


@pytest.mark.parametrize("block", _each("shell", "console"))
def test_commands_exist(block) -> None:  # type: ignore[no-untyped-def]
    """Each command line that a page shows is understood, with all its options."""
    for arguments in command_lines(block):
        try:
            parse(arguments)
        except click.exceptions.Exit:
            continue
        except click.UsageError as error:
            pytest.fail(f"{block.place}: icesize {' '.join(arguments)}: {error.message}")


def test_a_command_that_does_not_exist_is_found() -> None:
    """An unknown option is told, also where the command stands in a cron table."""
    with pytest.raises(click.UsageError):
        parse(["maintain", "lake.db.events", "--budget-minutes", "3"])


@pytest.mark.parametrize("page", pages_with_parts(), ids=lambda page: page.name)
def test_parts_from_code_are_up_to_date(page: Path) -> None:
    """What pages take from the code is what the code says; `python -m docs_tools` writes it anew."""
    today, written = _parts(rewritten(page)), _parts(page.read_text(encoding="utf-8"))
    assert written.keys() <= PARTS.keys()
    for name, text in written.items():
        told = today[name]
        assert (_names(text) == _names(told)) if name in _BRITTLE else (text == told), (
            f"{page.name}: '{name}' is not what the code says; run python -m docs_tools"
        )


def _parts(text: str) -> dict[str, str]:
    return dict(re.findall(r"<!-- begin: ([a-z-]+) -->\n(.*?)<!-- end: \1 -->", text, re.DOTALL))


def _names(text: str) -> list[str]:
    """Headings, options, rooms, and arrows between them."""
    return re.findall(
        r"^##+ .*|(?<![\w-])--[a-z][a-z-]+(?=[ ,`\n])|^\| `[\w.]+`(?: \| `[\w.`, ]+)?", text, re.MULTILINE
    )


def test_every_room_is_drawn() -> None:
    """The drawing of the rooms has each of them; `python -m docs_tools` draws it anew."""
    drawn = (DOCS / "images" / "rooms.svg").read_text(encoding="utf-8")
    assert [name for name, _ in rooms() if name.rpartition(".")[2] not in drawn] == []


def test_every_field_of_a_report_is_explained() -> None:
    """The docstring of a report has each of its fields."""
    explained = re.findall(r"^        (\w+): ", Report.__doc__ or "", re.MULTILINE)
    assert sorted(explained) == sorted(field.name for field in fields(Report))


def test_every_reason_is_explained() -> None:
    """The page about maintenance has each reason why a file stays."""
    reasons = PAGES["maintenance.md"].partition("## Why files stay unchanged")[2].partition("\n## ")[0]
    assert sorted(re.findall(r"^\| `([A-Z_]+)`", reasons, re.MULTILINE)) == sorted(SkipReason.__members__)


def test_phases_of_a_batch_are_named() -> None:
    """The phases in the seconds of a report are those that the code takes the time of."""
    code = "".join(path.read_text() for path in (ROOT / "icesize" / "spark" / "stream").glob("batch*.py"))
    row = next(line for line in PAGES["monitoring.md"].splitlines() if line.startswith("| `seconds`"))
    assert set(re.findall(r'\.lap\("(\w+)"\)', code)) <= set(re.findall(r"`(\w+)`", row))


def test_messages_are_printed_by_the_code() -> None:
    """Each message that the runbook explains stands in the code, word for word but for its values."""
    told = re.findall(r"^\| `(.*?)` \|", PAGES["runbook.md"].partition("## Messages")[2], re.MULTILINE)
    assert len(told) >= 30
    assert [message for message in told if not is_printed(message)] == []


def test_a_message_of_nobody_is_found() -> None:
    """Words that the code does not have are no message."""
    assert not is_printed("Cannot find the table '…'")


def test_the_loggers_are_those_that_the_docs_name() -> None:
    """All of icesize logs to the loggers of the page about monitoring."""
    names = set()
    for path in (ROOT / "icesize").rglob("*.py"):
        names |= set(re.findall(r'getLogger\("([\w.]+)"\)', path.read_text(encoding="utf-8")))
    assert names == {"icesize", "py4j.clientserver"}
    assert all(f"`{name}`" in PAGES["monitoring.md"] for name in names)


def test_every_key_of_a_summary_is_in_the_docs() -> None:
    """Each key that icesize writes into snapshot summaries is named."""
    code = (ROOT / "icesize" / "table" / "records" / "summary.py").read_text(encoding="utf-8")
    assert [key for key in re.findall(r'"(icesize\.[\w-]+)"', code) if f"`{key}`" not in PAGES["settings.md"]] == []


def test_every_error_is_in_the_docs() -> None:
    """The page about output explains each error that icesize raises."""
    classes = [
        node.name for node in ast.parse(Path(errors.__file__).read_text()).body if isinstance(node, ast.ClassDef)
    ]
    assert [name for name in classes if name not in PAGES["output.md"]] == []


def test_every_command_is_in_the_docs() -> None:
    """Each command has its place on the page of commands."""
    assert [name for name in main.commands if f"## icesize {name}\n" not in PAGES["commands.md"]] == []


def test_jars_are_those_of_the_tests() -> None:
    """Pages name the versions of Iceberg's jars, and of the SQLite driver, that the tests run with."""
    place = "{http://maven.apache.org/POM/4.0.0}"
    tree = ElementTree.parse(ROOT / "integration" / "pom.xml")
    jars = {
        f"{d.findtext(place + 'artifactId')}:{d.findtext(place + 'version')}" for d in tree.iter(place + "dependency")
    }
    for text in PAGES.values():
        assert set(re.findall(r"(?:iceberg-spark-runtime|sqlite-jdbc)[\w.-]*:[\d.]+\d", text)) <= jars


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "icesize/README.md",
        "integration/evolution/README.md",
    ],
)
def test_links_lead_somewhere(name: str) -> None:
    """What a page beside the docs links to exists, headings included; the docs' own links are checked by the build."""
    page = ROOT / name
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        parts = urlsplit(link)
        if parts.scheme:
            assert parts.scheme == "https", link
            continue
        target = page.parent / parts.path if parts.path else page
        assert target.exists(), link
        if parts.fragment:
            headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            assert parts.fragment in {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}, link


def test_the_page_of_commands_names_those_without_a_table() -> None:
    """The commands that need no table, and those that accept several, are those of the sentences about them."""
    page = PAGES["commands.md"]
    tables = {
        name: next((p for p in command.params if p.name == "table"), None) for name, command in main.commands.items()
    }
    optional = [name for name, table in tables.items() if table is None or not table.required]
    assert _names_before(page, r"run\s+without a table") == set(optional)
    several = {name for name, table in tables.items() if table is not None and "PATTERN" in (table.metavar or "")}
    assert _names_before(page, "also accept a catalog or a pattern") == several


def _names_before(page: str, words: str) -> set[str]:
    """The commands in the sentence that ends with these words."""
    sentence = re.split(words, page)[0].rpartition(". ")[2].rpartition("\n\n")[2]
    return set(re.findall(r"`([a-z]+)(?: check)?`", sentence))
