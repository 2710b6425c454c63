"""`python -m integration.owners`: run commands on random catalogs, and name the seeds that lose a file."""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from pathlib import Path

from integration.owners.run import check


def main() -> int:
    """Run the catalogs; the exit code is 1 if one lost something."""
    parser = argparse.ArgumentParser(prog="python -m integration.owners", description=__doc__)
    parser.add_argument("--catalogs", type=int, default=100, help="how many catalogs")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first one")
    parser.add_argument("--replay", type=int, nargs="+", help="only the catalogs of these seeds, with what happened")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    seeds = options.replay or range(options.seed, options.seed + options.catalogs)
    failed, began = list[int](), time.monotonic()
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            try:
                told = check(seed, Path(folder))
                if options.replay:
                    print("\n".join(told))
            except Exception as error:
                failed.append(seed)
                notes = "\n".join(getattr(error, "__notes__", ()))
                print(f"FAILED, seed {seed}: {type(error).__name__}: {error}\n{notes}")
                sys.stdout.flush()
                if options.replay:
                    raise
    minutes = (time.monotonic() - began) / 60
    print(f"{len(seeds)} catalogs in {minutes:.1f} min, {len(failed)} lost something {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
