"""A seed -> the input files of one merge, its deletes and its path."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from integration.writers.pool import MANY_ROWS, Made
from integration.writers.ways import COPYING, alike, why_not_copied

PATHS = ("decode", *COPYING, "natural", "absorb", "cluster", "maintain")
DELETES = ("none", "position", "equality", "both")


class Cell(NamedTuple):
    """What a case aims at: a way in which the bytes of a writer's file move."""

    writer: str
    encoding: str
    path: str
    deletes: str


@dataclass(frozen=True)
class Case:
    """One merge; its first file is the one that it aims at."""

    seed: int
    files: tuple[Made, ...]
    path: str
    deletes: str

    def __str__(self) -> str:
        names = " + ".join(
            f"{f.writer}/{f.encoding}/{f.codec}/v{f.pages[0]}/ids {f.ids} ({f.name})" for f in self.files
        )
        return f"seed {self.seed}: {self.path}, {self.deletes} deletes, {names}"


@dataclass(frozen=True)
class Cases:
    """The cases of some files: seeds that follow each other aim at all cells in turn, far from each other."""

    files: tuple[Made, ...]

    def __post_init__(self) -> None:
        if len({file.name for file in self.files}) < len(self.files):
            raise ValueError("Cannot merge files of which two have one name: they would be one path")

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """All cells that can be reached."""
        return tuple(cell for cell in self._all_cells() if self._is_possible(cell))

    @cached_property
    def never_copied(self) -> dict[tuple[str, str], str]:
        """The writers and encodings of which no bytes are copied, and why."""
        why = {kind: [why_not_copied(file) for file in files] for kind, files in self._kinds.items()}
        return {kind: ", ".join(sorted(set(filter(None, found)))) for kind, found in why.items() if all(found)}

    def aim(self, seed: int) -> Cell:
        """Return the cell at which the case of a seed aims."""
        count = len(self._aims)
        step = next(n for n in range(int(count * 0.618) or 1, 2 * count + 2) if math.gcd(n, count) == 1)
        return self._aims[seed * step % count]

    def of(self, seed: int) -> Case:
        """Return the case of a seed, which is the same each time."""
        chance, cell = random.Random(seed), self.aim(seed)
        copied = cell.path in COPYING
        files = self._copied if copied else self._kinds
        one = chance.choice(_of_size(files[cell.writer, cell.encoding], cell.path, chance))
        others = [f for f in self.files if f.name != one.name and (f.rows < MANY_ROWS or one.rows >= MANY_ROWS)]
        count = 1 if one.rows >= MANY_ROWS else chance.choice((1, 5, 9))
        if one.rows >= MANY_ROWS:
            others = [f for f in others if f.form == one.form] or others
        elif copied and chance.random() < 0.9:
            near = [f for kind in self._copied.values() for f in kind if f.name != one.name]
            others = [f for f in near if alike(f, cell.path) == alike(one, cell.path)] or others
        elif chance.random() < 0.8:  # files with some ids are often refused, and all with them
            others = [f for f in others if f.ids != "partly"]
        return Case(seed, (one, *_of_many_kinds(others, count, chance)), cell.path, cell.deletes)

    @cached_property
    def _aims(self) -> tuple[Cell, ...]:
        """The cells, copies three times: fewer files can be copied together, and not all of them are."""
        return tuple(cell for cell in self.cells for _ in range(3 if cell.path in COPYING else 1))

    @cached_property
    def _kinds(self) -> dict[tuple[str, str], list[Made]]:
        found = defaultdict[tuple[str, str], list[Made]](list)
        for file in self.files:
            found[file.writer, file.encoding].append(file)
        return dict(sorted(found.items()))

    @cached_property
    def _copied(self) -> dict[tuple[str, str], list[Made]]:
        """The files of which bytes can be copied."""
        found = {kind: [file for file in files if not why_not_copied(file)] for kind, files in self._kinds.items()}
        return {kind: files for kind, files in found.items() if files}

    def _all_cells(self) -> Iterator[Cell]:
        for writer, encoding in self._kinds:
            yield from (Cell(writer, encoding, path, deletes) for path in PATHS for deletes in DELETES)

    def _is_possible(self, cell: Cell) -> bool:
        return cell.path not in COPYING or (cell.writer, cell.encoding) in self._copied


def _of_size(files: Sequence[Made], path: str, chance: random.Random) -> Sequence[Made]:
    """Large files have one path, which takes long, the others all."""
    large = [file for file in files if file.rows >= MANY_ROWS]
    small = [file for file in files if file.rows < MANY_ROWS]
    return large if large and (not small or (path == "natural" and chance.random() < 0.1)) else small


def _of_many_kinds(files: Sequence[Made], count: int, chance: random.Random) -> list[Made]:
    """Files of other writers and encodings each, as far as there are such."""
    kinds = defaultdict[tuple[str, str], list[Made]](list)
    for file in files:
        kinds[file.writer, file.encoding].append(file)
    return [chance.choice(kinds[kind]) for kind in chance.sample(sorted(kinds), min(count, len(kinds)))]
