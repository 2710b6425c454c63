"""The page of commands: groups, arguments, options and examples from click, and links to related pages."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Iterator

import click

from icesize.cli.main import main

SEE_ALSO = {
    "scan": "[catalogs](whole-catalogs.md#rank-the-tables-of-a-catalog)",
    "inspect": "[advice](maintenance.md#read-the-advice), [filters](maintenance.md#find-columns-to-cluster-by)",
    "plan": "[compare policies](settings.md#compare-policies-on-your-table)",
    "versions": "[versions](free-space.md#versions)",
    "streams": "[streams](streams.md)",
    "history": "[history](monitoring.md#show-the-history)",
    "report": "[history](monitoring.md#show-the-history)",
    "verify": "[verify](verify.md)",
    "compact": "[quick start](quickstart.md#compact-a-partition-of-your-table)",
    "cluster": "[clustering](clustering.md)",
    "maintain": "[maintenance](maintenance.md), [whole catalogs](whole-catalogs.md)",
    "rewrite-deletes": "[delete files](streams.md#tables-with-delete-files)",
    "remove-dangling-deletes": "[delete files](streams.md#tables-with-delete-files)",
    "rewrite-manifests": "[maintenance](maintenance.md#run-single-steps)",
    "deduplicate": "[upserts](upserts.md#upsert-changes)",
    "rekey": "[upserts](upserts.md#upsert-changes)",
    "restore": "[versions](free-space.md#restore-a-partition)",
    "repair": "[verify](verify.md#repair)",
    "expire-snapshots": "[free space](free-space.md#expire-snapshots)",
    "remove-orphan-files": "[free space](free-space.md#remove-orphan-files)",
    "demo": "[quick start](quickstart.md#run-the-demo)",
    "doctor": "[maintenance](maintenance.md#diagnose-problems)",
    "config": "[configuration file](settings.md#configuration-file)",
    "completion": "[maintenance](maintenance.md#shell-completion)",
}
"""A link from each command to the task that it belongs to."""
EXPLAINED = frozenset(
    {
        "demo", "config", "inspect", "plan", "streams", "history", "verify", "compact", "cluster", "maintain",
        "expire-snapshots",
    }
)  # fmt: skip
"""Commands whose link leads to more than their help says, so that the page takes only its first paragraph."""
INTRODUCTIONS = {
    "scan": "These commands read tables and change nothing, except `streams --forget`, which removes a stream.",
    "compact": "These commands change files, not rows. `maintain` also expires snapshots.",
    "deduplicate": "These commands concern tables with a key. `deduplicate` deletes rows; preview it first.",
    "restore": "These commands change the rows of a partition, or delete files permanently. Preview them first.",
    "demo": "Run `demo` to see icesize work, and `doctor` to check what works on your machine.",
}
"""A sentence for the group that contains the command."""
_SHARED = 2
"""Commands that must have an option with the same help, so that the page explains it only once."""
_COMMON_INTRO = "All commands except `demo` and `completion` accept these options:"
_SHARED_INTRO = "These options mean the same in every command that lists them:"


def groups() -> dict[str, list[click.Command]]:
    """Return the commands under the headings, and in the order, of `icesize --help`."""
    found: dict[str, list[click.Command]] = {}
    title = ""
    for line in main.get_help(_context(main, "icesize")).splitlines():
        name = line[2:].partition(" ")[0] if line.startswith("  ") else ""
        if re.fullmatch(r"\w[\w ]*:", line):
            title = line[:-1]
        elif name in main.commands:
            found.setdefault(title, []).append(main.commands[name])
    return found


def page() -> str:
    """Return the options that commands share, then a section for each group of commands."""
    sections = [
        "\n\n".join([f"## {title}", *_introduction(commands), *map(_section, commands)])
        for title, commands in groups().items()
    ]
    common, shared = _shared_rows()
    return "\n\n".join(["## Shared options", _COMMON_INTRO, _list(common), _SHARED_INTRO, _list(shared), *sections])


def _introduction(commands: list[click.Command]) -> list[str]:
    return [INTRODUCTIONS[command.name] for command in commands if command.name in INTRODUCTIONS]


def _section(command: click.Command) -> str:
    name = command.name or ""
    paragraphs = [_prose(text) for text in inspect.cleandoc(command.help or "").split("\n\n")]
    paragraphs = paragraphs[:1] if name in EXPLAINED else paragraphs
    common, shared = _shared_rows()
    listed = [row for row in _options(command) if row in shared]
    own = [row for row in _options(command) if row not in common and row not in shared]
    usage = command.get_usage(_context(command, f"icesize {name}")).removeprefix("Usage: ")
    block = "\n".join([usage.replace(" [OPTIONS]", ""), *_example(command)])
    parts = [f"### icesize {name}", paragraphs[0], f"```text\n{block}\n```", *paragraphs[1:]]
    if own:
        parts.append(_list(own))
    names = ", ".join(f"`{match[0]}`" for declared, _ in listed if (match := re.search(r"--[a-z-]+", declared)))
    links = f"See also: {SEE_ALSO[name]}."
    return "\n\n".join([*parts, f"[Shared options](#shared-options): {names}. {links}" if names else links])


def _example(command: click.Command) -> list[str]:
    """Return the command's first example with options: the usage shows the form of others, and `--help` prints all."""
    lines = [line.strip() for line in (command.epilog or "").partition("Examples:\n")[2].splitlines()]
    own = f"icesize {command.name} "
    return [line for line in lines if (line.startswith(own) and " -" in line) or not line.startswith("icesize")][:1]


def _shared_rows() -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return the options of all commands that open a table, and those that some commands share."""
    counts = Counter(option for command in main.commands.values() for option in _options(command))
    most = max(counts.values())
    shared = [option for option, count in counts.items() if _SHARED <= count < most]
    return [option for option, count in counts.items() if count == most], shared


def _options(command: click.Command) -> Iterator[tuple[str, str]]:
    context = _context(command, command.name or "")
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context) if isinstance(parameter, click.Option) else None
        if record and "--help" not in record[0]:
            yield record


def _list(options: list[tuple[str, str]]) -> str:
    return "\n".join(f"- `{declared}`: {_prose(words)}" for declared, words in options)


def _prose(words: str) -> str:
    """Return Markdown with the words of a help text; its options become code, and lines that begin with - a list."""
    if words.startswith("\b\n"):
        lead, *items = words[2:].split("\n- ")
        return "\n".join([f"{_prose(lead)}\n", *(f"- {_prose(item)}" for item in items)])
    return "".join(_marked(part) for part in re.split(r"(`[^`]*`)", " ".join(words.split())))


def _marked(words: str) -> str:
    """Return code unchanged; escape other words, and mark their options."""
    if words.startswith("`"):
        return words
    plain = words.replace("<", "&lt;").replace("*", r"\*").replace("[", r"\[")
    return re.sub(r"(?<![\w-])(--?[a-z][a-z-]+)", r"`\1`", plain)


def _context(command: click.Command, name: str) -> click.Context:
    context = click.Context(command, info_name=name, terminal_width=200, max_content_width=200)
    context.color = False
    return context
