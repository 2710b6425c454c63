"""A failpoint at which the n-th call fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from icesize import failpoints


@contextmanager
def failing_at(number: int, point: str, error: BaseException) -> Iterator[list[str]]:
    """Raise the error when the point is reached for the n-th time in the block; gives what was reached so far."""
    reached = list[str]()

    def fail() -> None:
        reached.append(point)
        if len(reached) == number:
            raise error

    with failpoints.armed(point, fail):
        yield reached
