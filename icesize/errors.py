"""What can go wrong, as one tree.

    IcesizeError
    ├── PolicyError            a size policy that contradicts itself, or an unknown key
    ├── TableError             the table cannot be worked on
    │   ├── TableNotFound          no such catalog, namespace or table
    │   ├── ArgumentError          a filter or partition that cannot be read, or names what the table does not have
    │   ├── ClusteringOff          it says that it is clustered by what does not hold any more
    │   └── UnsupportedTable       a format, type or feature outside what icesize handles
    ├── BatchError             this micro-batch must not be committed
    │   ├── BatchOutOfOrder        its id is smaller than the last committed one
    │   ├── StreamMismatch         another query already writes under this stream id
    │   ├── SchemaMismatch         its columns or values do not fit the table
    │   └── BatchInterrupted       its query was stopped before it was finished
    ├── CommitConflict         nothing landed: others kept winning until the deadline
    ├── CommitStateUnknown     it may have landed: nothing was deleted, look before retrying
    ├── RewriteFailed          files could not be written; ours were removed, the table is unchanged
    └── EngineUnavailable      Spark, Java, packages that its workers need, or those of an extra are missing

The last words of each message say what to do. Facts are attributes (`table`, `snapshot_id`, ...), so that a
scheduler need not parse text.

Catalogs and storage may put credentials into the texts of their errors. Messages of ours hold none, and neither do the
errors that they are chained to, nor what the logger `icesize` writes: see `icesize.redaction`.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

from icesize.redaction import redacted, scrub


class IcesizeError(Exception):
    """Base of everything icesize raises; `facts` holds what the message was made from.

    The error that is being handled when it is made becomes its cause, or its context, and is scrubbed with it.
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
    """A size policy contradicts itself or names an unknown key."""


class TableError(IcesizeError):
    """The table cannot be worked on."""


class TableNotFound(TableError):
    """There is no such catalog, namespace or table."""


class ClusteringOff(TableError):
    """What the table says that it is clustered by does not hold: a column was dropped, say. `why` is for reports.

    Nothing else is hindered by that, and the next try ends the same until somebody changes the table.
    """


class ArgumentError(TableError):
    """A filter or a partition that was given cannot be read, or names what the table does not have."""


class UnsupportedTable(TableError):
    """The table uses a format, type or feature that icesize does not handle; the message names it."""


class BatchError(IcesizeError):
    """This micro-batch must not be committed; nothing of it is visible."""


class BatchOutOfOrder(BatchError):
    """The batch id is smaller than the last one committed for this stream."""


class StreamMismatch(BatchError):
    """Another query (another checkpoint) already writes under this stream id."""


class SchemaMismatch(BatchError):
    """Columns or values of the batch do not fit the table."""


class BatchInterrupted(BatchError):
    """The query was stopped while the batch was under way; Spark delivers it again when it is started again."""


class CommitConflict(IcesizeError):
    """Other writers won every attempt until the deadline; nothing landed and our files were removed."""


class CommitStateUnknown(IcesizeError):
    """The catalog's answer was lost, and the table does not show the outcome yet; nothing was deleted.

    `report`, of a call that commits several times, has what was committed before; without that it is not there.
    """


class RewriteFailed(IcesizeError):
    """Files could not be written; those already written were removed and the table is unchanged."""


class EngineUnavailable(IcesizeError):
    """Spark, Java, a package that Spark's workers need, or one of an extra (`icesize[report]`) is missing."""


_OUTSIDE = frozenset(
    {
        "adlfs", "aiohttp", "azure", "botocore", "fsspec", "gcsfs", "google", "ossfs", "py4j", "pyiceberg", "pyspark",
        "requests", "s3fs", "sqlalchemy", "thrift", "urllib3",
    }
)  # fmt: skip
"""Packages by which catalogs, storage and Spark are reached; their exceptions have no common base."""


def is_from_outside(error: BaseException) -> bool:
    """Return True for an error of catalog, storage, network or Spark, and False for a mistake in icesize."""
    packages = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    return isinstance(error, OSError) or not packages.isdisjoint(_OUTSIDE)
