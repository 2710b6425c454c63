"""Numbers of files, computed from bytes; and items, divided by their sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar, overload

if TYPE_CHECKING:  # `icesize --help` imports this module
    import numpy as np
    from numpy.typing import NDArray

T = TypeVar("T")

ROUND_DOWN_RATIO = 1.1
"""Files may be this much above the target before one more is written: Iceberg's `expectedOutputFiles`."""
SAFE_RATIO = 1.06
"""A file planned this far above the small file limit is not small even if it compresses 5% better than planned."""


@overload
def is_small_file(size_bytes: float, limit_bytes: float) -> bool: ...
@overload
def is_small_file(size_bytes: NDArray[np.integer[Any]], limit_bytes: float) -> NDArray[np.bool_]: ...
def is_small_file(size_bytes: float | NDArray[Any], limit_bytes: float) -> bool | NDArray[np.bool_]:
    """Return whether a file, or each of several, is small, so that it may be merged for its size."""
    return size_bytes < limit_bytes


def in_batches(items: Iterable[T], size_of: Callable[[T], int], enough: int) -> Iterator[list[T]]:
    """Yield the items in lists, in their order. Each list but the last one ends where it has `enough`."""
    batch, size = list[T](), 0
    for item in items:
        batch.append(item)
        size += size_of(item)
        if size >= enough:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def parts_within(items: Iterable[T], size_of: Callable[[T], int], most: float) -> Iterator[tuple[T, ...]]:
    """Yield the items in parts of at most `most`, or of one item, in their order."""
    part, size = list[T](), 0
    for item in items:
        if part and size + size_of(item) > most:
            yield tuple(part)
            part, size = [], 0
        part.append(item)
        size += size_of(item)
    if part:
        yield tuple(part)


def expected_files(total_bytes: float, target_file_size_bytes: int) -> int:
    """Return the number of equal files of about the target size for `total_bytes`; 0 for nothing.

    10.1 GB at a target of 1 GB are ten files of 1.01 GB, not ten and a small remainder. The number is rounded down
    while the average stays below 1.1 x target, otherwise up. This is `expectedOutputFiles` of Iceberg's
    `SizeBasedFileRewritePlanner`, without its rule for a large remainder, because equal parts have none.
    """
    if total_bytes <= 0:
        return 0
    down = int(total_bytes // target_file_size_bytes)
    if down and total_bytes < down * ROUND_DOWN_RATIO * target_file_size_bytes:
        return down
    return max(1, -int(-total_bytes // target_file_size_bytes))


def merged_files(total_bytes: int, target_file_size_bytes: int, small_file_limit_bytes: int) -> int:
    """Return the number of files into which small files of `total_bytes` are merged; several only if none is small
    again.

    The number is that of `expected_files`, or less if its equal parts would stay below the limit. 1.2 x target is one
    file, not two files of 0.6 x target that the next plan would merge again. With the default limit of 0.75 x target,
    no file is planned above 1.6 x target. Iceberg's own compaction accepts files up to 1.8 x target.
    """
    files = max(1, expected_files(total_bytes, target_file_size_bytes))
    return max(1, min(files, int(total_bytes / least_output_bytes(small_file_limit_bytes))))


def least_output_bytes(small_file_limit_bytes: int) -> float:
    """The smallest size planned for one of several outputs: 6% above the limit, see `SAFE_RATIO`."""
    return max(1.0, SAFE_RATIO * small_file_limit_bytes)
