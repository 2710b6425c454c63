"""A list of histories in which each step of other writers comes before each other one, and after it.

The steps are divided into four groups. A history has the steps of two groups in some order, and the next one has them
in the reverse order. So twelve histories have all ordered pairs. Each of them is made in four kinds of tables: of
format v2 and v3, with and without a memory of deletes.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from integration.keyed.writers import OF_FILES, OF_METADATA

STEPS = (*OF_FILES, *OF_METADATA)
_KINDS = tuple(itertools.product((2, 3), (False, True)))
_PAIRS = tuple(itertools.combinations(range(4), 2))


@dataclass(frozen=True)
class Case:
    """One history of the list: the format version, whether deletes are remembered, and the steps in order."""

    version: int
    remembers: bool
    steps: tuple[str, ...]


def case_of(number: int) -> Case:
    """The history with this number in the list, which has no end."""
    index, kind = divmod(number, len(_KINDS))
    turn, pair = divmod(index // 2, len(_PAIRS))
    shuffled = list(STEPS)
    random.Random(turn).shuffle(shuffled)
    steps = [step for at, step in enumerate(shuffled) if at % 4 in _PAIRS[pair]]
    version, remembers = _KINDS[kind]
    steps = [step for step in steps if step != "upgrade" or version == 2]
    return Case(version, remembers, tuple(reversed(steps) if index % 2 else steps))


def pairs(histories: Iterable[Sequence[str]]) -> Counter[tuple[str, str]]:
    """How often each step came before each other one, in histories of these steps; 0 for pairs that are missing."""
    found = Counter(dict.fromkeys(itertools.permutations(STEPS, 2), 0))
    for steps in histories:
        found.update({pair for pair in itertools.combinations(steps, 2) if pair[0] != pair[1]})
    return found
