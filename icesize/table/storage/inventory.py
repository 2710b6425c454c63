"""Listings that a storage service wrote to files, such as those of S3 Inventory: Parquet or CSV.

A listing of 100 million objects takes hours and a request for every thousand of them. An inventory takes none, but it
is old: it lacks the newest files, and has files that are gone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import unquote_plus

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as pq
from pyiceberg.io import FileIO

from icesize.errors import ArgumentError
from icesize.storage.locations import normalised, split
from icesize.storage.stores import Listed

_NAMES = {
    "path": ("path", "location", "filepath", "uri"),
    "bucket": ("bucket",),
    "key": ("key",),
    "size": ("size", "sizebytes", "length"),
    "time": ("time", "lastmodifieddate", "lastmodified", "modified", "mtime"),
    "islatest": ("islatest",),
    "isdeletemarker": ("isdeletemarker",),
}
"""Names of the columns in lower case without `_`: own ones, and those of S3 Inventory, Azure and Google Cloud."""
_S3_CSV = ("bucket", "key", "size", "lastmodifieddate")
_S3_CSV_VERSIONS = ("bucket", "key", "versionid", "islatest", "isdeletemarker", "size", "lastmodifieddate")
"""Columns of the CSV files of S3 Inventory, which have no header: of current objects, and of all versions."""
_PLAIN = re.compile(r"[\w./=-]*", re.ASCII)
_MS = pa.timestamp("ms", "UTC")


@dataclass(frozen=True)
class Inventory:
    """A `Lister` that reads files on the local disk.

    Each file has the columns `path` (or `bucket` and `key`), `size` and `time`. The keys in CSV files are URL-encoded,
    as S3 Inventory writes them. Only the latest of several versions of an object counts.
    """

    files: tuple[str, ...]

    def __call__(self, io: FileIO, location: str) -> Iterator[Listed]:
        """Yield the files below a location, whose spelling they get.

        Raises ArgumentError for an inventory that cannot be read.
        """
        folder = location.rstrip("/")
        start = normalised(folder) + "/"
        tail = split(folder)[2].strip("/") + "/"
        for rows in self._rows(tail if _PLAIN.fullmatch(tail) else ""):
            for path, size, time_ms in zip(*rows, strict=True):
                rest = spelt[len(start) :] if (spelt := normalised(path)).startswith(start) else ""
                # object stores treat `a//b` and `a/b` as two objects, and a folder is a name that ends with `/`
                if rest and size is not None and split(path)[2] == f"{split(folder)[2]}/{rest}":
                    yield Listed(f"{folder}/{rest}", size, time_ms)

    @cached_property
    def taken_ms(self) -> int:
        """The time of the newest file in the inventory: the inventory was not written before.

        Raises ArgumentError for an inventory that cannot be read, or that is empty.
        """
        newest = max((max(times) for _, _, times in self._rows("") if times), default=None)
        if newest is None:
            raise ArgumentError(f"the inventory {', '.join(self.files)} is empty")
        return newest

    def _rows(self, within: str) -> Iterator[tuple[list[str], list[int | None], list[int]]]:
        """Yield paths, sizes and times of the files whose paths contain `within`."""
        for file in self.files:
            try:
                yield from (_columns(batch, encoded, within) for batch, encoded in _batches(file))
            except (pa.ArrowException, OSError, ValueError) as error:
                raise ArgumentError(f"cannot read the inventory {file}: {error}") from error


def _batches(file: str) -> Iterator[tuple[Mapping[str, Any], bool]]:
    """Yield the columns of each batch by our names, and whether keys are encoded."""
    if re.search(r"\.csv(\.\w+)?$", file, re.IGNORECASE):
        reader = csv.open_csv(file, convert_options=csv.ConvertOptions(column_types=_texts(file)))
        if not _places(reader.schema.names).keys() & {"path", "key"}:
            reader = _without_header(file, reader.schema.names)
        yield from ((_named(batch), True) for batch in reader)
    else:
        with pq.ParquetFile(file) as parquet:
            names = [parquet.schema_arrow.names[at] for at in _places(parquet.schema_arrow.names).values()]
            yield from ((_named(batch), False) for batch in parquet.iter_batches(columns=names))


def _texts(file: str) -> dict[str, Any]:
    """Return text as the type of all columns: a key of digits is no number."""
    return dict.fromkeys(csv.open_csv(file).schema.names, pa.string())


def _without_header(file: str, first: Sequence[str]) -> Any:
    names = list(_S3_CSV if first[2:3] and first[2].isdigit() else _S3_CSV_VERSIONS)
    names += [f"more{number}" for number in range(len(first) - len(names))]
    options = csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()))
    return csv.open_csv(file, read_options=csv.ReadOptions(column_names=names), convert_options=options)


def _places(names: Sequence[str]) -> dict[str, int]:
    spelt = [name.lower().replace("_", "").replace("-", "").strip() for name in names]
    return {ours: spelt.index(name) for ours, theirs in _NAMES.items() for name in theirs[::-1] if name in spelt}


def _named(batch: pa.RecordBatch) -> dict[str, Any]:
    """Return the columns of a batch by our names. Raises ValueError if one is missing."""
    found = {ours: batch.column(place) for ours, place in _places(batch.schema.names).items()}
    if lacking := {"size", "time"} - found.keys() or (set() if "path" in found else {"bucket", "key"} - found.keys()):
        raise ValueError(
            f"it has no column {' and '.join(sorted(lacking))}; it needs path (or bucket, key), size, time"
        )
    return found


def _columns(columns: Mapping[str, Any], encoded: bool, within: str) -> tuple[list[str], list[int | None], list[int]]:
    rows = pa.table(dict(columns))
    where = "path" if "path" in columns else "key"
    if within:
        rows = rows.filter(pc.match_substring(rows[where], within))
    for name, wanted in (("islatest", "true"), ("isdeletemarker", "false")):
        if name in columns:
            rows = rows.filter(pc.equal(pc.utf8_lower(rows[name].cast(pa.string())), wanted))
    paths = rows[where].to_pylist()
    if where == "key":
        keys = [unquote_plus(key) if encoded and ("%" in key or "+" in key) else key for key in paths]
        paths = [f"s3://{bucket}/{key}" for bucket, key in zip(rows["bucket"].to_pylist(), keys, strict=True)]
    return paths, rows["size"].cast(pa.int64()).to_pylist(), _times_ms(rows["time"])


def _times_ms(times: pa.ChunkedArray) -> list[int]:
    """Return milliseconds since 1970 from timestamps, texts in ISO 8601 (without a zone: UTC), or such numbers."""
    if pa.types.is_string(times.type) or pa.types.is_large_string(times.type):
        for kind in (_MS, pa.timestamp("ms")):
            with suppress(pa.ArrowInvalid):
                times = times.cast(kind)
                break
    elif pa.types.is_timestamp(times.type):
        times = times.cast(pa.timestamp("ms", times.type.tz), safe=False)
    found: list[int] = times.cast(pa.int64()).to_pylist()
    return found
