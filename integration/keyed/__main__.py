"""`python -m integration.keyed`: run random histories of tables with upserts, and name the seeds that fail."""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

from integration.keyed import history


def main() -> int:
    """Run the histories; the exit code is 1 if one failed."""
    options = _options()
    done = {json.loads(line)["seed"] for line in _lines(options.resume)}
    seeds = [seed for seed in range(options.seed, options.seed + options.histories) if seed not in done]
    failed, reached, began = list[int](), Counter[str](), time.monotonic()
    for seed in options.replay or seeds:
        if options.seconds and time.monotonic() - began > options.seconds:
            break
        then, failure = time.monotonic(), None
        try:
            one = history.run(seed)
            reached += one.reached
            if options.replay:
                print("\n".join(one.told))
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
            failed.append(seed)
            where = "".join(
                traceback.format_tb(error.__traceback__)[-3:]
                if options.replay is None
                else traceback.format_tb(error.__traceback__)
            )
            told = "\n".join(getattr(error, "__notes__", ()))
            print(
                f"FAILED, seed {seed}: {failure}\n{told}\n{where}again: python -m integration.keyed --replay {seed}\n"
            )
            sys.stdout.flush()
        line = {"seed": seed, "seconds": round(time.monotonic() - then, 2), **({"failure": failure} if failure else {})}
        if options.resume:
            with options.resume.open("a") as stream:
                stream.write(json.dumps(line) + "\n")
        done.add(seed)
    minutes = (time.monotonic() - began) / 60
    print(f"{len(done)} histories in {minutes:.1f} min, {len(failed)} failed {failed}, passed {dict(reached)}")
    return 1 if failed else 0


def _lines(resume: Path | None) -> list[str]:
    return resume.read_text().splitlines() if resume and resume.exists() else []


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m integration.keyed", description=__doc__)
    parser.add_argument("--histories", type=int, default=100, help="how many histories")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first one")
    parser.add_argument("--seconds", type=float, help="how long to begin new ones")
    parser.add_argument("--replay", type=int, nargs="+", help="only the histories of these seeds, with what they did")
    parser.add_argument("--resume", type=Path, help="a file of JSON lines: seeds in it are done, others are added")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
