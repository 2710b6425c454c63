"""Small files of one partition -> few large ones, by the fastest way that is right."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from icesize.errors import RewriteFailed
from icesize.parquet.copying.copy_merge import copy_merge
from icesize.parquet.copying.strategy import forbidden
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.files.tasks import MergeOutcome, MergeTask
from icesize.parquet.format.refusals import UNREADABLE, CopyRefused, Refusal
from icesize.parquet.reading.prefetch import Fetched
from icesize.parquet.rewriting.decode_merge import decode_merge
from icesize.parquet.writing.file_writer import remove_files


def merge(task: MergeTask, settings: WriteSettings, names: FileNames) -> MergeOutcome:
    """Write the rows of all input files into `task.outputs` files of about equal size.

    Compressed bytes are copied where that is possible and pays, everything is decoded otherwise (`decode_merge`,
    `copy_merge`). Each output carries the largest data sequence number of the input files. Outputs with copied bytes
    lack metrics that only manifests have (`WrittenFile.copied_from`). Raises `RewriteFailed`, everything written
    removed: with the attribute `path` of an input file that is missing, damaged or does not have the rows its manifest
    entry says; of the output when storage fails.
    """
    if task.partition.spec_id != settings.spec_id:
        raise RewriteFailed(
            f"Cannot merge files of partition spec {task.partition.spec_id}: the table's is {settings.spec_id}, "
            "plan again",
            path=None,
        )
    with Fetched(settings) as fetched:
        outcome = _copied(task, settings, names, fetched)
        if isinstance(outcome, Refusal):
            outcome = _decoded(task, settings, names, fetched, outcome)
    if outcome.rows_in != outcome.rows_out:
        remove_files(settings.storage, list(outcome.files))
        raise RewriteFailed(
            f"Cannot merge: {outcome.rows_in} rows went in and {outcome.rows_out} came out, report this", path=None
        )
    sequence = max(input_file.sequence_number for input_file in task.inputs)
    return replace(outcome, files=tuple(replace(file, sequence_number=sequence) for file in outcome.files))


def _copied(task: MergeTask, settings: WriteSettings, names: FileNames, fetched: Fetched) -> MergeOutcome | Refusal:
    if (reason := forbidden(settings)) is not None:
        return reason
    try:
        return copy_merge(task, settings, names, fetched)
    except CopyRefused as refused:
        return refused.code
    except (pa.ArrowException, *UNREADABLE):
        # of an input file or of storage: decoding meets it again, if it lasts, and says what it is
        return Refusal.SHORT_READ


def _decoded(
    task: MergeTask, settings: WriteSettings, names: FileNames, fetched: Fetched, refused: Refusal
) -> MergeOutcome:
    try:
        files = decode_merge(task, settings, names, fetched)
    except (pa.ArrowException, OSError) as error:
        raise RewriteFailed(
            f"Cannot merge {len(task.inputs)} files: {error}, what was written is removed", path=None
        ) from error
    size, rows = task.size_bytes, sum(file.rows for file in files)
    codes = {refused.value: len(task.inputs)}
    return MergeOutcome(tuple(files), size, task.rows, rows, size, decoded_because=codes)
