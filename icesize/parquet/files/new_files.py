"""The files of one writer, in any process: they are closed and removed when their work fails."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pyarrow as pa

from icesize.errors import RewriteFailed
from icesize.parquet.files.names import FileNames, data_location
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.files.uncommitted import Uncommitted
from icesize.parquet.format.refusals import log_internal_error
from icesize.planning.files import PartitionKey
from icesize.storage.stores import abandon


class NewFiles:
    """The files that one thread writes for one piece of work, and their settings and names.

    A piece of work is, for example, a group to merge or the rows of a Spark task.
    """

    def __init__(self, settings: WriteSettings, names: FileNames) -> None:
        self.settings = settings
        self._names = names
        self._owner = names.owner or Uncommitted(settings.storage, names.prefix)
        self._begun: dict[str, Callable[[], object]] = {}

    def location(self, partition: PartitionKey, ending: str = "parquet") -> str:
        """Return the location of the next file of a partition."""
        return data_location(self.settings, partition, self._names.next(ending))

    def create(self, location: str) -> Any:
        """Return a binary stream that becomes the file when closed, from `Uncommitted.create`."""
        self._begun[location] = _nothing
        self._begun[location] = partial(abandon, stream := self._owner.create(location))
        return stream

    def close_by(self, location: str, close: Callable[[], object]) -> None:
        """Set the function that closes a file if it must be removed before it is finished.

        The default abandons the file's stream. If another thread finishes the file, `close` waits for that thread.
        """
        self._begun[location] = close

    def finished(self, location: str, written_bytes: int, end: bytes = b"") -> None:
        """Mark a closed file as finished, once storage holds all of it; raises the errors of `Uncommitted.finished`."""
        self._owner.finished(location, written_bytes, end)
        self._begun[location] = _nothing

    @contextmanager
    def all_or_none(self) -> Iterator[None]:
        """Remove the files that are begun in the block, best effort, if an error or Ctrl-C leaves it.

        Blocks can be nested: one attempt in work that may be retried.
        """
        before = set(self._begun)
        try:
            yield
        except BaseException:
            for location in [location for location in self._begun if location not in before]:
                # closed first: a file must not appear after its deletion
                with contextlib.suppress(Exception):
                    self._begun.pop(location)()
                self._owner.delete([location])
            raise


@contextmanager
def rewrite_failed(cannot: str, *passing: type[Exception]) -> Iterator[None]:
    """Raise `RewriteFailed` for an error of Arrow or of storage, and for a bug of icesize.

    A bug is logged, and the message names it. Errors of the classes `passing` are raised unchanged, and so is any error
    that `log_internal_error` raises again. The files that the block wrote must be removed by then.
    """
    try:
        yield
    except passing:
        raise
    except Exception as error:
        is_of_storage = isinstance(error, (pa.ArrowException, OSError))
        why = str(error) if is_of_storage else log_internal_error(f"an attempt to {cannot}", error)
        raise RewriteFailed(f"Cannot {cannot}: {why}; the files written so far were removed", path=None) from error


def _nothing() -> None:
    """Do nothing: the file is closed already."""
