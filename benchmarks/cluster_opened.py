"""Files that queries open, exact from the bounds in a table's manifests, as PyIceberg reads them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks import peers
from benchmarks.cluster_rows import Integers, integers
from integration.tools import local_path

Partition = Hashable
_INT64 = np.iinfo(np.int64)


@dataclass(frozen=True)
class Files:
    """Live data files: `partitions`, `paths` and `sizes`, one each, and `bounds` of each column, shape [files, 2]."""

    partitions: Sequence[Partition]
    paths: Sequence[str]
    sizes: Integers
    bounds: Mapping[str, Integers]

    def opened(self, column: str, ranges: Integers) -> tuple[float, float]:
        """Return the mean over the ranges of files whose bounds meet a range, and of their bytes."""
        lower, upper = self.bounds[column].T
        met = (lower[:, None] <= ranges[:, 1]) & (upper[:, None] >= ranges[:, 0])
        return float(met.sum(axis=0).mean()), float((self.sizes @ met).mean())

    def sorted_values(self, column: str) -> dict[Partition, Integers]:
        """Return all values of a column by partition, sorted, from the files themselves."""
        values: dict[Partition, list[Integers]] = {}
        for partition, path in zip(self.partitions, self.paths, strict=True):
            values.setdefault(partition, []).append(integers(path, column))
        return {partition: np.sort(np.concatenate(some)) for partition, some in values.items()}


def optimum(files: Files, ordered: Mapping[Partition, Integers], ranges: Integers) -> float:
    """Return the files that the ranges would open on average if each partition were sorted by that column alone.

    Each partition has as many files as in `files`, with equal numbers of rows. `ordered` are its values, sorted.
    """
    counts = {partition: files.partitions.count(partition) for partition in ordered}
    bounds = np.concatenate([_sorted_bounds(values, counts[partition]) for partition, values in ordered.items()])
    ideal = Files((), (), np.ones(len(bounds), dtype=np.int64), {"": bounds})
    return ideal.opened("", ranges)[0]


def _sorted_bounds(values: Integers, files: int) -> Integers:
    cuts = np.arange(files + 1) * len(values) // files
    return np.stack([values[cuts[:-1]], values[cuts[1:] - 1]], axis=1)


def read_files(warehouse: Path, columns: Sequence[str]) -> Files:
    """Return the files of `c.db.t` with bounds of these columns, whose type is long or timestamp."""
    catalog = peers.catalog(warehouse)
    table = catalog.load_table("db.t")
    found = [task.file for task in table.scan().plan_files()]
    catalog.close()
    ids = {column: table.schema().find_field(column).field_id for column in columns}
    bounds = {column: [_bounds(file.lower_bounds, file.upper_bounds, i) for file in found] for column, i in ids.items()}
    return Files(
        [(file.spec_id, str(file.partition)) for file in found],
        [local_path(file.file_path) for file in found],
        np.array([file.file_size_in_bytes for file in found], dtype=np.int64),
        {column: np.array(pairs, dtype=np.int64).reshape(-1, 2) for column, pairs in bounds.items()},
    )


def _bounds(lower: Mapping[int, bytes], upper: Mapping[int, bytes], field_id: int) -> tuple[int, int]:
    """Return the bounds of a file; without bounds, every query opens the file."""
    if field_id not in lower or field_id not in upper:
        return int(_INT64.min), int(_INT64.max)
    first, last = (int.from_bytes(bounds[field_id], "little", signed=True) for bounds in (lower, upper))
    return first, last
