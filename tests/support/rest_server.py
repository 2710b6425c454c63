"""A small Iceberg REST catalog in this process, for tests that must see a commit fail in a chosen way.

It speaks enough of the REST specification for PyIceberg's `RestCatalog` and for Spark's `type=rest`: namespaces,
tables of all format versions, and commits that are one compare-and-swap under a lock. Listings have pages if the client
asks for them. Metadata is kept in memory and written to the warehouse as JSON. Not there: staged creation, renaming,
reading of views, authentication, metrics.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from pyiceberg.catalog.rest import CreateTableRequest, RestCatalog
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    ForbiddenError,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.io import load_file_io
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table import CommitTableRequest
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    RemoveSnapshotsUpdate,
    TableUpdate,
    UpgradeFormatVersionUpdate,
    update_table_metadata,
)
from pyiceberg.typedef import IcebergBaseModel

from tests.support.rest_faults import Fault, Server

Identifier = tuple[str, ...]


class MiniRest:
    """The server, its state, and the faults that wait for the next commits; use it as a context manager.

    An exception that no catalog should raise is answered with 500 and raised again at the end of the `with` block,
    so that a mistake in the server or in a hook cannot pass for an injected fault.

    Attributes:
        requests: `<verb> <path> <status>` of everything answered, oldest first (a reset is not an answer).
        posts: bodies of all commit requests received, oldest first, whatever became of them.
        before_swap: called once, in the server, just before the next commit is applied; another writer commits here.
        stale_loads: so many of the next loads of a table show it as it was before its latest commit.
        token: bearer token that requests must carry; None: anybody may ask. `/v1/oauth/tokens` gives it away.
        like_java: treat the removal of snapshots that are gone already as Iceberg's Java library does: without a word,
            or with 400 if more are to be removed than are there.
        hides_history: show only the newest snapshot of a table, without parent and logs, as Nessie does.
        refuse_properties: answer 403 to commits that set or remove table properties.
        denied: rights that no client has: requests that need one of them are answered with 403. They are `list`
            (namespaces and tables), `load`, `commit` and `properties` (set or remove table properties).
        forbidden: namespaces and tables whose listing or load is answered with 403.
        views: names that are listed with the tables, and are views.
        credentials: asked at each load (and creation) of a table for the `config` that it vends; what it raises is
            the answer.
    """

    def __init__(self, warehouse: Path) -> None:
        self.requests: list[str] = []
        self.posts: list[dict[str, Any]] = []
        self.before_swap: Callable[[], None] | None = None
        self.stale_loads = 0
        self.token: str | None = None
        self.like_java = False
        self.hides_history = False
        self.refuse_properties = False
        self.denied: set[str] = set()
        self.forbidden: set[Identifier] = set()
        self.views: set[Identifier] = set()
        self.credentials: Callable[[], dict[str, str]] = dict
        self.namespaces: dict[Identifier, dict[str, str]] = {}
        self.errors: list[Exception] = []
        self._versions: dict[Identifier, list[tuple[TableMetadata, str]]] = {}
        self._warehouse = warehouse
        self._faults: deque[Fault] = deque()
        self._load_faults: deque[Fault] = deque()
        self._list_faults: deque[Fault] = deque()
        self._held, self._releases = threading.Semaphore(0), deque[threading.Event]()
        self._lock = threading.RLock()
        self._catalogs: list[RestCatalog] = []
        self._server = Server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def uri(self) -> str:
        """Where clients find the catalog: `http://127.0.0.1:<port>`."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> MiniRest:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for held in self._releases:
            held.set()
        for catalog in self._catalogs:
            catalog.close()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        if self.errors and error is None:
            raise self.errors[0]

    def catalog(self, name: str = "mini", **properties: str) -> RestCatalog:
        """A new PyIceberg client of this server; its connections are closed with the server."""
        catalog = RestCatalog(name, uri=self.uri, **properties)
        self._catalogs.append(catalog)
        return catalog

    def fail_next_commit(self, *faults: Fault) -> None:
        """Queue faults: each is spent by one of the next commit requests, in this order."""
        self._faults.extend(faults)

    def fail_next_load(self, *faults: Fault) -> None:
        """The same for the next loads of tables; none of them may be a `hang`."""
        if any(fault.kind == "hang" for fault in faults):
            raise ValueError("Cannot hold a load: only commits can hang")
        self._load_faults.extend(faults)

    def fail_next_list(self, *faults: Fault) -> None:
        """The same for the next listings of namespaces or tables."""
        self._list_faults.extend(faults)

    def wait_until_held(self, timeout_s: float = 30.0) -> None:
        """Block until a `hang` holds one more commit request; raises `TimeoutError` when none comes."""
        if not self._held.acquire(timeout=timeout_s):
            raise TimeoutError(f"Cannot wait longer: no commit request was held within {timeout_s} s")

    def release(self) -> None:
        """Let the commit request that has been held longest go on."""
        self._releases.popleft().set()

    def hold(self) -> None:
        """Keep the calling request waiting until the test releases it, or the server ends."""
        release = threading.Event()
        self._releases.append(release)
        self._held.release()
        release.wait()

    def next_fault(self, post: dict[str, Any]) -> Fault | None:
        """Record a commit request and take the fault that is due for it."""
        with self._lock:
            self.posts.append(post)
            return self._faults.popleft() if self._faults else None

    def next_load_fault(self) -> Fault | None:
        """Take the fault that is due for a load."""
        with self._lock:
            return self._load_faults.popleft() if self._load_faults else None

    def next_list_fault(self) -> Fault | None:
        """Take the fault that is due for a listing."""
        with self._lock:
            return self._list_faults.popleft() if self._list_faults else None

    def check_right(self, right: str) -> None:
        """Raise `ForbiddenError` for a right that is denied."""
        if right in self.denied:
            raise ForbiddenError(f"Principal has not the right: {right}")

    def check_allowed(self, name: Identifier) -> None:
        """Raise `ForbiddenError` for a namespace or a table that is forbidden."""
        if name in self.forbidden:
            raise ForbiddenError(f"Principal may not read {'.'.join(name)}")

    def tables(self, namespace: Identifier) -> list[Identifier]:
        """Identifiers of the tables and views in a namespace, sorted."""
        with self._lock:
            self._require(namespace)
            return sorted(table for table in (*self._versions, *self.views) if table[:-1] == namespace)

    def create_namespace(self, namespace: Identifier, properties: dict[str, str]) -> None:
        """Raises `NamespaceAlreadyExistsError` for a namespace that is there."""
        with self._lock:
            if namespace in self.namespaces:
                raise NamespaceAlreadyExistsError(f"Namespace exists: {'.'.join(namespace)}")
            self.namespaces[namespace] = properties

    def drop_namespace(self, namespace: Identifier) -> None:
        """Raises `NamespaceNotEmptyError` while tables are in it."""
        with self._lock:
            if self.tables(namespace):
                raise NamespaceNotEmptyError(f"Namespace is not empty: {'.'.join(namespace)}")
            del self.namespaces[namespace]

    def namespace(self, namespace: Identifier) -> dict[str, str]:
        """Properties of a namespace; raises `NoSuchNamespaceError`."""
        with self._lock:
            return self._require(namespace)

    def create(self, namespace: Identifier, body: dict[str, Any]) -> bytes:
        """Create an empty table and return its load answer."""
        # PyIceberg's own request model demands fields that the specification leaves out at will.
        unset = {"location": None, "partition-spec": None, "write-order": None}
        request = CreateTableRequest.model_validate(unset | body)
        if request.stage_create:
            raise NotImplementedError("Cannot stage the creation of a table: create it, then write to it")
        with self._lock:
            self._require(namespace)
            table = (*namespace, request.name)
            if table in self._versions:
                raise TableAlreadyExistsError(f"Table exists: {'.'.join(table)}")
            metadata = new_table_metadata(
                request.table_schema,
                request.partition_spec or UNPARTITIONED_PARTITION_SPEC,
                request.write_order or UNSORTED_SORT_ORDER,
                request.location or self._warehouse.joinpath(*table).as_uri(),
                request.properties,
            )
            if metadata.format_version == 3:
                metadata = metadata.model_copy(update={"next_row_id": 0})
            self._versions[table] = [(metadata, self._write(metadata, 0))]
            return self._answer(*self._versions[table][-1], self.credentials())

    def load(self, table: Identifier) -> bytes:
        """The newest version of a table, or the one before it while `stale_loads` lasts."""
        with self._lock:
            versions = self._existing(table)
            stale = self.stale_loads > 0 and len(versions) > 1
            self.stale_loads -= stale
            return self._answer(*versions[-2 if stale else -1], self.credentials())

    def drop(self, table: Identifier) -> None:
        """Forget a table; its files stay. Raises `NoSuchTableError`."""
        with self._lock:
            self._existing(table)
            del self._versions[table]

    def commit(self, table: Identifier, body: dict[str, Any]) -> bytes:
        """Check the requirements and swap the metadata, as one step; raises `CommitFailedException` on a conflict."""
        with self._lock:
            hook, self.before_swap = self.before_swap, None
        if hook is not None:
            hook()
        identifier = {"namespace": list(table[:-1]), "name": table[-1]}
        request = CommitTableRequest.model_validate({"identifier": identifier} | body)
        if any(update.action in ("set-properties", "remove-properties") for update in request.updates):
            self.check_right("properties")
            if self.refuse_properties:
                raise ForbiddenError("Principal may not change table properties")
        with self._lock:
            versions = self._existing(table)
            metadata, location = versions[-1]
            for requirement in request.requirements:
                is_new = isinstance(requirement, AssertRefSnapshotId) and requirement.snapshot_id is None
                # Iceberg accepts a new branch in a table without snapshots, which PyIceberg refuses
                if metadata.snapshots or not is_new:
                    requirement.validate(metadata)
            updates = tuple(_as_java(metadata, each) for each in request.updates) if self.like_java else request.updates
            _check_order(metadata, updates)
            upgraded, others = _as_v3(metadata, updates, location)
            changed = update_table_metadata(upgraded, others, metadata_location=location)
            if changed != metadata:
                versions.append((changed, self._write(changed, len(versions))))
            return self._answer(*versions[-1])

    def _require(self, namespace: Identifier) -> dict[str, str]:
        if namespace not in self.namespaces:
            raise NoSuchNamespaceError(f"Namespace does not exist: {'.'.join(namespace)}")
        return self.namespaces[namespace]

    def _existing(self, table: Identifier) -> list[tuple[TableMetadata, str]]:
        if table not in self._versions:
            raise NoSuchTableError(f"Table does not exist: {'.'.join(table)}")
        return self._versions[table]

    def _answer(self, metadata: TableMetadata, location: str, config: dict[str, str] | None = None) -> bytes:
        return _load_answer(_newest_only(metadata) if self.hides_history else metadata, location, config)

    def _write(self, metadata: TableMetadata, version: int) -> str:
        provider = load_location_provider(metadata.location, metadata.properties)
        location = provider.new_table_metadata_file_location(version)
        with load_file_io({}, location).new_output(location).create() as stream:
            stream.write(_json(metadata).encode())
        return location


