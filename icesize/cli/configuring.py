"""`icesize config`: checks the configuration file, and shows where the policy of a table comes from."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import click

from icesize.cli import options
from icesize.cli.options import USAGE, Target, command
from icesize.units import format_count


@command(
    "config",
    "Check icesize.toml, or show where a table's policy comes from",
    "icesize config check",
    "icesize config check team/icesize.toml",
    "icesize config show lake.db.events",
)
@click.argument("action", type=click.Choice(["check", "show"]), metavar="check|show")
@options.policy_option
@partial(options.table_options, required=False, metavar="FILE|TABLE")
def config(target: Target, *, action: str, policy: Mapping[str, str]) -> None:
    """Check a configuration file, or show the policy of TABLE and the origin of each key.

    Without FILE, `check` looks for the file as all commands do: ICESIZE_CONFIG, ./icesize.toml, ~/.icesize.toml. Exit
    code 2 if the file has a mistake.
    """
    if action == "check":
        _check(target)
    elif target.table:
        _show(target, policy)
    else:
        raise click.UsageError("name the table: icesize config show lake.db.events")


def _check(target: Target) -> None:
    from icesize.config_file import find, read

    path = Path(target.table) if target.table else find()
    if path is None:
        target.answer({"path": None, "problems": []}, [("no configuration file: all settings have their defaults",)])
        return
    configuration, problems = read(path)
    counts = format_count(len(configuration.rules), "rule"), format_count(len(configuration.catalogs), "catalog")
    verdict = f"{path} is valid: {counts[0]} for policies, {counts[1]}"
    shown = [((f"{path}: {problem}", "red"),) for problem in problems] or [((verdict, "green"),)]
    target.answer({"path": str(path), "problems": problems}, shown, exit_code=USAGE if problems else 0)


def _show(target: Target, policy: Mapping[str, str]) -> None:
    from icesize.config_file import policy_of

    with target.open_catalog() as catalog:
        target.answer(policy_of(catalog, target.table, target.configuration, policy))
