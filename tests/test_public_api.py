"""The public names, and the word of README and docs about options, policy keys and commands."""

from __future__ import annotations

import inspect
import pydoc
import re
from dataclasses import fields
from pathlib import Path

import icesize
from icesize import errors
from icesize.cli.main import main
from icesize.policy import DOCUMENTED
from icesize.spark.stream.options import SinkOptions
from icesize.table.upserts.settings import UpsertOptions

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
DOCS = {path.name: path.read_text() for path in (ROOT / "docs").glob("*.md")}


PREVIEWS = {
    "compact": "plan", "cluster": "plan_clustering", "maintain": "plan_maintenance", "after_batch": "plan_after_batch",
}  # fmt: skip
"""The calls that return the plan of another call."""


def test_all_is_sorted_and_exact() -> None:
    """`__all__` is in order, each of its names exists, and at most 46 are public: 41 for a table, five for catalogs."""
    assert icesize.__all__ == sorted(icesize.__all__)
    assert all(getattr(icesize, name) is not None for name in icesize.__all__)
    assert len(icesize.__all__) <= 46


def _calls() -> dict[str, inspect.Signature]:
    """What a table can be asked for, by name."""
    members = inspect.getmembers(icesize.SizedTable, inspect.isfunction)
    return {name: inspect.signature(member) for name, member in members if not name.startswith("_")}


def test_what_calls_return_is_public() -> None:
    """Every class of icesize that a call of a table returns is a name of the package, or is in the reference."""
    returned = {name for call in _calls().values() for name in re.findall(r"[A-Z]\w+", str(call.return_annotation))}
    documented = set(re.findall(r"^::: icesize\.[\w.]*?(\w+)$", DOCS["reference.md"], re.MULTILINE))
    assert returned - {"DataFrame", "None"} <= set(icesize.__all__) | documented


def test_commands_and_calls_have_one_name_and_one_preview() -> None:
    """Each command is a call of that name, of a table or of the package. Where it has a dry run, the call has `dry_run`
    or a preview."""
    by_hand, calls = {"streams": "forget_stream"}, _calls() | {"scan": inspect.signature(icesize.scan)}
    for name, command in main.commands.items():
        options = {option for parameter in command.params for option in parameter.opts}
        if "--json" in options and name != "config":  # which concerns a file
            call = calls[by_hand.get(name, name.replace("-", "_"))]
            assert (name in PREVIEWS or "dry_run" in call.parameters) >= ("--dry-run" in options), name
    changing = {name for name, call in _calls().items() if "dry_run" in call.parameters}
    assert changing == {
        "deduplicate", "expire_snapshots", "forget_clustering", "forget_stream",
        "rekey", "remove_dangling_deletes", "remove_orphan_files", "repair", "restore", "rewrite_deletes",
        "rewrite_manifests",
    }  # fmt: skip
    assert changing.isdisjoint(PREVIEWS)
    assert {name for name in _calls() if name.startswith("plan")} == {*PREVIEWS.values()}


def test_arguments_of_a_sink_stand_in_its_signature() -> None:
    """`table.sink` names each option of a sink with its default, and its docstring explains each."""
    options = {each.name: each.default for each in fields(SinkOptions) if each.name not in ("environment", "upsert")}
    defaults = {name: each.default for name, each in list(_calls()["sink"].parameters.items())[2:]}
    assert defaults == {
        "mode": "append", **{field.name: field.default for field in fields(UpsertOptions)}, **options,
    }  # fmt: skip
    assert all(re.search(rf"^ +{name}: ", icesize.SizedTable.sink.__doc__ or "", re.M) for name in defaults)


def test_entry_points_for_tools_are_where_they_are_promised() -> None:
    """`route` and `choose_prefix` are had from their packages."""
    from icesize.planning.merging import choose_prefix
    from icesize.planning.routing import route

    assert route({"a": 5.0}, 1, 100).assignment == {"a": ((0, 1.0),)}
    assert choose_prefix([1.0, 1.0], 100, 1) == 2


def test_help_shows_what_is_loaded_late() -> None:
    """`help(icesize)` has the table, the sink and `open`, which importing the package does not load."""
    told = pydoc.plain(pydoc.render_doc(icesize))
    assert all(f"class {name}(" in told for name in ("SizedTable", "Sink", "Report", "SizePolicy"))
    assert "open(spark: " in told
    assert told.index("import icesize") < told.index("PACKAGE CONTENTS")


def test_every_error_is_public_and_drawn() -> None:
    """Each error class is exported and stands in the tree at the top of errors.py."""
    classes = {n for n, c in vars(errors).items() if inspect.isclass(c) and issubclass(c, icesize.IcesizeError)}
    assert classes <= set(icesize.__all__)
    assert all(re.search(rf"\b{name}\b", errors.__doc__ or "") for name in classes)


def test_the_docs_list_every_policy_key() -> None:
    """The table of the page of settings has each key with its default."""
    for key, default, _ in DOCUMENTED:
        assert re.search(rf"\| `{key}` \| [^|]+ \| {re.escape(default)} \|", DOCS["settings.md"])


def test_the_docs_name_every_command() -> None:
    """Each command of the command line stands in the README or in the docs."""
    words = README + "".join(DOCS.values())
    assert [name for name in main.commands if f"icesize {name}" not in words] == []


def test_the_readme_is_short() -> None:
    """The README has at most 120 lines."""
    assert len(README.splitlines()) <= 120


def test_the_readme_has_two_lines_to_copy() -> None:
    """One installs and shows what icesize is for, one installs and tests."""
    install = "python3 -m venv .venv && . .venv/bin/activate && pip install -q "
    lines = [line.rpartition(" && ")[2] for line in README.splitlines() if line.startswith(install)]
    assert [line.partition(" -n ")[0] for line in lines] == ["icesize demo", "python -m pytest"]


def test_every_change_passes_the_command_of_the_readme() -> None:
    """The README's test command is the first that `.ci/run` runs tests with, to the letter."""
    command = next(line for line in README.splitlines() if "python -m pytest" in line)
    command = command.rpartition(" && ")[2]
    script = (ROOT / ".ci" / "run").read_text().splitlines()
    assert next(line for line in script if "pytest" in line) == command


def test_the_wheel_has_every_file_that_is_no_module() -> None:
    """Templates beside the code are package data: without them an installed `icesize report` fails."""
    line = next(one for one in (ROOT / "pyproject.toml").read_text().splitlines() if one.startswith("icesize = ["))
    packed = {path for pattern in re.findall(r'"([^"]+)"', line) for path in (ROOT / "icesize").glob(pattern)}
    others = {p for p in (ROOT / "icesize").rglob("*") if p.is_file() and p.suffix not in (".py", ".pyc", ".md")}
    assert (packed, len(packed)) == (others, 2)
