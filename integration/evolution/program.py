"""A random program: which statements and which operations of icesize follow each other, decided by a seed alone.

A step is a kind and a seed of its own, from which the statement takes everything else when it is applied, looking at
the table as it is then. So steps can be left out and the others still mean something: that is how a failing program
is made shorter. The same text always is the same program.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

USER_WEIGHTS: Mapping[str, int] = {
    "append": 30, "append-spark": 3, "replace-partitions": 3, "overwrite": 1, "delete": 4, "delete-positions": 8,
    "update": 3, "merge": 3, "delete-equal": 8, "upsert": 8, "rewrite-deletes": 1,
    "add-column": 4, "drop-column": 3, "rename-column": 3,
    "move-column": 2, "promote": 8, "make-optional": 2, "nested": 4, "drop-and-add": 3, "add-partition": 3,
    "drop-partition": 2, "swap-partition": 3, "order": 2, "property": 3, "upgrade": 2, "branch": 3, "branch-append": 3,
    "branch-delete": 2, "tag": 2, "drop-ref": 2, "rollback": 4, "set-current": 3, "stage": 2, "cherry-pick": 2,
    "fast-forward": 2, "replace-table": 2, "add-files": 1, "rewrite-data-files": 1, "rewrite-manifests": 1,
    "java-expire": 5,
}  # fmt: skip
ICESIZE_WEIGHTS: Mapping[str, int] = {
    "compact": 26, "compact-spark": 1, "sink": 8, "icesize-append": 2, "after-batch": 4, "cluster": 4, "maintain": 3,
    "few-deletes": 8, "restore": 6, "expire": 5, "manifests": 7, "orphans": 1, "icesize-upsert": 12,
    "icesize-merge": 1,
}  # fmt: skip
CONCURRENT_WEIGHTS: Mapping[str, int] = {
    "append": 6, "delete": 1, "delete-positions": 4, "delete-equal": 4, "upsert": 3, "rewrite-deletes": 1,
    "add-column": 2, "drop-column": 2, "rename-column": 2, "promote": 3, "drop-and-add": 2, "add-partition": 2,
    "swap-partition": 2,
    "replace-partitions": 2, "rollback": 4, "set-current": 6, "branch": 1, "fast-forward": 3, "replace-table": 5,
    "rewrite-manifests": 1, "java-expire": 3, "upgrade": 1, "rewrite-data-files": 1,
}  # fmt: skip
"""What others may do while icesize is at work."""
FOLLOWS: Mapping[str, Mapping[str, int]] = {
    "promote": {"append": 4, "compact": 6, "manifests": 3, "sink": 2},
    "restore": {"java-expire": 6, "compact": 2},
    "rollback": {"compact": 5, "append": 5},
    "set-current": {"compact": 3, "append": 2},
    "branch": {"branch-append": 6, "branch-delete": 9, "append": 2},
    "branch-append": {"fast-forward": 5, "set-current": 3},
    "branch-delete": {"append": 4, "compact": 6},
    "stage": {"cherry-pick": 8},
    "delete-equal": {
        "compact": 4,
        "few-deletes": 8,
        "rollback": 4,
        "drop-column": 2,
        "promote": 2,
        "swap-partition": 2,
    },
    "delete-positions": {"compact": 3, "few-deletes": 9, "rollback": 6},
    "upsert": {"upsert": 6, "compact": 4, "maintain": 3, "few-deletes": 9, "restore": 3},
    "icesize-upsert": {"icesize-upsert": 6, "compact": 3, "few-deletes": 3, "rollback": 2, "restore": 2},
    "swap-partition": {"append": 2, "compact": 2},
    "add-partition": {"append": 2, "compact": 2},
}
"""How much more often a kind comes soon after another: what one leaves behind, the other has to take up."""
SCENES: Sequence[tuple[str, ...]] = (
    (),
    ("append", "append", "promote", "append", "compact"),
    ("delete-positions", "rollback", "append", "compact>set-current"),
    ("branch", "branch-delete", "append", "compact>set-current"),
    ("replace-partitions", "restore", "java-expire"),
    ("sink>replace-table",),
    ("drop-and-add", "append", "sink"),
    ("swap-partition", "append", "compact", "manifests"),
)
"""What a program is mostly about: kinds that meet in this order, others between them, and come more often anyway."""
DELETE_SCENES: Sequence[tuple[str, ...]] = (
    ("upsert", "upsert", "compact>upsert", "compact"),
    ("append", "delete-equal", "promote", "append", "compact"),
    ("delete-equal", "drop-column", "compact"),
    ("add-column", "delete-equal", "rename-column", "compact"),
    ("drop-and-add", "delete-equal", "compact"),
    ("delete-equal", "swap-partition", "upsert", "compact", "delete-equal", "compact"),
    ("delete-positions", "compact>delete-positions", "delete-positions", "restore", "java-expire"),
    ("upsert", "append", "restore", "upsert", "compact"),
    ("branch", "branch-delete", "delete-equal", "compact>fast-forward", "set-current"),
    ("update", "merge", "compact", "rewrite-deletes", "maintain"),
    ("upsert", "tag", "compact", "expire", "maintain"),
    ("delete-equal", "sink>delete-equal", "cluster>upsert"),
    ("delete-equal", "delete-equal", "few-deletes", "upsert", "few-deletes>delete-equal", "compact"),
    ("delete-equal", "delete-positions", "few-deletes>rewrite-data-files", "few-deletes", "maintain"),
    ("upsert", "upsert", "few-deletes>upsert", "promote", "few-deletes", "restore"),
    ("icesize-upsert", "icesize-upsert>delete-positions", "compact", "icesize-upsert>upsert"),
    ("append", "icesize-upsert>append", "promote", "icesize-upsert>swap-partition", "icesize-upsert", "few-deletes"),
    ("icesize-upsert", "delete-equal", "icesize-upsert", "rollback", "icesize-upsert>set-current", "expire"),
    ("icesize-merge", "icesize-merge>delete-positions", "delete-equal", "icesize-merge>upsert"),
)
"""The same of programs that are about delete files."""
_DELETES = ("delete-positions", "delete-equal", "upsert")
SPARK = frozenset(
    (
        "append-spark", "overwrite", "delete", "update", "merge", "rewrite-data-files",
        "rewrite-manifests", "add-files", "compact-spark", "sink", "icesize-append", "icesize-merge",
    )
)  # fmt: skip
"""Kinds that run Spark jobs, which take ten times as long as the others."""
_ROWS = ("batch-started", "statistics", "planned", "files-written", "before-swap", "after-swap")
_FILES = ("planned", "writing", "files-written", "before-swap", "after-swap")
POINTS: Mapping[str, tuple[str, ...]] = {
    "compact": _FILES, "compact-spark": ("planned", "files-written", "before-swap", "after-swap"),
    "after-batch": _FILES, "cluster": _FILES, "maintain": (*_FILES, "expiry-decided", "before-delete"), "sink": _ROWS,
    "icesize-append": _ROWS, "expire": ("expiry-decided", "before-delete"),
    "icesize-upsert": _FILES, "icesize-merge": _FILES,
    "few-deletes": _FILES, "manifests": ("before-swap", "after-swap"),
    "restore": ("before-swap", "after-swap"),
}  # fmt: skip


@dataclass(frozen=True)
class Step:
    """One statement, or one operation of icesize; `middle` is a statement fired once at `point` of the operation."""

    kind: str
    seed: int
    point: str = ""
    middle: Step | None = None

    def __str__(self) -> str:
        head = f"{self.kind}:{self.seed}"
        return f"{head}@{self.point}>{self.middle}" if self.middle else head

    @classmethod
    def parse(cls, text: str) -> Step:
        """The step that prints so."""
        head, _, rest = text.partition("@")
        kind, _, seed = head.partition(":")
        if not rest:
            return cls(kind, int(seed))
        point, _, middle = rest.partition(">")
        return cls(kind, int(seed), point, cls.parse(middle))


@dataclass(frozen=True)
class Program:
    """Steps on one pair of tables; the first one creates it."""

    steps: tuple[Step, ...]

    def __str__(self) -> str:
        return " ".join(map(str, self.steps))

    @classmethod
    def parse(cls, text: str) -> Program:
        """The program that prints so."""
        return cls(tuple(map(Step.parse, text.split())))


def generate(seed: int, deletes: bool = False) -> Program:
    """The program of a seed. Each prefers other kinds of statements (swarm testing): together they meet more often.

    Half of them are about delete files, with `deletes` all: they begin with some, on format version 2.
    """
    chance = random.Random(seed)
    deletes = deletes or chance.random() < 0.5
    taste = {kind: chance.choice((0.1, 0.5, 1, 1, 2, 4)) for kind in (*USER_WEIGHTS, *ICESIZE_WEIGHTS)}
    scene = list(chance.choice(DELETE_SCENES if deletes else SCENES))
    theme = {kind for part in scene for kind in part.split(">")}
    taste |= dict.fromkeys(taste.keys() & theme, 4.0)
    middle = {kind: weight * (4 if kind in theme else 1) for kind, weight in CONCURRENT_WEIGHTS.items()}
    interrupts = chance.choice((0.1, 0.5, 0.8))
    begin = ["create", *["append"] * chance.randint(1, 3), *(("upgrade", chance.choice(_DELETES)) if deletes else ())]
    steps = [Step(kind, _seed(chance)) for kind in begin]
    warm = dict.fromkeys((*USER_WEIGHTS, *ICESIZE_WEIGHTS), 1.0)
    for _ in range(chance.randint(5, 12)):
        kinds = USER_WEIGHTS if chance.random() < 0.68 else ICESIZE_WEIGHTS
        if scene and chance.random() < 0.6:
            kind, _, between = scene.pop(0).partition(">")
            step = _step(chance, {kind: 1}, {between: 1} if between else middle, 1 if between else interrupts / 2)
        else:
            step = _step(chance, {k: n * taste[k] * warm[k] for k, n in kinds.items()}, middle, interrupts)
        steps.append(step)
        warm = {kind: 1 + (heat - 1) / 2 for kind, heat in warm.items()}
        for kind, heat in FOLLOWS.get(step.kind, {}).items():
            warm[kind] += heat
    return Program(tuple(steps))


def _step(chance: random.Random, kinds: Mapping[str, float], middle: Mapping[str, float], interrupts: float) -> Step:
    kind, seed = _chosen(chance, kinds), _seed(chance)
    if kind not in POINTS or chance.random() > interrupts:
        return Step(kind, seed)
    return Step(kind, seed, chance.choice(POINTS[kind]), Step(_chosen(chance, middle), _seed(chance)))


def _chosen(chance: random.Random, weights: Mapping[str, float]) -> str:
    return chance.choices(list(weights), list(weights.values()))[0]


def _seed(chance: random.Random) -> int:
    return chance.randrange(10_000)
