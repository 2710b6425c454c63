"""A seed -> the input files of one merge, its deletes and its path."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from integration.writers.pool import Made

PATHS = ("decode", "pages", "whole", "natural", "absorb", "cluster", "maintain")
DELETES = ("none", "position", "equality", "both")


@dataclass(frozen=True)
class Case:
    """One merge."""

    seed: int
    files: tuple[Made, ...]
    path: str
    deletes: str

    def __str__(self) -> str:
        names = " + ".join(
            f"{f.writer}/{f.encoding}/{f.codec}/v{f.pages[0]}/ids {f.ids} ({f.name})" for f in self.files
        )
        return f"seed {self.seed}: {self.path}, {self.deletes} deletes, {names}"


def case_of(seed: int, files: Sequence[Made]) -> Case:
    """Return the case of a seed: paths and deletes in turn, and writers equally often, however many files they have."""
    chance = random.Random(seed)
    path, deletes = PATHS[seed % len(PATHS)], DELETES[seed // len(PATHS) % len(DELETES)]
    writers = sorted({file.writer for file in files})
    first = chance.choice(writers)
    own = [file for file in files if file.writer == first]
    one = chance.choice(own)
    others = own if len(own) > 1 and chance.random() < 0.3 else files
    rest = [file for file in others if file.name != one.name]
    if chance.random() < 0.6:  # those that can be copied together
        rest = [f for f in rest if f.columns == one.columns and f.ids == one.ids] or rest
    return Case(seed, (one, *chance.sample(rest, min(len(rest), chance.choice((1, 1, 1, 2, 3))))), path, deletes)
