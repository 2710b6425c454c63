"""`python -m integration.foreign_metadata`: commands on tables of other writers' metadata, and the seeds that fail."""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from random import Random

from integration.foreign_metadata.commands import prepare, run
from tests.support.tables import sqlite_catalog


def main() -> int:
    """Run as the options say."""
    parser = argparse.ArgumentParser(prog="python -m integration.foreign_metadata", description=__doc__)
    parser.add_argument("--tables", type=int, default=100, help="number of tables")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first table")
    parser.add_argument("--replay", type=int, nargs="+", help="only the tables of these seeds")
    options = parser.parse_args()
    logging.getLogger("icesize").setLevel(logging.CRITICAL)
    writers, failed = Counter[str](), list[int]()
    for seed in options.replay or range(options.seed, options.seed + options.tables):
        writer, failure = one(seed)
        writers[writer] += 1
        if failure is not None:
            failed.append(seed)
            print(f"FAILED {seed} ({writer}): {failure}\nagain: --replay {seed}", flush=True)
    print(f"{sum(writers.values())} tables, {len(failed)} failed: {dict(writers)}")
    return 1 if failed else 0


def one(seed: int) -> tuple[str, str | None]:
    """Return the writer of a table, and what is wrong with it."""
    folder = Path(tempfile.mkdtemp(prefix="foreign-"))
    catalog = sqlite_catalog(folder)
    try:
        rng = Random(seed)
        made, writer = prepare(catalog, "db.t", rng)
        return writer, run(catalog, "db.t", made, rng)
    finally:
        catalog.close()
        shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
