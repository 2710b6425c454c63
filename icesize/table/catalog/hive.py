"""Hive metastores: which tables and servers cannot be used, and who holds the lock of a table."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timezone

from pyiceberg.catalog import Catalog

from icesize.redaction import redacted
from icesize.table.catalog.pyiceberg_internals import thrift_client

LOCK_ENABLED = "engine.hive.lock-enabled"
UNLOCKED = (
    f"'{LOCK_ENABLED}' is false, so that other writers commit without the metastore's lock, and a commit of icesize "
    f"could overwrite theirs. Remove the property (ALTER TABLE ... UNSET TBLPROPERTIES ('{LOCK_ENABLED}'))"
)
HIVE_4 = "the metastore is of Hive 4, which lacks calls that PyIceberg's and Spark's clients; use Hive 3.1 or REST"


def is_hive(catalog: Catalog) -> bool:
    """Return True for a Hive metastore. The class is compared by name, because its packages are optional."""
    return any(kind.__name__ == "HiveCatalog" for kind in type(catalog).__mro__)


def is_hive_4(error: BaseException) -> bool:
    """Return True for the answer of a metastore that lacks the calls of older clients."""
    return type(error).__name__ == "TApplicationException" and "Invalid method name" in str(error)


def lock_holder(catalog: Catalog, table: tuple[str, ...]) -> str:
    """Return the lock of a table that others wait for, with its owner; empty if the metastore does not show it."""
    with suppress(Exception):  # this is only said in an error message; each thrift server has its own errors
        from hive_metastore.ttypes import LockState, ShowLocksRequest

        with thrift_client(catalog) as client:
            locks = client.show_locks(ShowLocksRequest(dbname=table[-2], tablename=table[-1])).locks
        held = next(lock for lock in locks if lock.state == LockState.ACQUIRED)
        since = datetime.fromtimestamp(held.acquiredat / 1000, timezone.utc)
        return redacted(f"lock {held.lockid}, held by {held.user}@{held.hostname} since {since:%Y-%m-%d %H:%M:%S} UTC")
    return ""
