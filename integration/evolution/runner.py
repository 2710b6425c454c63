"""Runs one program on a fresh pair and tells what came of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from integration.evolution import checks, injected_damage  # noqa: F401 - registers its statements
from integration.evolution.engine import Engine
from integration.evolution.icesize_operations import OPERATIONS
from integration.evolution.pair import Broken, Over, Pair, brief
from integration.evolution.program import SPARK, Program, Step
from integration.evolution.statements import STATEMENTS
from integration.evolution.values import Draw, Skip

DEAR_EVERY = 10
_numbers = itertools.count()


@dataclass(frozen=True)
class Outcome:
    """What each step did (`told`), and what is wrong after the last of them (None: nothing)."""

    told: tuple[str, ...]
    failure: str | None = None
    skipped: int = 0
    refused: tuple[str, ...] = field(default=())


def run(engine: Engine, program: Program, dear_at: int = 0, is_cheap: bool = False) -> Outcome:
    """Run a program; the dear checks come at its end and at each tenth step, counted from `dear_at`.

    A cheap run leaves out what runs Spark jobs: statements, operations and readers.
    """
    pair = Pair(engine, next(_numbers))
    told: list[str] = []
    skipped = 0
    try:
        for number, step in enumerate(program.steps):
            told.append(f"{number:3} {step}")
            text = "skipped: cheap" if is_cheap and step.kind in SPARK else _applied(pair, step)
            told[-1] += f"\n      {text}"
            pair.log.append(text)
            if text.startswith("skipped"):
                skipped += 1
                if number == 0:
                    return Outcome(tuple(told), None, skipped)
            else:
                checks.after_step(pair, number)
            pair.mark()
            if (dear_at + number) % DEAR_EVERY == DEAR_EVERY - 1:
                checks.now_and_then(pair, is_cheap)
        checks.now_and_then(pair, is_cheap)
        checks.at_the_end(pair)
    except Broken as broken:
        return Outcome(tuple(told), str(broken), skipped)
    except Over as over:
        return Outcome((*told, f"      over: {over}"), None, skipped)
    except Exception as error:
        return Outcome(tuple(told), f"a check failed: {brief(error)}", skipped)
    finally:
        _dropped(pair)
    return Outcome(tuple(told), None, skipped, tuple(text for text in pair.log if "-> refused" in text))


def _dropped(pair: Pair) -> None:
    try:
        pair.drop()
    except Exception:
        pair.engine.spark.sparkContext._jvm.System.gc()


def _applied(pair: Pair, step: Step) -> str:
    """What a step did, as text."""
    try:
        if step.kind in STATEMENTS:
            return STATEMENTS[step.kind](pair, Draw(step.seed))
        middle: list[str] = []
        statement = None if step.middle is None else partial(_note, pair, step.middle, middle)
        text = OPERATIONS[step.kind](pair, Draw(step.seed), step.point, statement)
        between = "".join(f"\n      at {step.point}: {line}" for line in middle)
        return text + between
    except Skip as skip:
        return f"skipped: {skip}"
    except (Broken, Over):
        raise
    except Exception as error:
        raise Broken(f"{step.kind}: {brief(error)}") from error


def _note(pair: Pair, step: Step, told: list[str]) -> None:
    apply: Callable[[], str] = partial(STATEMENTS[step.kind], pair, Draw(step.seed))
    try:
        told.append(f"{step}: {apply()}")
    except Skip as skip:
        told.append(f"{step}: skipped: {skip}")
