"""The program: its commands in groups, errors as one line and an exit code.

Each command imports its own heavy dependencies, so that `--help` is quick.

Exit codes: 0 done; 1 failed; 2 wrong usage, also of a filter, a partition or a policy; 3 outcome of the commit unknown;
4 unhealthy (`inspect --check`, `verify`, `repair`); 130 interrupted (Ctrl-C); 143 terminated (SIGTERM).
"""

from __future__ import annotations

import sys
from typing import Any

import click

from icesize import __version__
from icesize.cli import cleaning, configuring, doctor, inspecting, keys, maintain, restoring, rewriting, starting
from icesize.cli.interrupts import Observers, exit_code_of, terminated_like_interrupted, what_became_of
from icesize.cli.options import FAILED, UNKNOWN, USAGE, print_error
from icesize.errors import ArgumentError, CommitStateUnknown, IcesizeError, PolicyError, is_from_outside
from icesize.redaction import redacted
from icesize.telemetry import Telemetry

_SECTIONS: dict[str, tuple[click.Command, ...]] = {
    "Start": (starting.demo, doctor.doctor, configuring.config, starting.completion),
    "Inspect": (
        inspecting.scan, inspecting.inspect, inspecting.plan, inspecting.versions, inspecting.streams,
        inspecting.history, inspecting.report, inspecting.verify,
    ),
    "Rewrite files": (
        rewriting.compact, rewriting.cluster, maintain.maintain, rewriting.rewrite_deletes,
        rewriting.remove_dangling_deletes, rewriting.rewrite_manifests,
    ),
    "Keep one row per key": (keys.deduplicate, keys.rekey),
    "Go back and clean up": (
        restoring.restore, restoring.repair, cleaning.expire_snapshots, cleaning.remove_orphan_files,
    ),
}  # fmt: skip
"""The sections of the help, each with its commands."""


class _Group(click.Group):
    """Turns errors into one line on standard error and an exit code, and lists commands by section in the help."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        names = max(map(len, self.commands))
        for title, commands in _SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{one.name:<{names}}", one.get_short_help_str(100)) for one in commands])

    def invoke(self, ctx: click.Context) -> Any:
        # opentelemetry-instrument loads the SDK before the program
        ctx.obj = Observers(Telemetry() if "opentelemetry.sdk" in sys.modules else None)
        try:
            with terminated_like_interrupted():
                return super().invoke(ctx)
        except (click.exceptions.Exit, click.ClickException, click.Abort, BrokenPipeError):
            raise
        except KeyboardInterrupt as interrupt:
            print_error(f"interrupted: {what_became_of(ctx.obj.commits)}")
            ctx.exit(exit_code_of(interrupt))
        except CommitStateUnknown as error:
            print_error(str(error))
            if error.report is not None:
                print_error(f"done before that: {error.report}")
            ctx.exit(UNKNOWN)
        except IcesizeError as error:
            print_error(str(error))
            ctx.exit(USAGE if isinstance(error, (ArgumentError, PolicyError)) else FAILED)
        except Exception as error:
            from icesize.table.catalog.access_errors import shortened

            if not is_from_outside(error):
                raise
            # the body of a catalog's response can be a whole page: print its first line
            first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
            print_error(redacted(f"{type(error).__name__}: {shortened(first, 300)}"))
            ctx.exit(FAILED)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="%(prog)s %(version)s")
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    envvar="ICESIZE_LOG_FORMAT",
    help="Format of the log on standard error. json: one object a line, even without --verbose.",
)
def main(log_format: str) -> None:
    """Keep the files of Apache Iceberg tables well sized. TABLE is CATALOG.NAMESPACE.TABLE.

    Its catalog comes from PyIceberg's configuration (.pyiceberg.yaml, PYICEBERG_CATALOG__NAME__URI), from icesize.toml,
    or from --catalog-uri.
    """


for _commands in _SECTIONS.values():
    for _command in _commands:
        main.add_command(_command)
