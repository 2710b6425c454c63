"""Small files of one partition -> few large ones, by the fastest way that is right."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from icesize.errors import RewriteFailed
from icesize.parquet.copying.copy_merge import copy_merge
from icesize.parquet.copying.strategy import forbidden
from icesize.parquet.files.data_file import MergeResult
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.format.refusals import UNREADABLE, CopyRefused, Refusal
from icesize.parquet.reading.prefetch import Fetched
from icesize.parquet.rewriting.decode_merge import decode_merge
from icesize.parquet.writing.file_writer import remove_files
from icesize.planning.plan import MergeGroup


def merge(group: MergeGroup, settings: WriteSettings, names: FileNames) -> MergeResult:
    """Write the rows of all input files into `group.outputs` files of about equal size.

    Compressed bytes are copied where that is possible and pays, everything is decoded otherwise (`decode_merge`,
    `copy_merge`). Each output carries the largest data sequence number of the input files. Outputs with copied bytes
    lack metrics that only manifests have (`WrittenFile.copied_from`). Raises `RewriteFailed`, everything written
    removed: with the attribute `path` of an input file that is missing, damaged or does not have the rows its manifest
    entry says; of the output when storage fails.
    """
    if group.partition.spec_id != settings.spec_id:
        raise RewriteFailed(
            f"Cannot merge files of partition spec {group.partition.spec_id}: the table's is {settings.spec_id}, "
            "plan again",
            path=None,
        )
    with Fetched(settings) as fetched:
        result = _copied(group, settings, names, fetched)
        if isinstance(result, Refusal):
            result = _decoded(group, settings, names, fetched, result)
    if result.rows_in != result.rows_out:
        remove_files(settings.storage, list(result.files))
        raise RewriteFailed(
            f"Cannot merge: {result.rows_in} rows went in and {result.rows_out} came out, report this", path=None
        )
    sequence = max(input_file.sequence_number for input_file in group.inputs)
    return replace(result, files=tuple(replace(file, sequence_number=sequence) for file in result.files))


def _copied(group: MergeGroup, settings: WriteSettings, names: FileNames, fetched: Fetched) -> MergeResult | Refusal:
    if (reason := forbidden(settings)) is not None:
        return reason
    try:
        return copy_merge(group, settings, names, fetched)
    except CopyRefused as refused:
        return refused.code
    except (pa.ArrowException, *UNREADABLE):
        # of an input file or of storage: decoding meets it again, if it lasts, and says what it is
        return Refusal.SHORT_READ


def _decoded(
    group: MergeGroup, settings: WriteSettings, names: FileNames, fetched: Fetched, refused: Refusal
) -> MergeResult:
    try:
        files = decode_merge(group, settings, names, fetched)
    except (pa.ArrowException, OSError) as error:
        raise RewriteFailed(
            f"Cannot merge {len(group.inputs)} files: {error}, what was written is removed", path=None
        ) from error
    codes = {refused.value: len(group.inputs)}
    return MergeResult(group.inputs, tuple(files), group.size_bytes, decoded_because=codes)
