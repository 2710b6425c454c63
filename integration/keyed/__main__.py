"""`python -m integration.keyed`: run random histories of tables with upserts, and name the seeds that fail."""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from integration.keyed.covering import case_of, pairs
from integration.keyed.history import run
from integration.keyed.readers import Readers, spark_session

READ_EVERY = 50
"""Other readers look at the table at the end of one history in so many."""


def main() -> int:
    """Run the histories; the exit code is 1 if one failed."""
    options = _options()
    done = {json.loads(line)["seed"] for line in _lines(options.resume)}
    seeds = options.replay or [s for s in range(options.seed, options.seed + options.histories) if s not in done]
    failed, reached, began, count = list[int](), Counter[str](), time.monotonic(), 0
    with ExitStack() as stack:
        readers = Readers(stack.enter_context(spark_session()) if options.spark else None)
        for seed in seeds:
            if options.seconds and time.monotonic() - began > options.seconds:
                break
            then, failure, steps = time.process_time(), None, list[str]()
            try:
                is_read = seed % READ_EVERY == 0 or bool(options.replay)
                case = case_of(seed) if options.cover else None
                history = run(seed, readers.look if is_read else lambda history: None, case)
                reached += history.reached
                steps = history.steps
                if options.replay:
                    print("\n".join(history.told))
            except Exception as error:
                failure = f"{type(error).__name__}: {error}"
                failed.append(seed)
                _tell(seed, failure, error)
            count += 1
            if options.resume:
                _note(options.resume, seed, time.process_time() - then, failure, steps)
    if options.cover and options.resume:
        (rarest, times), *_ = reversed(
            pairs(json.loads(s).get("steps", ()) for s in _lines(options.resume)).most_common()
        )
        print(f"each pair of steps at least {times} times, the rarest is {rarest[0]} before {rarest[1]}")
    minutes = (time.monotonic() - began) / 60
    print(f"{count} histories in {minutes:.1f} min, {len(failed)} failed {failed}, passed {dict(reached)}")
    return 1 if failed else 0


def _tell(seed: int, failure: str, error: Exception) -> None:
    told, where = "\n".join(getattr(error, "__notes__", ())), "".join(traceback.format_tb(error.__traceback__))
    print(f"FAILED, seed {seed}: {failure}\n{told}\n{where}again: python -m integration.keyed --replay {seed}\n")
    sys.stdout.flush()


def _note(resume: Path, seed: int, seconds: float, failure: str | None, steps: list[str]) -> None:
    line = {"seed": seed, "seconds": round(seconds, 2), "steps": steps} | ({"failure": failure} if failure else {})
    with resume.open("a") as stream:
        stream.write(json.dumps(line) + "\n")


def _lines(resume: Path | None) -> list[str]:
    return resume.read_text().splitlines() if resume and resume.exists() else []


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m integration.keyed", description=__doc__)
    parser.add_argument("--histories", type=int, default=100, help="how many histories")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first one")
    parser.add_argument(
        "--cover",
        action="store_true",
        help="histories of the list of all pairs of steps; seeds are their numbers",
    )
    parser.add_argument("--seconds", type=float, help="how long to begin new ones")
    parser.add_argument("--replay", type=int, nargs="+", help="only the histories of these seeds, with what they did")
    parser.add_argument("--resume", type=Path, help="a file of JSON lines: seeds in it are done, others are added")
    parser.add_argument(
        "--spark", action="store_true", help=f"let Spark read, beside DuckDB, every {READ_EVERY}th table"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
