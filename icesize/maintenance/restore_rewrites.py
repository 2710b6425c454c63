"""Files of an older version that come back without the rows that were deleted from them.

Position deletes name a path and equality deletes have a number, so neither applies to a file that comes back under a
new name as part of a newer snapshot: a byte copy would bring deleted rows back.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from pyiceberg.io import FileIO

from icesize.parquet.files.data_file import Merged, Rewritten
from icesize.parquet.files.names import FileNames, copy_prefix
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.files.uncommitted import Uncommitted
from icesize.parquet.rewriting.merge import merge
from icesize.parquet.rewriting.threads import THREADS, workers
from icesize.planning.files import FileFact
from icesize.planning.plan import MergeGroup
from icesize.table.commit.input_metrics import with_carried_over_metrics


def without_deleted_rows(
    files: Sequence[FileFact], io: FileIO, settings: WriteSettings, owner: Uncommitted
) -> tuple[Merged, ...]:
    """Write each file again without its deleted rows, in threads of this process; of one without any row nothing comes.

    The prefix of `owner` begins the names of the new files, but for those of clustered sets. Raises RewriteFailed for a
    file, or deletes of it, that cannot be read.
    """

    def rewrite(number: int, file: FileFact) -> Rewritten:
        names = FileNames(copy_prefix(file.path, owner.prefix), number, 0, owner)
        return merge(MergeGroup((file,), file.partition), settings, names)

    with ThreadPoolExecutor(workers(), thread_name_prefix=THREADS) as pool:
        # the first that fails cancels those that have not begun
        results = tuple(pool.map(rewrite, range(len(files)), files))
    return with_carried_over_metrics(results, (), io, lambda: settings)
