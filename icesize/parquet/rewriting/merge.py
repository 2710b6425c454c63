"""Small files of one partition -> few large ones, in the fastest correct way."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from icesize.errors import RewriteFailed, SchemaMismatch, is_from_outside
from icesize.parquet.deletes.deleted_rows import DeletedPositions, deleted_rows
from icesize.parquet.files.data_file import MergeResult, NewDataFile, Rewritten
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.new_files import NewFiles, rewrite_failed
from icesize.parquet.files.partitioning import split_by_partition
from icesize.parquet.files.row_map import Ordered, RowMap, map_in_order
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.format.refusals import CopyRefused, Refusal, log_internal_error
from icesize.parquet.ordering.sort_order import sorter_of
from icesize.parquet.reading.conservation import Conservation
from icesize.parquet.reading.inherited_lineage import check_row_ids
from icesize.parquet.reading.inputs import Stream, read_inputs
from icesize.parquet.reading.prefetch import Fetched
from icesize.parquet.rewriting.copy_merge import copy_merge
from icesize.parquet.rewriting.copy_or_decode import forbidden
from icesize.parquet.writing.encoding import Encoding, dictionary_columns, nan_columns
from icesize.parquet.writing.file_writer import FileEncoder, LateNanError
from icesize.parquet.writing.row_writer import write_rows
from icesize.planning.file_sizes import merged_files
from icesize.planning.files import FileFact
from icesize.planning.plan import MergeTask


def merge(
    group: MergeTask, settings: WriteSettings, names: FileNames, threads: int = 1, *, new_ids: bool = False
) -> Rewritten:
    """Write the rows of all input files into `group.outputs` files of about equal size.

    Compressed bytes are copied if that is possible and faster (`copy_merge`); otherwise everything is decoded. Deleted
    rows are left out, and there are fewer outputs if the live rows need fewer. Each output carries the largest data
    sequence number of the input files and of the applied equality deletes. Outputs with copied bytes lack metrics that
    only manifests have (`CopiedFile`). Rows keep their lineage (format v3); with `new_ids`, they get another one from
    the commit, as new rows do. With two `threads` or more, the others read ahead of the one that writes; the
    files are byte for byte the same. If the group moves, its rows go into the partitions of the table's current spec,
    in files without a number: they inherit that of their commit.

    Raises `RewriteFailed`, after everything written is removed. Its attribute `path` is an input or delete file that is
    missing, damaged or does not have as many rows as its manifest entry records. If storage fails, `path` is the
    output.
    """
    with begun("merge", group, settings, names, threads=threads, new_ids=new_ids) as job:
        result, deleted = _moved(job, settings.with_lineage, names) if group.moves else _copied(job), job.deleted
        if isinstance(result, Refusal):
            result = _decoded(job, result)
        if result.rows_in - deleted.rows != result.rows_out:
            rows = f"{result.rows_in} rows went in, {deleted.rows} of them deleted"
            raise RewriteFailed(f"Cannot merge: {rows}, and {result.rows_out} came out, report this", path=None)
    number = None if group.moves else deleted.merged_sequence_number(group.inputs)
    files = tuple(replace(file, sequence_number=number) for file in result.files)
    row_map = deleted.left_out_of(result.row_map)
    return replace(result, files=files, rows_deleted=deleted.rows, named=deleted.named, row_map=row_map)


@dataclass(frozen=True)
class Job:
    """A rewrite of the files of one `group` into `new_files`, without the rows that are `deleted`."""

    group: MergeTask
    new_files: NewFiles
    fetched: Fetched
    deleted: DeletedPositions


@contextmanager
def begun(
    verb: str,
    group: MergeTask,
    settings: WriteSettings,
    names: FileNames,
    *passing: type[Exception],
    threads: int = 1,
    new_ids: bool = False,
) -> Iterator[Job]:
    """Begin a job, whose group has as many outputs as its live rows need, and remove its files if it fails.

    The settings of `new_files` have the columns of the row lineage if the table has row lineage, and no `new_ids` are
    wanted. They are those of the group's partition spec, which need not be the table's current one.

    Raises `RewriteFailed` for all errors of the block except those of `passing`, and for files whose rows have no row
    ids yet.
    """
    settings = settings.of_spec(group.partition.spec_id)
    of_files = settings if new_ids else settings.with_lineage
    if of_files.stores_lineage:
        check_row_ids(group.inputs)
    failing, new_files = rewrite_failed(f"{verb} {len(group.inputs)} files", *passing), NewFiles(of_files, names)
    with failing, Fetched(settings, threads) as fetched, new_files.all_or_none():
        deleted = deleted_rows(group.inputs, settings, group.partition, fetched)
        yield Job(with_enough_outputs(group, settings, deleted), new_files, fetched, deleted)


def with_enough_outputs(group: MergeTask, settings: WriteSettings, deleted: DeletedPositions) -> MergeTask:
    """Return the group with as many outputs as its live rows need, which may be fewer than planned."""
    if not deleted.rows:
        return group
    live_bytes = round(group.size_bytes * (1 - deleted.rows / max(1, group.rows)))
    outputs = merged_files(live_bytes, settings.target_file_size_bytes, settings.small_file_limit_bytes)
    return replace(group, outputs=max(1, min(group.outputs, outputs)))


def _copied(job: Job) -> Rewritten | Refusal:
    if (reason := forbidden(job.new_files.settings)) is not None:
        return reason
    try:
        return copy_merge(job.group, job.new_files, job.fetched, job.deleted.positions)
    except CopyRefused as refused:
        return refused.code
    except Exception as error:
        if isinstance(error, MemoryError):
            return Refusal.NO_ROOM
        if is_from_outside(error):
            return Refusal.SHORT_READ  # a lasting fault recurs when the files are decoded, with a message that names it
        log_internal_error(f"copying {len(job.group.inputs)} files", error)
        return Refusal.INTERNAL_ERROR


def _moved(job: Job, current: WriteSettings, names: FileNames) -> Rewritten:
    """Write the rows to the partitions of the current spec, whose settings are given."""
    group, counted = job.group, Conservation(current)
    live = read_inputs(group, job.new_files.settings, job.fetched, job.deleted.positions, counted)
    parts = (part for table in live for part in split_by_partition(table, current))
    try:
        files = write_rows((), current, names, parts, counted)
    except SchemaMismatch as error:  # NaN, for example, is no partition value
        raise RewriteFailed(f"Cannot move {len(group.inputs)} files: {error}", path=None) from error
    codes = {Refusal.MOVED.value: len(group.inputs)}
    return MergeResult(group.inputs, tuple(files), group.size_bytes, decode_reasons=codes)


def _decoded(job: Job, refused: Refusal) -> Rewritten:
    """Merge by decoding and encoding every row, which is always possible."""
    nan, group = frozenset[int](), job.group
    while True:
        try:
            with job.new_files.all_or_none():
                files, row_map = _decoded_files(job, nan)
        except LateNanError as late:
            nan |= late.nan  # again: the statistics of these columns must be left out from the start
        else:
            codes = {refused.value: len(group.inputs)}
            return MergeResult(group.inputs, tuple(files), group.size_bytes, decode_reasons=codes, row_map=row_map)


def _decoded_files(job: Job, nan: frozenset[int]) -> tuple[list[NewDataFile], RowMap | None]:
    """Write the live rows of all input files, in their order; columns of `nan` have no statistics.

    At most about one row group is held decoded. If the table has a sort order, up to `Limits.decoded_bytes` of rows are
    held and sorted. An output of no more rows than that is in the table's order, and records its id.
    """
    settings, group, deleted = job.new_files.settings, job.group, job.deleted
    counted = Conservation(settings)
    live = read_inputs(group, settings, job.fetched, deleted.positions, counted)
    tables = Stream(live, settings.limits.decoded_bytes)
    outputs = output_rows(group.inputs, [*map(deleted.live_rows, group.inputs)], group.outputs)
    ordered = None if sorter_of(settings) is None else Ordered(sum(outputs))
    files = [_output(job, tables, rows, nan, ordered) for rows in outputs if rows]
    for _ in tables.rest():  # reads to the end, where a file with more rows than its manifest records is noticed
        continue
    return counted.check(files), map_in_order(group.inputs) if ordered is None else ordered.row_map(group.inputs)


def _output(job: Job, tables: Stream, rows: int, nan: frozenset[int], ordered: Ordered | None) -> NewDataFile:
    """Write a file of the next rows, whose new places are noted if they are `ordered`."""
    settings, group = job.new_files.settings, job.group
    sorter = sorter_of(settings)
    size_bytes = group.size_bytes / max(1, group.rows) * rows
    group_rows = math.ceil(rows / settings.parquet.row_groups(size_bytes, rows))
    encoder, left = None, rows
    while encoder is None or left:
        run = tables.take(left if sorter is not None else min(group_rows, left))
        if sorter is not None and ordered is not None:
            run, order = sorter.arranged(run)
            ordered.write_next(order)
        found = nan_columns(settings, run)
        if encoder is None:
            encoding = Encoding(dictionary_columns(settings, run), found | nan)
            encoder = FileEncoder(job.new_files, group.partition, encoding, expected_rows=rows)
            if sorter is not None and run.num_rows == rows:
                encoder.sort_order_id = sorter.order_id
        step = math.ceil(run.num_rows / math.ceil(run.num_rows / group_rows))
        for start in range(0, run.num_rows, step):
            encoder.append(run.slice(start, step), found)
        left -= run.num_rows
    return encoder.finish()


def output_rows(inputs: tuple[FileFact, ...], live_rows: Sequence[int], outputs: int) -> list[int]:
    """Return the rows of each output, so that outputs are of about equal size.

    The live rows of the input files, in order, are cut at each n-th part of the sum of their bytes.
    """
    shares = (live / file.rows if file.rows else 1.0 for file, live in zip(inputs, live_rows, strict=True))
    sizes = [file.size_bytes * share for file, share in zip(inputs, shares, strict=True)]
    total = sum(sizes)
    rows, done_bytes, done_rows = [0], 0.0, 0
    for size_bytes, live in zip(sizes, live_rows, strict=True):
        while len(rows) < outputs and total * len(rows) < (done_bytes + size_bytes) * outputs:
            share = (total * len(rows) / outputs - done_bytes) / size_bytes
            rows.append(done_rows + round(live * share))
        done_bytes += size_bytes
        done_rows += live
    ends = [*rows[1:], done_rows]
    return [end - start for start, end in zip(rows, ends, strict=True)]
