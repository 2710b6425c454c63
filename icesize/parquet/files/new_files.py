"""The files of one writer, in whatever process: they are closed and removed when the work on them fails."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from icesize.errors import RewriteFailed
from icesize.parquet.files.names import FileNames, data_location
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.files.uncommitted import Uncommitted
from icesize.parquet.format.refusals import log_internal_error
from icesize.planning.files import PartitionKey


class NewFiles:
    """The files that one thread writes for one piece of work, such as a group to merge or the rows of a Spark task: by
    which settings, and under which names."""

    def __init__(self, settings: WriteSettings, names: FileNames) -> None:
        self.settings = settings
        self._names = names
        self._owner = names.owner or Uncommitted(settings.storage, names.prefix)
        self._begun: dict[str, Callable[[], object]] = {}

    def location(self, partition: PartitionKey) -> str:
        """Where the next file of a partition goes."""
        return data_location(self.settings, partition, self._names.next())

    def create(self, location: str) -> Any:
        """A binary stream that becomes the file when closed, as `Uncommitted.create` gives it."""
        self._begun[location] = _nothing
        self._begun[location] = (stream := self._owner.create(location)).close
        return stream

    def close_by(self, location: str, close: Callable[[], object]) -> None:
        """Say how a file is closed that must go before it is finished, if closing its stream is not all.

        Where another thread finishes the file, `close` waits for that.
        """
        self._begun[location] = close

    def finished(self, location: str, written_bytes: int) -> None:
        """Take a closed file for finished, once storage holds all of it; raises as `Uncommitted.finished` does."""
        self._owner.finished(location, written_bytes)
        self._begun[location] = _nothing

    @contextmanager
    def all_or_none(self) -> Iterator[None]:
        """Files that are begun in the block are removed, best effort, when an error or Ctrl-C leaves it.

        Blocks may lie in one another: one attempt in the work that may try again.
        """
        before = set(self._begun)
        try:
            yield
        except BaseException:
            for location in [location for location in self._begun if location not in before]:
                # closed first: a dropped stream of an object store would complete a truncated object after the deletion
                with contextlib.suppress(Exception):
                    self._begun.pop(location)()
                self._owner.delete([location])
            raise


@contextmanager
def rewrite_failed(cannot: str, *passing: type[Exception]) -> Iterator[None]:
    """Raise `RewriteFailed` for an error of Arrow or of storage, and for a bug of icesize, which is logged and named.

    Those of `passing` pass, and what `log_internal_error` raises again. What the block wrote has to be removed by then.
    """
    try:
        yield
    except passing:
        raise
    except Exception as error:
        is_of_storage = isinstance(error, (pa.ArrowException, OSError))
        why = str(error) if is_of_storage else log_internal_error(f"an attempt to {cannot}", error)
        raise RewriteFailed(f"Cannot {cannot}: {why}, what was written is removed", path=None) from error


def _nothing() -> None:
    """A file that is closed already."""
