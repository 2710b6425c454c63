"""The page of commands: groups, arguments, options and examples from click, and links to related pages."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Iterator

import click

from icesize.cli.main import main

SEE_ALSO = {
    "scan": ("[output](output.md#scan)", "[catalogs](whole-catalogs.md#rank-the-tables-of-a-catalog)"),
    "inspect": ("[output](output.md#inspect)", "[clustering advice](maintenance.md#find-columns-to-cluster-by)"),
    "plan": ("[output](output.md#plan)", "[compare policies](settings.md#compare-policies-on-your-table)"),
    "versions": ("[output](output.md#versions)", "[versions](versions.md)"),
    "streams": ("[output](output.md#streams)", "[streams](streams.md)"),
    "history": ("[output](output.md#history)", "[reports](reports.md#show-the-history)"),
    "report": ("[output](output.md#report)", "[reports](reports.md#show-the-history)"),
    "verify": ("[verify](verify.md)",),
    "compact": ("[output](output.md#compact-and-cluster)", "[guide](guide-compact.md)"),
    "cluster": ("[output](output.md#compact-and-cluster)", "[clustering](clustering.md)"),
    "maintain": (
        "[output](output.md#maintain)", "[guide](schedulers.md#schedule-maintenance)", "[maintenance](maintenance.md)",
        "[whole catalogs](whole-catalogs.md)",
    ),
    "rewrite-deletes": ("[output](output.md#rewrite-deletes)", "[delete files](streams.md#tables-with-delete-files)"),
    "remove-dangling-deletes": (
        "[output](output.md#remove-dangling-deletes)", "[delete files](streams.md#tables-with-delete-files)",
    ),
    "rewrite-manifests": ("[output](output.md#rewrite-manifests)", "[maintenance](maintenance.md#run-single-steps)"),
    "deduplicate": ("[output](output.md#deduplicate-and-rekey)", "[upserts](upserts.md#upsert-changes)"),
    "rekey": ("[output](output.md#deduplicate-and-rekey)", "[upserts](upserts.md#upsert-changes)"),
    "restore": (
        "[output](output.md#restore)", "[versions](versions.md#restore-a-partition)",
    ),
    "repair": ("[verify](verify.md#repair)",),
    "expire-snapshots": ("[output](output.md#expire-snapshots)", "[free space](free-space.md#expire-snapshots)"),
    "remove-orphan-files": (
        "[output](output.md#remove-orphan-files)", "[free space](free-space.md#remove-orphan-files)",
    ),
    "demo": ("[quick start](quickstart.md#run-the-demo)",),
    "doctor": ("[output](output.md#doctor)", "[maintenance](maintenance.md#diagnose-problems)"),
    "config": ("[configuration file](settings.md#configuration-file)", "[policy](settings.md)"),
    "completion": ("[maintenance](maintenance.md#shell-completion)",),
}  # fmt: skip
"""Links from each command to its output and to the task that it belongs to."""
INTRODUCTIONS = {
    "scan": "These commands read tables and change nothing, except `streams --forget`, which removes a stream.",
    "compact": "These commands write new files and commit them; rows do not change. `maintain` also expires snapshots.",
    "deduplicate": "These commands concern tables with a key. `deduplicate` deletes rows; preview it first.",
    "restore": "These commands change the rows of a partition, or delete files permanently. Preview them first.",
    "demo": "Run `demo` to see icesize work, and `doctor` to check what works on your machine.",
}
"""A sentence for the group that contains the command."""
_SHARED = 3
"""Commands that must have an option with the same help, so that the page explains it only once."""
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
    return "\n\n".join(["## Shared options", _SHARED_INTRO, _table(_shared_rows()), *sections])


def _introduction(commands: list[click.Command]) -> list[str]:
    return [INTRODUCTIONS[command.name] for command in commands if command.name in INTRODUCTIONS]


def _section(command: click.Command) -> str:
    name = command.name or ""
    paragraphs = [_prose(text) for text in inspect.cleandoc(command.help or "").split("\n\n")]
    shared = [declared for declared, words in _options(command) if (declared, words) in _shared_rows()]
    own = [(declared, words) for declared, words in _options(command) if (declared, words) not in _shared_rows()]
    usage = command.get_usage(_context(command, f"icesize {name}")).removeprefix("Usage: ")
    parts = [f"### icesize {name}", paragraphs[0], f"```text\n{usage}\n```", *paragraphs[1:]]
    if own:
        parts.append(_table(own))
    if shared:
        names = ", ".join(f"`{match[0]}`" for declared in shared if (match := re.search(r"--[a-z-]+", declared)))
        parts.append(f"[Shared options](#shared-options): {names}.")
    examples = (command.epilog or "").partition("Examples:\n")[2]
    if examples:
        parts.append("Examples:\n\n```text\n" + "\n".join(line.strip() for line in examples.splitlines()) + "\n```")
    return "\n\n".join([*parts, f"See also: {', '.join(SEE_ALSO[name])}."])


def _shared_rows() -> list[tuple[str, str]]:
    counts = Counter(option for command in main.commands.values() for option in _options(command))
    return [option for option, count in counts.items() if count >= _SHARED]


def _options(command: click.Command) -> Iterator[tuple[str, str]]:
    context = _context(command, command.name or "")
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context) if isinstance(parameter, click.Option) else None
        if record and "--help" not in record[0]:
            yield record


def _table(options: list[tuple[str, str]]) -> str:
    rows = ["| `{}` | {} |".format(declared.replace("|", r"\|"), _prose(words)) for declared, words in options]
    return "\n".join(["| option | meaning |", "|---|---|", *rows])


def _prose(words: str) -> str:
    """Return Markdown with the words of a help text; its options become code, and lines that begin with - a list."""
    if words.startswith("\b\n"):
        lead, *items = words[2:].split("\n- ")
        return "\n".join([f"{_prose(lead)}\n", *(f"- {_prose(item)}" for item in items)])
    return "".join(_marked(part) for part in re.split(r"(`[^`]*`)", " ".join(words.split())))


def _marked(words: str) -> str:
    """Return code as it is but for |, which would end a cell of a table; escape other words, and mark their options."""
    if words.startswith("`"):
        return words.replace("|", r"\|")
    plain = words.replace("<", "&lt;").replace("*", r"\*").replace("|", r"\|").replace("[", r"\[")
    return re.sub(r"(?<![\w-])(--?[a-z][a-z-]+)", r"`\1`", plain)


def _context(command: click.Command, name: str) -> click.Context:
    context = click.Context(command, info_name=name, terminal_width=200, max_content_width=200)
    context.color = False
    return context
