"""Contents of generated tables that exist: few real Parquet files, each under many names as hard links.

All data files of a partition and a size have the same bytes. Sizes are a thousandth of real ones, and so are the target
size and the cost of opening a file in the table's policy. A delete file names data files, so each has its own bytes.
"""

from __future__ import annotations

import io
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from itertools import groupby, islice
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)

from benchmarks.catalog_tables import FILE_BYTES, SCHEMA, Shape, data_path
from icesize.parquet.files.data_file import NewDataFile, NewDeleteFile
from icesize.planning.files import PartitionKey
from icesize.policy import DEFAULT_TARGET_BYTES

SCALE = 1_000
"""Bytes of a real file for each byte here."""
MOST_LINKS = 60_000
"""Names of one file; ext4 allows 65,000."""
ROWS = dict(zip(FILE_BYTES, (20, 500, 16_000), strict=True))
"""Rows of a data file, by the bytes that it stands for."""
_DAY = "dDDDDDD"
"""Stands for the partition in a template; a real one is as long."""
_DAY_ID = 2
_PATH_ID, _POSITION_ID = 2147483546, 2147483545


@dataclass(frozen=True)
class _Template:
    """The bytes of a Parquet file of partition `_DAY`, and its metrics."""

    data: bytes
    metrics: dict[str, Any]


class Rows(NamedTuple):
    """Live rows of a table, and the sum of their positions, which are in the column `c1`."""

    number: int
    positions: int


@dataclass
class LinkedFiles:
    """`Contents` whose files exist. `folder` keeps the files that are linked.

    A delete file names `targets` data files of its partition: with one, as Iceberg 1.8 and newer write them; with two,
    the second half of the partition away, so that the bounds of its paths include half of the data files.
    `rows` has the live rows of each table by its location.
    """

    folder: Path
    targets: int = 1
    rows: dict[str, Rows] = field(default_factory=dict)
    _links: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))

    def properties(self, shape: Shape) -> dict[str, str]:
        """Return a target size and a cost of opening files that fit the scale."""
        return {
            "write.target-file-size-bytes": str(DEFAULT_TARGET_BYTES // SCALE),
            "icesize.policy.close-file-cost-bytes": str(64 * 1024 // SCALE),
        }

    def data(self, location: str, shape: Shape) -> Iterator[NewDataFile]:
        """Yield the data files and link them."""
        template, before = _data_template(shape.file_bytes), ""
        size, rows = len(template.data), ROWS[shape.file_bytes]
        self.rows[location] = Rows(shape.files * rows, shape.files * rows * (rows - 1) // 2)
        for number, day in enumerate(shape.days):
            path = data_path(location, number, day)
            if day != before:
                os.makedirs(_local(path).rpartition("/")[0], exist_ok=True)
                before, bounds = day, _bounds(template, day)
            self._link(f"{shape.file_bytes}-{day}", template, day, path)
            yield NewDataFile(path, size, rows, PartitionKey(0, (day,)), **template.metrics | bounds)

    def deletes(self, location: str, files: Sequence[NewDataFile], shape: Shape) -> Iterator[NewDeleteFile]:
        """Yield a delete file for each of the first files, and write it."""
        for named in islice(self._named(files), shape.deletes):
            in_order = sorted(named, key=lambda pair: pair[0].path)
            paths, positions = zip(*((file.path, position) for file, position in in_order), strict=True)
            data = _delete_template(len(paths[0]), positions)
            for place, path in enumerate(paths):
                data = data.replace(_placeholder(place, len(path)), path.encode())
            location_of_it = f"{location}/data/{uuid4()}-deletes.parquet"
            Path(_local(location_of_it)).write_bytes(data)
            count, total = self.rows[location]
            self.rows[location] = Rows(count - len(positions), total - sum(positions))
            yield NewDeleteFile(
                location_of_it, len(data), len(positions), named[0][0].partition,
                lower_bounds={_PATH_ID: paths[0].encode()}, upper_bounds={_PATH_ID: paths[-1].encode()},
                deletes_of=paths[0] if len(paths) == 1 else None,
            )  # fmt: skip

    def _named(self, files: Sequence[NewDataFile]) -> Iterator[list[tuple[NewDataFile, int]]]:
        """Yield, for each file, the files and positions that its delete file names; no position is named twice."""
        for _, group in groupby(files, key=lambda file: file.partition):
            together = list(group)
            for number, file in enumerate(together):
                other = together[(number + len(together) // 2) % len(together)]
                yield [(file, 0), (other, 1)][: min(self.targets, len(together))]

    def _link(self, source: str, template: _Template, day: str, path: str) -> None:
        copy, used = divmod(self._links[source], MOST_LINKS)
        self._links[source] += 1
        original = self.folder / f"{source}-{copy}.parquet"
        if not used:
            original.write_bytes(template.data.replace(_DAY.encode(), day.encode()))
        os.link(original, _local(path))


def _local(location: str) -> str:
    return location.removeprefix("file://")


def _placeholder(place: int, length: int) -> bytes:
    return b"<%d" % place + b"." * (length - 2)


@cache
def _data_template(file_bytes: int) -> _Template:
    rows, dice = ROWS[file_bytes], np.random.default_rng(31)
    columns = {
        "c1": np.arange(rows),
        "c2": [_DAY] * rows,
        "c3": dice.integers(0, 86_400_000_000, rows).astype("datetime64[us]"),
        "c4": dice.random(rows),
        "c5": dice.integers(0, 2**40, rows),
        "c6": [f"{number:012x}" for number in dice.integers(0, 2**48, rows)],
        "c7": dice.integers(0, 100, rows),
    }
    schema = schema_to_pyarrow(SCHEMA)
    table = pa.table([pa.array(columns[field.name], field.type) for field in schema], schema)
    # the day must be there as plain bytes, to be replaced
    compression = {name: "none" if name == "c2" else "zstd" for name in columns}
    data = _parquet(table, compression)
    footer = pq.read_metadata(io.BytesIO(data))
    statistics = data_file_statistics_from_parquet_metadata(
        footer, compute_statistics_plan(SCHEMA, {}), parquet_path_to_id_mapping(SCHEMA)
    ).to_serialized_dict()
    names = {each.name for each in fields(NewDataFile)}
    metrics = {name: value for name, value in statistics.items() if name in names}
    return _Template(data, {**metrics, "split_offsets": tuple(statistics["split_offsets"])})


def _bounds(template: _Template, day: str) -> dict[str, dict[int, bytes]]:
    """Return the bounds of the columns in a file of this partition."""
    return {
        name: {**template.metrics[name], _DAY_ID: day.encode()} for name in ("lower_bounds", "upper_bounds")
    }  # fmt: skip


@cache
def _delete_template(path_length: int, positions: tuple[int, ...]) -> bytes:
    def column(name: str, kind: pa.DataType, field_id: int) -> pa.Field:
        return pa.field(name, kind, nullable=False, metadata={"PARQUET:field_id": str(field_id)})

    schema = pa.schema([column("file_path", pa.string(), _PATH_ID), column("pos", pa.int64(), _POSITION_ID)])
    paths = [_placeholder(place, path_length).decode() for place in range(len(positions))]
    return _parquet(pa.table([paths, positions], schema=schema), "none", use_dictionary=False)


def _parquet(table: pa.Table, compression: Any, **options: Any) -> bytes:
    stream = io.BytesIO()
    pq.write_table(table, stream, compression=compression, store_schema=False, **options)
    return stream.getvalue()
