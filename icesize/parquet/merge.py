"""Small files of one partition -> few large ones, by the fastest way that is right."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from icesize.errors import RewriteFailed
from icesize.parquet.copy_merge import copy_merge
from icesize.parquet.decode_merge import decode_merge
from icesize.parquet.encoder import remove_files
from icesize.parquet.fetched import Fetched
from icesize.parquet.merge_task import MergeOutcome, MergeTask
from icesize.parquet.names import FileNames
from icesize.parquet.refusal import UNREADABLE, CopyRefused, Refusal
from icesize.parquet.settings import WriteSettings
from icesize.parquet.wanted import forbidden


def merge(task: MergeTask, settings: WriteSettings, names: FileNames) -> MergeOutcome:
    """Write the rows of all victims into `task.outputs` files of about equal size.

    Compressed bytes are copied where that is possible and pays, everything is decoded otherwise (`decode_merge`,
    `copy_merge`). Each output carries the largest data sequence number of the victims. Outputs with copied bytes lack
    metrics that only manifests have (`WrittenFile.copied_from`).
    Raises `RewriteFailed`, everything written removed: with the attribute `path` of a victim that is missing, damaged
    or does not have the rows its manifest entry says; of the output when storage fails.
    """
    if task.partition.spec_id != settings.spec_id:
        raise RewriteFailed(
            f"Cannot merge files of partition spec {task.partition.spec_id}: the table's is {settings.spec_id}, "
            "plan again",
            path=None,
        )
    with Fetched(settings.storage) as fetched:
        outcome = _copied(task, settings, names, fetched)
        if isinstance(outcome, CopyRefused):
            outcome = _decoded(task, settings, names, fetched, outcome)
    if outcome.rows_in != outcome.rows_out:
        remove_files(settings.storage, list(outcome.files))
        raise RewriteFailed(
            f"Cannot merge: {outcome.rows_in} rows went in and {outcome.rows_out} came out, report this", path=None
        )
    sequence = max(victim.sequence_number for victim in task.victims)
    return replace(outcome, files=tuple(replace(file, sequence_number=sequence) for file in outcome.files))


def _copied(task: MergeTask, settings: WriteSettings, names: FileNames, fetched: Fetched) -> MergeOutcome | CopyRefused:
    if (reason := forbidden(settings)) is not None:
        return CopyRefused(reason)
    try:
        return copy_merge(task, settings, names, fetched)
    except CopyRefused as refused:
        return refused.alone()
    except (pa.ArrowException, *UNREADABLE) as error:
        # of a victim or of storage: decoding meets it again, if it lasts, and says what it is
        return CopyRefused(Refusal.SHORT_READ, str(error))


def _decoded(
    task: MergeTask, settings: WriteSettings, names: FileNames, fetched: Fetched, refused: CopyRefused
) -> MergeOutcome:
    try:
        files = decode_merge(task, settings, names, fetched)
    except (pa.ArrowException, OSError) as error:
        raise RewriteFailed(
            f"Cannot merge {len(task.victims)} files: {error}, what was written is removed", path=None
        ) from error
    size, rows = task.size_bytes, sum(file.rows for file in files)
    codes = {refused.code.value: len(task.victims)}
    return MergeOutcome(tuple(files), size, task.rows, rows, size, decoded_because=codes)
