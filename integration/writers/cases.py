"""A seed -> the input files of one merge, its deletes and its path."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from integration.writers.pool import MANY_ROWS, Made

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


_COPYING = ("pages", "whole", "natural")
_TURNS = (*PATHS, "pages", "whole")


def case_of(seed: int, files: Sequence[Made]) -> Case:
    """Return the case of a seed: paths and deletes in turn, and writers equally often, however many files they have.

    Of most files whose bytes may be copied, those are merged that can be.
    """
    chance = random.Random(seed)
    path, deletes = _TURNS[seed % len(_TURNS)], DELETES[seed // len(_TURNS) % len(DELETES)]
    files = _of_size(path, files, chance)
    forms = Counter(file.form for file in files if file.ids == "everywhere")
    copied = [file for file in files if forms[file.form] > 1] if path in _COPYING and chance.random() < 0.8 else []
    own = _of_one_writer(copied or files, chance)
    one = chance.choice(own)
    others = own if len(own) > 1 and chance.random() < 0.3 else files
    if copied:
        others = [file for file in own if file.form == one.form]
    rest = [file for file in others if file.name != one.name]
    if chance.random() < 0.6:  # those that can be copied together
        rest = [f for f in rest if f.columns == one.columns and f.ids == one.ids] or rest
    count = 1 if one.rows >= MANY_ROWS else chance.choice((1, 1, 1, 2, 3))
    return Case(seed, (one, *chance.sample(rest, min(len(rest), count))), path, deletes)


def _of_size(path: str, files: Sequence[Made], chance: random.Random) -> list[Made]:
    """Large files have one path, which takes long, the others all."""
    large = [file for file in files if file.rows >= MANY_ROWS]
    if path == "natural" and large and chance.random() < 0.3:
        return large
    return [file for file in files if file.rows < MANY_ROWS]


def _of_one_writer(files: Sequence[Made], chance: random.Random) -> list[Made]:
    writer = chance.choice(sorted({file.writer for file in files}))
    return [file for file in files if file.writer == writer]
