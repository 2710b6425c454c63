"""Commands that need no table: `demo` and `completion`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from icesize.cli.options import FAILED, command
from icesize.cli.process import collect_from_now_on
from icesize.console import console_on


@command(
    "demo", "A table that goes bad, and one that does not", "icesize demo", "icesize demo --no-spark --path /tmp/demo"
)
@click.option("--path", metavar="DIR", help="Where catalog, tables and logs go; default: a new temporary directory.")
@click.option("--batches", type=click.IntRange(1, 192), default=12, show_default=True, help="Micro-batches of events.")
@click.option("--rows", type=click.IntRange(1), default=20_000, show_default=True, help="Events in each batch.")
@click.option("--no-spark", is_flag=True, help="PyIceberg fills the table and icesize compacts it; needs no Java.")
def demo(path: str | None, batches: int, rows: int, no_spark: bool) -> None:
    """Stream events with late rows into two local tables, plainly and with icesize, and compare them."""
    from icesize.demo.run import run_demo

    collect_from_now_on()
    if not run_demo(console_on(), path, batches, rows, with_spark=not no_spark):
        raise click.exceptions.Exit(FAILED)


@command(
    "completion",
    "Complete commands in bash, zsh or fish",
    'eval "$(icesize completion bash)"',
    "icesize completion fish > ~/.config/fish/completions/icesize.fish",
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print what makes SHELL complete commands, options and policy keys of icesize."""
    kind = get_completion_class(shell)
    if kind is not None:
        click.echo(kind(ctx.find_root().command, {}, "icesize", "_ICESIZE_COMPLETE").source())
