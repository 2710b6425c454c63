"""`python -m integration.versions.oldest [--python PYTHON] [--cache FOLDER]`: tests with the oldest versions allowed.

The lowest versions are those of `pyproject.toml`. Three more cases have later versions of pyarrow, which have faults of
their own. The tests need no Spark. uv chooses the versions and makes the environments. Exits 1 if a test failed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
UV = [sys.executable, "-m", "uv", "--quiet"]
ARROWS = ("", "pyarrow==22.*", "pyarrow==23.*", "pyarrow==25.*")
"""What uv is asked for beside the lowest versions: nothing, or a later pyarrow."""
TOOLS = ("pytest>=8", "hypothesis>=6.100", "duckdb>=1.1", "markdown-it-py>=3", "polars>=1", "psutil>=5.9", "pyyaml>=6")
TESTS = (
    *(f"tests/parquet/{room}" for room in ("deletes", "files", "keys", "ordering", "reading")),
    "tests/parquet/rewriting/test_conservation.py",
    "tests/cli/test_finish.py",
)
NEWER = (
    # pages by rows, bloom filters, list views, whether a bound is exact
    "test_pages_obey_the_row_limit", "test_bloom_filters_are_written_where_the_table_asks",
    "test_lists_of_all_kinds_keep_the_values_below_them", "test_only_exact_bounds_are_compared",
    # right numbers of NULLs in the footers that the tests compare with, or copy
    "test_arrow_rows_are_counted_as_footers_count_them", "test_all_entries_are_copied",
    "test_levels_are_counted_where_footers_differ", "test_levels_of_rows_that_stay_are_counted",
    "test_a_decoded_file_beside_copied_pages_has_its_own_bounds",
    "test_a_field_that_the_projection_overlooks_is_counted",
    # another message of pyroaring
    "test_what_does_not_fit",
)  # fmt: skip
"""Tests of what the oldest versions lack."""


def tried(python: str, arrow: str, cache: Path) -> bool:
    """Make the environment of one case, and run the tests in it; whether all passed."""
    folder = cache / (arrow or "lowest").strip(".*")
    programs, chosen = folder / "venv" / "bin" / "python", folder / "chosen.txt"
    _uv("venv", "--clear", "--python", python, folder / "venv")
    lowest = ["--resolution", "lowest-direct", "--requirement", "pyproject.toml", *filter(None, [arrow])]
    _uv("pip", "install", "--python", programs, *lowest)
    chosen.write_text(_uv("pip", "freeze", "--python", programs))
    _uv("pip", "install", "--python", programs, "--constraint", chosen, *TOOLS)
    print(chosen.read_text(), flush=True)
    tests = ["-m", "not slow and not engine and not smoke", "-k", f"not ({' or '.join(NEWER)})", *TESTS]
    return subprocess.run([programs, "-m", "pytest", "-p", "no:cacheprovider", *tests], cwd=ROOT).returncode == 0


def _uv(*arguments: str | Path) -> str:
    return subprocess.run([*UV, *arguments], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def main(argv: list[str]) -> int:
    """Try all cases one after the other."""
    parser = argparse.ArgumentParser(prog="python -m integration.versions.oldest", description=__doc__)
    parser.add_argument("arrows", nargs="*", default=list(ARROWS), metavar="PYARROW", help="e.g. pyarrow==22.*")
    parser.add_argument("--python", default="3.10", help="a version or a path")
    parser.add_argument("--cache", type=Path, default=ROOT / ".cache" / "oldest", help="the environments")
    args = parser.parse_args(argv)
    if subprocess.run([*UV, "python", "find", args.python], stdout=subprocess.DEVNULL).returncode:
        print(f"Python {args.python} cannot be found: {sys.executable} is used", file=sys.stderr)
        args.python = sys.executable
    results = {arrow or "lowest": tried(args.python, arrow, args.cache.absolute()) for arrow in args.arrows}
    for name, passed in results.items():
        print(f"{name:14} {'passed' if passed else 'failed'}")
    return 0 if all(results.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
