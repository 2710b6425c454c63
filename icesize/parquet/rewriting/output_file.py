"""One output of a merge that copies: row groups of older files, whole or made of their pages, and decoded rows.

Its Iceberg counts and sizes are from its footer as icesize parses it. The footer holds statistics of other writers, and
pyarrow ends the process for some damaged ones.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from icesize import failpoints
from icesize.concurrency import Ahead
from icesize.parquet.files.data_file import CopiedFile, CopiedFrom, FileMetrics, NewDataFile
from icesize.parquet.files.metrics import Leaf, describe, leaves
from icesize.parquet.files.new_files import NewFiles
from icesize.parquet.files.row_map import Span
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.format.fields import Statistics
from icesize.parquet.format.footer import MAGIC, Chunk, Footer
from icesize.parquet.format.levels import count_levels
from icesize.parquet.format.refusals import CopyRefused, Refusal, damaged_as
from icesize.parquet.format.schema import LINEAGE_IDS, Column
from icesize.parquet.format.sources import Readable, StreamSource
from icesize.parquet.format.statistics import bound_order, count_of, merge_statistics, null_count
from icesize.parquet.format.thrift import binary
from icesize.parquet.pages.column_plan import ColumnPlan, Part, Piece
from icesize.parquet.pages.page_copy import merge_row_groups, write_lineage
from icesize.parquet.pages.page_lineage import lineage_works, stored_piece
from icesize.parquet.pages.reencode import reencode
from icesize.parquet.reading.conservation import Conservation, Count
from icesize.parquet.rewriting.decoded_rows import EncodedRows
from icesize.parquet.row_groups.assembly import Assembled, Assembly, ColumnPart
from icesize.parquet.row_groups.compatibility import check_together
from icesize.parquet.row_groups.row_groups import copy_row_group
from icesize.planning.files import FileFact, PartitionKey

_WAITING = 6
"""Columns, or parts of one, that are made and not yet written: a few, since one may take as long as many others."""
Work: TypeAlias = "Callable[[int | None], list[Piece]]"
"""Makes the chunks of some columns that change, with this compression level."""


@dataclass(slots=True)
class PageRun:
    """Row groups whose pages become one row group; `pages_copied` is set after the copy."""

    parts: list[Part]
    plan: ColumnPlan
    pages_copied: int = 0


def works(parts: Sequence[Part], plan: ColumnPlan) -> Iterator[Work]:
    """Yield the work to do, in the order in which `merge_row_groups` uses its results: the row lineage comes last."""
    tops = dict.fromkeys(column.top for column in parts[0].footer.columns)
    yield from (partial(reencode, parts, top, plan) for top in tops if top in plan.reencode)
    yield from lineage_works(parts)


@dataclass(slots=True)
class Contents:
    """The contents of one output: what is copied, and the input files that are `decoded`.

    `model` has the schema that the decoded rows will have.
    """

    whole: list[Part] = field(default_factory=list)
    runs: list[PageRun] = field(default_factory=list)
    decoded: tuple[FileFact, ...] = ()
    model: EncodedRows | None = None
    copied_from: tuple[CopiedFrom, ...] = ()

    @property
    def parts(self) -> list[Part]:
        """All row groups that are copied."""
        return [*self.whole, *(part for run in self.runs for part in run.parts)]

    @property
    def spans(self) -> list[Span]:
        """The rows in the order in which they are written."""
        return [part.span for part in self.parts] + [(file.path, 0, file.rows) for file in self.decoded]

    @property
    def footers(self) -> list[Footer]:
        """Footers of all files that parts are taken from, and of decoded rows."""
        found = list(dict.fromkeys(part.footer for part in self.parts))
        return found if self.model is None else [*found, self.model.footer]

    @property
    def bytes_copied(self) -> int:
        """Bytes that are moved without decoding."""
        return sum(part.group.size_bytes for part in self.whole) + sum(run.plan.copied_bytes for run in self.runs)

    @property
    def works(self) -> Iterator[Work]:
        """The work on columns that change, in the order of row groups and columns."""
        yield from (work for part in self.whole for work in lineage_works([part]))
        yield from (work for run in self.runs for work in works(run.parts, run.plan))


def write_copied(
    partition: PartitionKey,
    contents: Contents,
    decoded: Iterable[EncodedRows],
    new_files: NewFiles,
    ahead: Ahead,
    counted: Conservation,
) -> CopiedFile:
    """Write one of `new_files`; its metrics are still to be completed from the manifest entries of `copied_from`.

    Columns that change are made `ahead` of their writing. Decoded rows are `counted` while they are read. Copied rows
    are compared by footers, and by levels if the footers have no counts or differ.

    Raises `CopyRefused`, `RewriteFailed` or `OSError`.
    """
    settings, path = new_files.settings, new_files.location(partition)
    sink, described = new_files.create(path), list[NewDataFile]()
    changed = ahead.map(lambda work: work(settings.parquet.level), contents.works, _WAITING)
    rows = _describing(decoded, NewDataFile(path, 0, 0, partition), settings, described)
    assembled = _assemble(sink, contents, rows, changed, adds_lineage=settings.stores_lineage)
    _check_opens(assembled)
    file = describe_copied(settings, path, partition, assembled)
    if (changed_column := counted.difference(described)) is not None:
        raise CopyRefused(Refusal.COUNTS, changed_column.name)
    file = replace(file, decoded=tuple(map(FileMetrics.of, described)))
    if not all(copied.whole for copied in contents.copied_from):
        lower, upper = _bounds(settings, assembled.parsed)
        file = replace(file, lower_bounds=lower, upper_bounds=upper, has_bounds=True)
    sink.close()
    new_files.finished(path, assembled.size_bytes, assembled.end)
    _Copy(contents, counted, assembled.parsed).check(path)
    return replace(file, copied_from=contents.copied_from)


def _describing(
    decoded: Iterable[EncodedRows], file: NewDataFile, settings: WriteSettings, described: list[NewDataFile]
) -> Iterator[EncodedRows]:
    """Yield the decoded rows, and add the metrics of each to `described`, as those of a file of its own."""
    for rows in decoded:
        described.append(describe(file, settings, rows.metadata, rows.floats))
        yield rows


def _assemble(
    sink: object,
    contents: Contents,
    decoded: Iterable[EncodedRows],
    changed: Iterator[list[Piece]],
    *,
    adds_lineage: bool,
) -> Assembled:
    assembly = Assembly(sink, contents.footers, adds_lineage=adds_lineage)  # type: ignore[arg-type]

    def beside(made: Iterator[list[Piece]]) -> Callable[[], Sequence[ColumnPart]]:
        return partial(write_lineage, made, assembly) if adds_lineage else tuple

    for part in contents.whole:
        copy_row_group(part.source, part.group, assembly, beside=beside(changed))
        failpoints.reach("writing")
    for run in contents.runs:
        run.pages_copied = merge_row_groups(run.parts, run.plan, assembly, changed)
        failpoints.reach("writing")
    for rows in decoded:
        check_together([contents.footers[0], rows.footer])
        (group,) = rows.footer.row_groups
        stored = ([stored_piece(rows.source, group, nth)] for nth in range(len(group.lineage)))
        copy_row_group(rows.source, group, assembly, beside=beside(stored))
        failpoints.reach("writing")
    return assembly.finish()


@dataclass(frozen=True, slots=True)
class _Copy:
    """The `contents` of a file, with the counts of its decoded rows (`counted`), and its `footer`."""

    contents: Contents
    counted: Conservation
    footer: Footer

    def check(self, path: str) -> None:
        """Raise `CopyRefused` unless each column of the file at `path` has the values and NULLs of its contents.

        Footers are compared first. Levels are counted if the footers have no counts or differ.
        """
        settings = self.counted.settings
        doubted = [leaf for leaf in leaves(settings) if not self._agree(leaf)]
        if not doubted:
            return
        with settings.storage.stream(path) as stream:
            for leaf in doubted:
                self._check_levels(leaf, StreamSource(stream))

    def _agree(self, leaf: Leaf) -> bool:
        """Return whether all footers state the number of NULLs, and agree."""
        parts, at = self.contents.parts, leaf.position
        written = _sum(count_of(group.chunks[at], self.footer.columns[at]) for group in self.footer.row_groups)
        if leaf.field_id in LINEAGE_IDS:
            return written == self._lineage
        stored = _sum(count_of(part.group.chunks[at], _column(part, at)) for part in parts)
        if written.nulls is None or stored.nulls is None:
            return False
        if any(part.deleted for part in parts):  # the cut or encoding of pages counts NULLs
            stored = Count(sum(part.rows for part in parts) if leaf.flat else None, None)
        return self._decoded(leaf).plus(stored).agrees(written)

    def _check_levels(self, leaf: Leaf, written: Readable) -> None:
        at, footer, parts = leaf.position, self.footer, self.contents.parts
        after = _sum(count_levels(written, group.chunks[at], footer.columns[at]) for group in footer.row_groups)
        if leaf.field_id in LINEAGE_IDS:
            if after != self._lineage:
                raise CopyRefused(Refusal.COUNTS, leaf.name)
            return
        before = (
            count_levels(p.source, p.group.chunks[at], _column(p, at), p.deleted_rows if p.deleted else None)
            for p in parts
        )
        if self._decoded(leaf).plus(_sum(before)) != after:
            raise CopyRefused(Refusal.COUNTS, leaf.name)

    @property
    def _lineage(self) -> Count:
        """The count of a column of the row lineage: each row has a value."""
        return Count(self.footer.rows, 0)

    def _decoded(self, leaf: Leaf) -> Count:
        return Count(*self.counted.sums.get(leaf.field_id, Count())[:2])


def _column(part: Part, at: int) -> Column:
    """Return a leaf column as its pages are: pages of files that require it have no definition levels."""
    column = part.footer.columns[at]
    return replace(column, levels=(0, 0)) if column.top in part.footer.strict else column


def _check_opens(assembled: Assembled) -> None:
    """Raise `CopyRefused` unless pyarrow can also read the footer: parts of it come unchanged from older footers."""
    try:
        pq.read_metadata(io.BytesIO(MAGIC + assembled.end))
    except (pa.ArrowException, OSError) as error:
        raise CopyRefused(Refusal.CORRUPT_FOOTER, str(error)) from error


def describe_copied(settings: WriteSettings, path: str, partition: PartitionKey, assembled: Assembled) -> CopiedFile:
    """Return a file with column sizes, value counts and null counts by the table's metrics modes, without bounds.

    A column has a null count if all its chunks have one that can be true. Raises `CopyRefused` for statistics that
    cannot be read.
    """
    columns = _chunks(settings, assembled.parsed)
    counted = [(leaf.field_id, chunks) for leaf, chunks in columns if leaf.counts]
    nulls = {field_id: _null_count(chunks) for field_id, chunks in counted}
    return CopiedFile(
        path,
        assembled.size_bytes,
        assembled.parsed.rows,
        partition,
        column_sizes={leaf.field_id: sum(chunk.size_bytes for chunk in chunks) for leaf, chunks in columns},
        value_counts={field_id: sum(chunk.values for chunk in chunks) for field_id, chunks in counted},
        null_value_counts={field_id: count for field_id, count in nulls.items() if count is not None},
        split_offsets=assembled.split_offsets,
    )


def _chunks(settings: WriteSettings, footer: Footer) -> list[tuple[Leaf, list[Chunk]]]:
    return [(leaf, [group.chunks[leaf.position] for group in footer.row_groups]) for leaf in leaves(settings)]


def _sum(counts: Iterable[tuple[int | None, int | None]]) -> Count:
    """Return the sums; None for a sum with an unknown number."""
    entries, nulls = zip((0, 0), *counts, strict=True)
    return Count(None if None in entries else sum(entries), None if None in nulls else sum(nulls))


def _bounds(settings: WriteSettings, footer: Footer) -> tuple[dict[int, bytes], dict[int, bytes]]:
    """Return the bounds that the row groups of a file have.

    Bounds of older files may belong to deleted rows, and Spark takes the bounds of files without deletes for their
    least and greatest values.
    """
    lower, upper = dict[int, bytes](), dict[int, bytes]()
    for leaf, chunks in _chunks(settings, footer):
        element = footer.columns[leaf.position].element
        found = merge_statistics(element, [(chunk.statistics, chunk.values) for chunk in chunks]) or {}
        order, ends = bound_order(element), (Statistics.MIN_VALUE, Statistics.MAX_VALUE)
        for bounds, field_id, serialise in zip((lower, upper), ends, (leaf.lower, leaf.upper), strict=True):
            raw = binary(found, field_id)
            if order is not None and raw is not None and serialise is not None:
                bound = serialise(order(raw))
                if bound is not None:
                    bounds[leaf.field_id] = bound
    return lower, upper


@damaged_as(Refusal.CORRUPT_FOOTER, "statistics")
def _null_count(chunks: Sequence[Chunk]) -> int | None:
    counts = [null_count(chunk.statistics, chunk.values) for chunk in chunks]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
