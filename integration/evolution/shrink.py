"""Makes a failing program shorter: leaves steps out as long as what is left still fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from integration.evolution.program import Program


class Failing(Protocol):
    """What a run came to."""

    @property
    def failure(self) -> str | None: ...
    @property
    def told(self) -> Sequence[str]: ...


Result = TypeVar("Result", bound=Failing)


def shrunk(
    program: Program, outcome: Result, run: Callable[[Program], Result], has_time: Callable[[], bool]
) -> tuple[Program, Result]:
    """The shortest failing program that was found, and its outcome.

    First chunks are left out, then single steps and what happens in the middle of one, until nothing more can be. The
    failure may become another one on the way: it is as good.
    """
    # what comes after the failure was not run
    program = Program(program.steps[: len(outcome.told)])
    tried = {str(program)}
    again = True
    while again:
        again = False
        for candidate in _shorter(program):
            if str(candidate) in tried:
                continue
            if not has_time():
                return program, outcome
            tried.add(str(candidate))
            found = run(candidate)
            if found.failure:
                program, outcome, again = Program(candidate.steps[: len(found.told)]), found, True
                break
    return program, outcome


def _shorter(program: Program) -> Iterator[Program]:
    """Programs with less in them, those with the least first; the first step makes the table and stays."""
    first, steps = program.steps[:1], program.steps[1:]
    size = len(steps) // 2
    while size:
        # from the end: a program stops at its failure, so what comes after it goes at once
        for start in range(len(steps) - size, -1, -size):
            yield Program((*first, *steps[:start], *steps[start + size :]))
        size //= 2
    for i, step in enumerate(steps):
        if step.middle is not None:
            yield Program((*first, *steps[:i], replace(step, point="", middle=None), *steps[i + 1 :]))
