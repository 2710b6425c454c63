"""What a routing comes to: loads of tasks, files, and the fewest files that any routing needs."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import TypeVar

from icesize.planning.file_sizes import expected_files
from icesize.planning.routing.router import Routing, share_files

Key = TypeVar("Key", bound=Hashable)


def total_files(routing: Routing[Key]) -> int:
    """Files of all partitions."""
    return sum(routing.files.values())


def loads(routing: Routing[Key], weights_bytes: Mapping[Key, float], target: int, file_cost: float) -> list[float]:
    """Bytes that each task carries, every file counting `file_cost` more; weights may be others than were routed."""
    carried: list[list[float]] = [[] for _ in range(routing.tasks)]
    for key, shares in routing.assignment.items():
        for task, share in shares:
            files = share_files(weights_bytes[key], share, target)
            carried[task].append(weights_bytes[key] * share + files * file_cost)
    return [math.fsum(each) for each in carried]


def file_floor(weights_bytes: Mapping[Key, float], tasks: int, target: int, tolerance: float = 0.1) -> int:
    """The fewest files that any routing needs: for their size, or so that no task carries more than it should.

    The sum over the partitions of max(expected files, weight / ((1 + `tolerance`) x mean bytes of a task), rounded up),
    one at least.
    """
    total = math.fsum(weights_bytes.values())
    # a part of the total, as the mean of very small weights is 0; rounding must not add a file
    most = (1 - 1e-12) * tasks / (1 + tolerance)
    return sum(
        max(1, expected_files(weight, target), math.ceil(weight / total * most)) if weight else 1
        for weight in weights_bytes.values()
    )
