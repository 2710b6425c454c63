"""Commands that need no table: `demo` and `completion`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from icesize.cli.options import FAILED, command
from icesize.cli.process import collect_from_now_on
from icesize.presentation.console import console_on


@command(
    "demo",
    "Show small files, their cost, and how icesize merges them",
    "icesize demo",
    "icesize demo --no-spark --path /tmp/demo",
    "icesize demo --upserts",
)
@click.option("--path", metavar="DIR", help="Directory for catalog, tables and logs; default: a new temporary one.")
@click.option(
    "--batches",
    type=click.IntRange(1, 192),
    default=48,
    show_default=True,
    help="Appends that fill the table with small files.",
)
@click.option("--rows", type=click.IntRange(1), default=5_000, show_default=True, help="Events in each batch.")
@click.option("--upserts", is_flag=True, help="Show upserts instead, without Spark.")
@click.option("--no-spark", is_flag=True, help="Stop before the stream; needs neither PySpark nor Java.")
def demo(path: str | None, batches: int, rows: int, upserts: bool, no_spark: bool) -> None:
    """Create small files, measure a query, compact the table and keep it compact while Spark streams into it.

    The demo uses one local directory and takes less than a minute. Without PySpark or Java, use --no-spark.
    """
    from icesize.demo.run import run_demo
    from icesize.demo.story import DemoOptions

    collect_from_now_on()
    if not run_demo(console_on(), DemoOptions(path, batches, rows, not no_spark, upserts)):
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
    """Print a completion script for SHELL: commands, options and policy keys."""
    kind = get_completion_class(shell)
    if kind is not None:
        click.echo(kind(ctx.find_root().command, {}, "icesize", "_ICESIZE_COMPLETE").source())
