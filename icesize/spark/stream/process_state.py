"""The state that a process keeps between batches: catalogs, manifests, back-off, the last report. Losing it costs time.

A sink is a plain value that may be pickled to another process. All live objects are here, keyed by catalog, table UUID
and stream id. Their number is limited, except that a state in use by a sink or a table is never dropped. No lock that
streams of several catalogs share is held while a catalog is opened.
"""

from __future__ import annotations

import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar
from weakref import WeakValueDictionary, ref

from pyiceberg.catalog import Catalog
from pyspark.sql import SparkSession

from icesize.errors import EngineUnavailable
from icesize.planning.files import MAIN, PartitionKey
from icesize.planning.merging.contention import BackOff
from icesize.report import Report
from icesize.spark.engine import session
from icesize.spark.routing.learning import Learned
from icesize.spark.stream.background import Background
from icesize.table.catalog import opening
from icesize.table.state.handle import PolicyArgument, TableHandle

V = TypeVar("V")

_MOST_CATALOGS = 64
MOST_STATES = 256
"""Most tables, and most streams: some hundred streams of one driver keep their state."""


class Remembered(Generic[V]):
    """Up to `most` values, of which the least recently used are dropped. Threads share it.

    Values that are in use elsewhere are also found as long as they exist. A value that takes long to create delays no
    other one. If two threads create one at the same time, both get the first.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._newest: OrderedDict[Hashable, V] = OrderedDict()
        self._alive: WeakValueDictionary[Hashable, V] = WeakValueDictionary()

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """Return the value of a key. `make` creates it if there is none; its errors are raised."""
        with self._lock:
            value = self._alive.get(key)
        made = make() if value is None else value
        with self._lock:
            value = self._newest[key] = self._alive.setdefault(key, made)
            self._newest.move_to_end(key)
            if len(self._newest) > self._most:
                self._newest.popitem(last=False)
        return value


@dataclass(eq=False)
class GivenCatalog:
    """A catalog object that the user passed in. Its pickle has no object.

    In this process, an unpickled value is the same one, with the object. Another process opens a catalog from
    `properties`, if there are any.
    """

    text: str
    catalog: Catalog | None = field(default=None, repr=False)
    properties: opening.CatalogProperties | None = None

    def __reduce__(self) -> tuple[Callable[..., GivenCatalog], tuple[object, ...]]:
        return _unpickled, (self.text, self.properties)

    def opened(self, table: str) -> Catalog:
        """Return the catalog. Raises EngineUnavailable in another process without properties."""
        if self.catalog is None and self.properties is not None:
            # open outside the lock: a catalog that does not respond must not block other tables
            opened = self.properties.open()
            with _lock:
                self.catalog = self.catalog or opened
        if self.catalog is None:
            raise EngineUnavailable(
                f"Cannot open '{table}': the catalog object given to icesize.open lives in another process; "
                "configure the catalog in Spark (spark.sql.catalog.NAME.*) and open the table by name"
            )
        return self.catalog


def _unpickled(text: str, properties: opening.CatalogProperties | None) -> GivenCatalog:
    with _lock:
        return _given.setdefault(text, GivenCatalog(text, None, properties))


@dataclass(frozen=True)
class TableSource:
    """A branch of a table: name, policy argument, and the catalog object that the user passed in.

    Without a catalog object, the session's own settings apply. `table_uuid` identifies the table that was opened,
    because another table may have its name by now.
    """

    name: str
    policy: PolicyArgument = None
    catalog: GivenCatalog | None = None
    table_uuid: str | None = None
    branch: str = MAIN


@dataclass
class Opener:
    """The session that first used a table. It may have queried the table, so it must also see each commit."""

    session: ref[SparkSession] | None = None

    def of(self, spark: SparkSession) -> SparkSession:
        """Return the first session in the application of this one; that is this one if there was none."""
        with _lock:
            known = self.session() if self.session else None
            if known is None or not session.same_application(known, spark):
                known, self.session = spark, ref(spark)
            return known


@dataclass
class TableState:
    """One table, with the state that this process keeps of it and of the rows that are appended without a stream.

    `lock` admits one batch at a time, `commit_lock` one commit. `rows_upserted` are those of the last batch of
    upserts. `catalog` is found again as long as the state exists.
    """

    opener: Opener = field(default_factory=Opener)
    lock: threading.RLock = field(default_factory=threading.RLock)
    commit_lock: threading.Lock = field(default_factory=threading.Lock)
    backoff: BackOff[PartitionKey] = field(default_factory=BackOff)
    learned: Learned = field(default_factory=Learned)
    rows_upserted: int = 0
    handle: TableHandle | None = None
    catalog: GivenCatalog | None = None

    def open(self, spark: SparkSession, source: TableSource) -> TableHandle:
        """Return the table's handle, opened with the settings of the session.

        Raises EngineUnavailable in a process that was not given the catalog object, and TableNotFound for an unknown
        catalog.
        """
        # before the first column that workers compute: it names the Python of its time
        session.use_this_python(spark)
        settings = session.settings_of(spark)
        self.opener.of(spark)
        self.catalog = source.catalog
        handle = self.handle
        if handle is None or dict(handle.spark_conf) != settings or not same_policy(handle.policy, source.policy):
            handle = self.handle = TableHandle(
                *_open(source, settings), source.policy, settings, commit_lock=self.commit_lock, branch=source.branch
            )
        return handle

    def refresh(self, spark: SparkSession) -> None:
        """Make this session see the commit, and also the session that first used the table.

        A streaming query runs its batches in a copy of the user's session, and each session has its own catalog cache.
        """
        if self.handle is not None:
            for each in dict.fromkeys((spark, self.opener.of(spark))):
                session.refresh(each, self.handle.name, self.handle.spark_conf)


@dataclass
class StreamState(TableState):
    """One stream into one table, with the state that this process keeps of it.

    Background merges write their files beside a batch, but do not compete with it for the table's head: they commit
    under `commit_lock`. `last_batch_id` is the newest batch that arrived, even if it had no rows. `warned_of` has the
    warnings that the log has already.
    """

    background: Background = field(default_factory=Background)
    last_report: Report | None = None
    last_batch_id: int | None = None
    warned_of: set[str] = field(default_factory=set)


_lock = threading.Lock()
_opened: Remembered[Catalog] = Remembered(_MOST_CATALOGS)
_tables: Remembered[TableState] = Remembered(MOST_STATES)
_streams: Remembered[StreamState] = Remembered(MOST_STATES)
_given: WeakValueDictionary[str, GivenCatalog] = WeakValueDictionary()
"""Catalog objects by their text. Sources and states keep them alive."""


def table_state(source: TableSource) -> TableState:
    """Return the state of a table, created on first use. A table that took the name of another has its own state."""
    return _tables.get(_key(source), TableState)


def stream_state(source: TableSource, stream_id: str) -> StreamState:
    """Return the state of a stream into a table, created on first use."""

    def new() -> StreamState:
        return StreamState(table_state(source).opener)

    return _streams.get((*_key(source), stream_id), new)


def _key(source: TableSource) -> tuple[str, str, str]:
    # only the text: a key must not keep the catalog alive
    catalog = source.catalog.text if source.catalog is not None else opening.split_name(source.name)[0]
    return catalog, source.table_uuid or source.name, source.branch


def remember_catalog(catalog: Catalog) -> GivenCatalog:
    """Return what a sink contains instead of a catalog object, which cannot be pickled; the same one for an object."""
    with _lock:
        known = next((each for each in _given.values() if each.catalog is catalog), None)
        found = known or GivenCatalog(f"{catalog.name}-{uuid.uuid4().hex}", opening.with_timeout(catalog))
        return _given.setdefault(found.text, found)


def for_its_server(spark: SparkSession, source: TableSource) -> TableSource:
    """Return the source for a sink of this session. On Spark Connect, the server runs the batches.

    Raises EngineUnavailable for a catalog object that holds credentials.
    """
    given = source.catalog
    if given is None or given.catalog is None or not session.is_connect(spark):
        return source
    return replace(source, catalog=replace(given, properties=opening.CatalogProperties.of(given.catalog)))


def identified(spark: SparkSession, source: TableSource) -> TableSource:
    """Return the source with the UUID of the table that now has its name. Raises the errors of `open` and `load`."""
    settings = session.settings_of(spark)
    table = TableHandle(*_open(source, settings), source.policy, settings, branch=source.branch).load()
    return replace(source, table_uuid=table.uuid)


def same_policy(one: PolicyArgument, other: PolicyArgument) -> bool:
    """Return True if two policy arguments have the same effect for all properties of a table."""
    return one == other and getattr(one, "given", None) == getattr(other, "given", None)


def _open(source: TableSource, settings: Mapping[str, str]) -> tuple[Catalog, tuple[str, ...]]:
    if source.catalog is not None:
        catalog = source.catalog.opened(source.name)
        return catalog, opening.namespace_and_table(catalog, source.name)
    name, identifier = opening.split_name(source.name)
    configured = f"spark.sql.catalog.{name}" in settings
    properties = opening.pyiceberg_properties(name, settings) if configured else None
    key = (name, *sorted((properties or {}).items()))
    return _opened.get(key, lambda: opening.open_catalog(name, properties)), identifier
