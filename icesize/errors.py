"""All errors of icesize, as one tree.

    IcesizeError
    ├── PolicyError            a size policy that contradicts itself, or an unknown key
    ├── TableError             icesize cannot work on the table
    │   ├── TableNotFound          no such catalog, namespace or table
    │   ├── ArgumentError          a filter, partition or inventory that is malformed or names something missing
    │   ├── ClusteringOff          the table's clustering columns are no longer valid
    │   └── UnsupportedTable       a format, type or feature outside what icesize handles
    ├── BatchError             this micro-batch must not be committed
    │   ├── BatchOutOfOrder        its id is too small, or the branch lacks batches before it
    │   ├── StreamMismatch         another query already writes under this stream id
    │   ├── SchemaMismatch         its columns or values do not fit the table
    │   └── BatchInterrupted       its query was stopped before it was finished
    ├── CommitConflict         nothing was committed: each attempt conflicted with other writers, until the deadline
    ├── CommitStateUnknown     the outcome is unknown: nothing was deleted, check before retrying
    ├── RewriteFailed          files could not be written; icesize removed its own, the table is unchanged
    └── EngineUnavailable      Java, a package on the workers, or a package of an extra (PySpark) is missing

Most messages end with the next step. The values in a message are attributes of the error (`table`, `snapshot_id`, ...),
so that a scheduler need not parse text.

Catalogs and storage may include credentials in their error messages. icesize removes credentials from its own messages,
from the errors that they are chained to, and from the lines of the logger `icesize`: see `icesize.redaction`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from icesize.redaction import redacted, scrub


class IcesizeError(Exception):
    """Base of all errors of icesize; `facts` holds the values in the message.

    Each value is also an attribute. If another error caused this one, icesize also redacts that error.
    """

    def __init__(self, message: str, **facts: object) -> None:
        scrub(sys.exc_info()[1])
        super().__init__(redacted(message))
        self.facts: dict[str, Any] = facts

    def __getattr__(self, name: str) -> object:
        facts = self.__dict__.get("facts", {})
        if name in facts:
            return facts[name]
        raise AttributeError(name)

    def __reduce__(self) -> tuple[object, ...]:
        return partial(type(self), **self.facts), (str(self),)


class PolicyError(IcesizeError):
    """A size policy contradicts itself or has an unknown key."""


class TableError(IcesizeError):
    """icesize cannot work on the table."""


class TableNotFound(TableError):
    """The catalog, namespace or table does not exist."""


class ClusteringOff(TableError):
    """The clustering columns of the table are invalid, for example because one was dropped.

    Other operations still work. Retries fail until the table is changed. The attribute `why` has the reason, for
    reports.
    """


class ArgumentError(TableError):
    """A filter, a partition or an inventory is malformed, or names something missing."""


class UnsupportedTable(TableError):
    """The table uses a format, type or feature that icesize does not handle; the message names it."""


class BatchError(IcesizeError):
    """This micro-batch must not be committed; none of its rows is visible."""


class BatchOutOfOrder(BatchError):
    """The batch id is smaller than the last one committed for this stream, or the branch lacks batches before it."""


class StreamMismatch(BatchError):
    """Another query, with another checkpoint, already writes under this stream id."""


class SchemaMismatch(BatchError):
    """Columns or values of the batch do not fit the table."""


class BatchInterrupted(BatchError):
    """The query was stopped during the batch; Spark delivers the batch again after a restart."""


class CommitConflict(IcesizeError):
    """Other writers committed first until the deadline; nothing was committed, and icesize removed its files."""


class CommitStateUnknown(IcesizeError):
    """The catalog's response was lost, and the table does not show the outcome yet; nothing was deleted.

    The same call is safe to repeat, except an `append` without `stream_id` and `batch_id`: it may add its rows twice.

    Attributes:
        report: The report of the same call's earlier commits, which are visible; None if there are none.
    """

    report: object = None


class RewriteFailed(IcesizeError):
    """Files could not be written; icesize removed those already written, and the table is unchanged."""


class EngineUnavailable(IcesizeError):
    """Java, a package that Spark's workers need, or a package of an extra (`spark`, `report`, `otel`) is missing."""


@contextmanager
def needs_extra(extra: str, what: str) -> Iterator[None]:
    """Turn an ImportError of the block into EngineUnavailable, with the command that installs the extra."""
    try:
        yield
    except ImportError as error:
        reason = f"{error.name} is not installed" if isinstance(error, ModuleNotFoundError) else error
        raise EngineUnavailable(f"Cannot {what}: {reason}. Run {install_command(extra)}") from error


def install_command(extra: str) -> str:
    """Return the command that installs the packages of an extra; it needs a checkout until PyPI has a release."""
    return f"`pip install '.[{extra}]'` in the checkout of icesize"


_OUTSIDE = frozenset(
    {
        "adlfs", "aiohttp", "azure", "botocore", "fsspec", "gcsfs", "google", "obstore", "ossfs", "py4j", "pyiceberg",
        "pyspark", "requests", "s3fs", "sqlalchemy", "thrift", "urllib3",
    }
)  # fmt: skip
"""Packages that reach catalogs, storage and Spark. Their exceptions have no common base class."""


def is_from_outside(error: BaseException) -> bool:
    """Return True for an error of catalog, storage, network or Spark, and False for a mistake in icesize."""
    packages = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    return isinstance(error, OSError) or not packages.isdisjoint(_OUTSIDE)
