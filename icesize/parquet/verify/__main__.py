"""`python -m icesize.parquet.verify FILE...` compares the metadata of Parquet files with their contents."""

from __future__ import annotations

import click

from icesize.parquet.format.sources import LocalSource
from icesize.parquet.verify.file import verify_file


@click.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False))
@click.pass_context
def main(context: click.Context, files: tuple[str, ...]) -> None:
    """Compare the metadata of Parquet files with their contents.

    Exit codes: 0 no problems, 1 problems found, 2 wrong usage.
    """
    failed = False
    for path in files:
        found = verify_file(LocalSource(path), path)
        problems = (*found.problems, *found.nan_bounds)
        failed = failed or bool(problems)
        for problem in problems:
            click.echo(problem)
        if not problems:
            click.echo(f"{path}: fine, {found.rows} rows in {found.row_groups} row groups, {found.pages} pages")
        for column in found.unchecked:
            click.echo(f"{path}: column {column!r}: not checked: its bounds, they have no known order", err=True)
    context.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
