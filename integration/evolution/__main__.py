"""`python -m integration.evolution`: run programs, shorten those that fail, and say how to run them again."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from integration.evolution.engine import Engine
from integration.evolution.program import Program, generate
from integration.evolution.runner import Outcome, run
from integration.evolution.shrink import shrunk


def main() -> int:
    options = _options()
    folder = Path(tempfile.mkdtemp(prefix="evolution-", dir=options.folder))
    engine = Engine.start(folder)
    try:
        return _many(engine, options)
    finally:
        engine.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m integration.evolution", description=__doc__)
    parser.add_argument("--seconds", type=float, help="how long to begin new programs")
    parser.add_argument("--programs", type=int, help="how many programs")
    parser.add_argument("--seed", "--first-seed", type=int, default=0, dest="seed", help="seed of the first program")
    parser.add_argument("--replay", type=int, nargs="+", help="only the programs of these seeds")
    parser.add_argument("--program", action="append", help="only this program, as a failure prints it")
    parser.add_argument("--resume", type=Path, help="a file of JSON lines: seeds in it are done, others are added")
    parser.add_argument("--keep-going", action="store_true", help="go on after a failure")
    parser.add_argument("--shrink-seconds", type=float, default=120, help="how long a failing program is shortened")
    parser.add_argument("--folder", help="where the tables lie while they are needed")
    parser.add_argument(
        "--cheap", action="store_true", help="leave out what runs Spark jobs: ten times as many programs"
    )
    parser.add_argument("--deletes", action="store_true", help="only programs about delete files, not every other one")
    parser.add_argument("--verbose", action="store_true", help="print every program")
    return parser.parse_args()


def _programs(options: argparse.Namespace) -> Iterator[tuple[int, Program]]:
    for text in options.program or ():
        yield 0, Program.parse(text)
    if not options.program:
        yield from ((seed, generate(seed, options.deletes)) for seed in _seeds(options))


def _seeds(options: argparse.Namespace) -> Iterator[int]:
    if options.replay is not None:
        yield from options.replay
        return
    done = _done(options.resume)
    end = time.monotonic() + (options.seconds or float("inf"))
    last = options.seed + options.programs if options.programs else sys.maxsize
    for seed in range(options.seed, last):
        if time.monotonic() >= end:
            return
        if seed not in done:
            yield seed


def _done(resume: Path | None) -> set[int]:
    if resume is None or not resume.exists():
        return set()
    return {json.loads(line)["seed"] for line in resume.read_text().splitlines()}


def _many(engine: Engine, options: argparse.Namespace) -> int:
    began, count, failures = time.monotonic(), 0, 0
    for seed, program in _programs(options):
        then = time.monotonic()
        outcome = run(engine, program, seed, options.cheap)
        count += 1
        failures += outcome.failure is not None
        seconds = time.monotonic() - then
        line = {"seed": seed, "steps": len(program.steps), "skipped": outcome.skipped, "seconds": round(seconds, 2)}
        line |= {"failure": outcome.failure} if outcome.failure else {}
        if options.resume:
            with options.resume.open("a") as progress:
                progress.write(json.dumps(line) + "\n")
        print(json.dumps(line), flush=True)
        if options.verbose or options.program or options.replay is not None:
            print("\n".join(outcome.told), flush=True)
        if outcome.failure:
            _tell(partial(run, engine, is_cheap=options.cheap), seed, program, outcome, options.shrink_seconds)
            if not options.keep_going and not options.program:
                break
    minutes = (time.monotonic() - began) / 60
    print(f"{count} programs in {minutes:.1f} min, {failures} failed")
    return 1 if failures else 0


def _tell(run_one: Callable[[Program], Outcome], seed: int, program: Program, outcome: Outcome, seconds: float) -> None:
    """The shortest program that still fails."""
    end = time.monotonic() + seconds
    shortest, outcome = shrunk(program, outcome, run_one, lambda: time.monotonic() < end)
    print(f"\nFAILED, seed {seed}: {outcome.failure}\nthe shortest program that fails ({len(shortest.steps)} steps):")
    print("\n".join(outcome.told))
    print(f"again: python -m integration.evolution --program '{shortest}'\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
