"""Column metrics of files that a merge copied: read from manifests again at the commit, for those files alone.

Layouts omit metrics, because most merges decode their rows. No error here makes a commit fail. An unknown bound is left
out of the merged file, so queries only read that file more often than necessary.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import islice

from pyiceberg.io import FileIO

from icesize.concurrency import concurrently
from icesize.parquet.files.data_file import CopiedFile, FileMetrics, FinishedFile, Merged, NewDataFile, Rewritten
from icesize.parquet.files.metrics import carry_over
from icesize.parquet.files.settings import WriteSettings
from icesize.planning.files import FileFact
from icesize.table.catalog.access_errors import brief
from icesize.table.manifests.file_columns import read_metrics

LOG = logging.getLogger("icesize")

_THREADS = 4
"""Manifests read at a time. Threads help only if each manifest takes a round trip."""


def with_carried_over_metrics(
    merged: Sequence[Rewritten],
    appended: Sequence[NewDataFile],
    io: FileIO,
    settings: Callable[[], WriteSettings],
) -> tuple[Merged, ...]:
    """Complete the metrics of outputs that were copied from their input files.

    Manifests describe the input files; `appended` describes those of the same commit. Without a copied output,
    `settings` is not called and no manifest is read.
    """
    files = (file for group in merged for file in group.files)
    copied = {old.path for file in files if isinstance(file, CopiedFile) for old in file.copied_from}
    known = metrics_of((v for group in merged for v in group.inputs if v.path in copied), io)
    known |= {file.path: FileMetrics.of(file) for file in appended}
    how = cache(settings)

    def complete(file: FinishedFile) -> NewDataFile:
        return carry_over(file, how(), known) if isinstance(file, CopiedFile) else file

    return tuple(group.with_files(map(complete, group.files)) for group in merged)


def metrics_of(files: Iterable[FileFact], io: FileIO) -> dict[str, FileMetrics]:
    """Return metrics by path of the files that their own manifests still list. Reads each manifest once.

    Files of a missing or damaged manifest are left out.
    """
    wanted: dict[str, set[str]] = defaultdict(set)
    for file in files:
        if file.manifest_path:
            wanted[file.manifest_path].add(file.path)
    found: dict[str, FileMetrics] = {}
    for part in concurrently(lambda item: _read_what_is_there(io, *item), wanted.items(), _THREADS):
        found |= part
    return found


def _read_what_is_there(io: FileIO, location: str, paths: set[str]) -> dict[str, FileMetrics]:
    try:
        return dict(islice((found for found in read_metrics(io, location) if found[0] in paths), len(paths)))
    except Exception as error:  # each storage client raises its own errors
        LOG.info("column metrics of %d merged files are not known: %s", len(paths), brief(error))
        return {}
