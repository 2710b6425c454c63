"""The state that a process keeps between batches: catalogs, manifests, back-off, the last report. Losing it costs time.

A sink is a plain value that may be pickled to another process. All live objects are here, keyed by catalog, table UUID
and stream id. Their number is limited, except that a state in use by a sink or a table is never dropped. No lock that
streams of several catalogs share is held while a catalog is opened.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from weakref import WeakValueDictionary, ref

from pyiceberg.catalog import Catalog
from pyspark.sql import SparkSession

from icesize.errors import EngineUnavailable
from icesize.planning.files import PartitionKey
from icesize.planning.merging.contention import BackOff
from icesize.report import Report
from icesize.spark.engine import session
from icesize.spark.routing.learning import Learned
from icesize.spark.stream.background import Background
from icesize.spark.stream.remembered import Remembered
from icesize.table.catalog import opening
from icesize.table.state.handle import PolicyArgument, TableHandle
from icesize.table.upserts.batch import UpsertMemory

_MOST_CATALOGS = 64
MOST_STATES = 256
"""Most tables, and most streams: some hundred streams of one driver keep their state."""


class CatalogToken(str):
    """Represents a catalog object that the user passed in, and keeps it alive; a pickle contains only the text."""

    catalog: Catalog | None = None

    def __reduce__(self) -> tuple[Callable[[str], CatalogToken], tuple[str]]:
        return _token, (str(self),)


def _token(text: str) -> CatalogToken:
    token = CatalogToken(text)
    token.catalog = _given.get(text)
    return token


@dataclass(frozen=True)
class TableSource:
    """A table without live objects: its name, its policy argument, and its catalog.

    `catalog_token` represents a catalog object that the user passed in; None means the session's own settings. Another
    process opens that catalog from `catalog_properties`. `table_uuid` identifies the table that was opened, because
    another table may have its name by now.
    """

    name: str
    policy: PolicyArgument = None
    catalog_token: CatalogToken | None = None
    table_uuid: str | None = None
    catalog_properties: opening.CatalogProperties | None = None


@dataclass
class Opener:
    """The session that first used a table. It may have queried the table, so that it must see each commit, too."""

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

    `lock` admits one batch at a time, `commit_lock` one commit. All streams of a table share `upserts`.
    `rows_upserted` are those of the last batch of upserts.
    """

    opener: Opener = field(default_factory=Opener)
    lock: threading.RLock = field(default_factory=threading.RLock)
    commit_lock: threading.Lock = field(default_factory=threading.Lock)
    backoff: BackOff[PartitionKey] = field(default_factory=BackOff)
    learned: Learned = field(default_factory=Learned)
    upserts: UpsertMemory = field(default_factory=UpsertMemory)
    rows_upserted: int | None = None
    handle: TableHandle | None = None

    def open(self, spark: SparkSession, source: TableSource) -> TableHandle:
        """Return the table's handle, opened with the settings of the session.

        Raises EngineUnavailable in a process that was not given the catalog object, and TableNotFound for an unknown
        catalog.
        """
        # before the first column that workers compute: it names the Python of its time
        session.use_this_python(spark)
        settings = session.settings_of(spark)
        self.opener.of(spark)
        handle = self.handle
        if handle is None or dict(handle.spark_conf) != settings or not same_policy(handle.policy, source.policy):
            handle = self.handle = TableHandle(*_open(source, settings), source.policy, settings)
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
    under `commit_lock`. `last_batch_id` is the newest batch that arrived, even if it had no rows. `warned_of_snapshots`
    is True if the log has the warning about too many snapshots, `warned_of_readers` if it has the one that upserts stop
    stream readers.
    """

    background: Background = field(init=False)
    last_report: Report | None = None
    last_batch_id: int | None = None
    warned_of_snapshots: bool = False
    warned_of_readers: bool = False

    def __post_init__(self) -> None:
        self.background = Background(self.commit_lock)


_lock = threading.Lock()
_opened: Remembered[Catalog] = Remembered(_MOST_CATALOGS)
_tables: Remembered[TableState] = Remembered(MOST_STATES)
_streams: Remembered[StreamState] = Remembered(MOST_STATES)
_given: WeakValueDictionary[str, Catalog] = WeakValueDictionary()
"""Catalog objects by the text of their tokens. Sources, and the handles in states, keep them alive."""


def table_state(source: TableSource) -> TableState:
    """Return the state of a table, created on first use. A table that took the name of another has its own state."""
    return _tables.get(_key(source), TableState)


def stream_state(source: TableSource, stream_id: str) -> StreamState:
    """Return the state of a stream into a table, created on first use."""

    def new() -> StreamState:
        table = table_state(source)
        return StreamState(table.opener, upserts=table.upserts)

    return _streams.get((*_key(source), stream_id), new)


def _key(source: TableSource) -> tuple[str, str]:
    # only the text of a token: a key must not keep the catalog alive
    return str(source.catalog_token or opening.split_name(source.name)[0]), source.table_uuid or source.name


def remember_catalog(catalog: Catalog) -> CatalogToken:
    """Return the token that a sink contains instead of a catalog object, which cannot be pickled."""
    with _lock:
        known = next((text for text, each in _given.items() if each is catalog), None)
        text = known or f"{catalog.name}-{uuid.uuid4().hex}"
        _given[text] = opening.with_timeout(catalog)
    return _token(text)


def for_its_server(spark: SparkSession, source: TableSource) -> TableSource:
    """Return the source for a sink of this session. On Spark Connect, the server runs the batches.

    Raises EngineUnavailable for a catalog object that holds credentials.
    """
    if source.catalog_token is None or not session.is_connect(spark):
        return source
    return replace(source, catalog_properties=opening.CatalogProperties.of(_given[source.catalog_token]))


def identified(spark: SparkSession, source: TableSource) -> TableSource:
    """Return the source with the UUID of the table that now has its name. Raises the errors of `open` and `load`."""
    settings = session.settings_of(spark)
    table = TableHandle(*_open(source, settings), source.policy, settings).load()
    return replace(source, table_uuid=table.uuid)


def same_policy(one: PolicyArgument, other: PolicyArgument) -> bool:
    """Return True if two policy arguments have the same effect for all properties of a table."""
    return one == other and getattr(one, "given", None) == getattr(other, "given", None)


def _open(source: TableSource, settings: Mapping[str, str]) -> tuple[Catalog, tuple[str, ...]]:
    if source.catalog_token is not None:
        catalog = _catalog_given(source, source.catalog_token)
        return catalog, opening.namespace_and_table(catalog, source.name)
    name, identifier = opening.split_name(source.name)
    configured = f"spark.sql.catalog.{name}" in settings
    properties = opening.pyiceberg_properties(name, settings) if configured else None
    key = (name, *sorted((properties or {}).items()))
    return _opened.get(key, lambda: opening.open_catalog(name, properties)), identifier


def _catalog_given(source: TableSource, token: CatalogToken) -> Catalog:
    catalog = _given.get(token)
    if catalog is None and source.catalog_properties is not None:
        # open outside the lock: a catalog that does not respond must not block other tables
        opened = source.catalog_properties.open()
        with _lock:
            catalog = token.catalog = _given.setdefault(str(token), opened)
    if catalog is None:
        raise EngineUnavailable(
            f"Cannot open '{source.name}': the catalog object given to icesize.open lives in another process; "
            "configure the catalog in Spark (spark.sql.catalog.NAME.*) and open the table by name"
        )
    return catalog