def _newest_only(metadata: TableMetadata) -> TableMetadata:
    head = metadata.current_snapshot()
    newest = [head.model_copy(update={"parent_snapshot_id": None})] if head else []
    return metadata.model_copy(update={"snapshots": newest, "metadata_log": [], "snapshot_log": []})


def _as_java(metadata: TableMetadata, update: TableUpdate) -> TableUpdate:
    if not isinstance(update, RemoveSnapshotsUpdate):
        return update
    known = {snapshot.snapshot_id for snapshot in metadata.snapshots}
    if (size := len(known) - len(update.snapshot_ids)) < 0:
        raise BadRequestError(f"arraySize cannot be negative but was: {size}")
    return RemoveSnapshotsUpdate(snapshot_ids=[each for each in update.snapshot_ids if each in known])


def _as_v3(
    metadata: TableMetadata, updates: tuple[TableUpdate, ...], location: str
) -> tuple[TableMetadata, tuple[TableUpdate, ...]]:
    """Carry out upgrades to format v3, which PyIceberg refuses; the other updates are left."""
    others = tuple(u for u in updates if not (isinstance(u, UpgradeFormatVersionUpdate) and u.format_version == 3))
    if len(others) == len(updates) or metadata.format_version == 3:
        return metadata, others
    document = json.loads(_json(metadata)) | {"format-version": 3, "next-row-id": 0}
    if not others:  # PyIceberg's updates write the log themselves
        log = {"metadata-file": location, "timestamp-ms": metadata.last_updated_ms}
        document["metadata-log"] = [*document.get("metadata-log", ()), log]
    return TableMetadataUtil.parse_obj(document), others


def _check_order(metadata: TableMetadata, updates: tuple[TableUpdate, ...]) -> None:
    """Refuse a snapshot on format v3 that another commit has overtaken, as PyIceberg does on v2 only."""
    if metadata.format_version == 3:
        numbers = [u.snapshot.sequence_number or 0 for u in updates if isinstance(u, AddSnapshotUpdate)]
        if numbers and numbers[0] <= metadata.last_sequence_number:
            raise CommitFailedException(f"Sequence number {numbers[0]} was taken by another commit")


def _json(metadata: TableMetadata) -> str:
    """The metadata as JSON; PyIceberg's own method refuses format v3."""
    return IcebergBaseModel.model_dump_json(metadata)


def _load_answer(metadata: TableMetadata, location: str, config: dict[str, str] | None = None) -> bytes:
    head = f'{{"metadata-location": {json.dumps(location)}, "config": {json.dumps(config or {})}, "metadata": '
    return f"{head}{_json(metadata)}}}".encode()
