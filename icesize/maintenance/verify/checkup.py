"""Checks whether icesize can work on a table: load it, and read, write and delete files.

The table does not change. Only a commit could show whether the catalog accepts commits, and none is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from icesize.environment import Environment
from icesize.planning.upsert_rule import PROPERTY, UpsertRule
from icesize.results import Result
from icesize.storage.table_storage import Storage
from icesize.table.catalog.access_errors import said
from icesize.table.catalog.history import NO_HISTORY, head_snapshot, hides_history
from icesize.table.cluster_settings import WRITES_FAIL, dead_sort_orders
from icesize.table.manifests.file_columns import read_facts
from icesize.table.manifests.manifest_lists import manifests_of
from icesize.table.manifests.store import ManifestStore
from icesize.table.state.handle import Current, TableHandle
from icesize.table.storage.listing import clock_difference, storage_now_ms
from icesize.table.storage.shared_location import check_may_delete
from icesize.table.upserts.state_files import bounds_reader
from icesize.units import format_bytes, format_count


@dataclass(frozen=True)
class Check(Result):
    """One checked subject.

    Attributes:
        name: The subject, such as `reading`.
        state: `ok`, `missing` (many commands work without it), or `failed`.
        detail: The details found, or the reason of the failure.
    """

    name: str
    state: Literal["ok", "missing", "failed"]
    detail: str


_SLOWER = "files are reached by PyIceberg's FileIO, with more and slower requests than by icesize's own client"


def check_up(handle: TableHandle, environment: Environment) -> Iterator[Check]:
    """Yield the checks of the table: loading, reading, writing and deleting.

    If the table cannot be loaded, that is the only check.
    """
    loaded = list[Current]()

    def load() -> str:
        loaded.append(handle.load())
        return _overview(loaded[0])

    yield check_of("table", load)
    for current in loaded:
        if why := Storage.of(current.table.io).why_through_file_io(current.table.location()):
            yield Check("storage", "missing", f"{_SLOWER}: {why}")
        yield check_of("reading", partial(_read, current))
        yield check_of("writing", partial(_written, current, environment))
        yield check_of("deleting", partial(_deletable, current))
        if hides_history(current.table.metadata):
            yield Check("history", "missing", NO_HISTORY)
        if dead := dead_sort_orders(current.table.metadata):
            yield Check("sort orders", "failed", _dead(dead))
        if PROPERTY in current.table.metadata.properties:
            yield check_of("upserts", partial(_bounded, current, handle.store))


def check_of(name: str, look: Callable[[], str]) -> Check:
    """Return a check with the details that `look` returns, or with the error that it raises."""
    try:
        return Check(name, "ok", look())
    except Exception as error:  # libraries of catalogs, storage and Spark have no common error class
        return Check(name, "failed", said(error))


def _overview(current: Current) -> str:
    metadata, kind = current.table.metadata, type(current.table.catalog).__name__
    counts = ((metadata.snapshots, "snapshot"), (metadata.partition_specs, "partition spec"), (metadata.refs, "ref"))
    has = ", ".join(format_count(len(some), noun) for some, noun in counts)
    seen = f"{current.name}, format version {metadata.format_version}, in a {kind}: {has}"
    return "; ".join((seen, *current.warnings))


def _dead(orders: Sequence[int]) -> str:
    numbers = ", ".join(map(str, orders))
    return (
        f"sort order {numbers} has a column that was dropped: {WRITES_FAIL} then (Cannot find source column for sort "
        "field). Make a schema that has the column the current one again"
    )


def _read(current: Current) -> str:
    """Read the newest manifest list, a manifest, and the last bytes of a data file, as a merge does."""
    table = current.table
    io = Storage.of(table.io).without_memory()
    manifests = manifests_of(head_snapshot(table.metadata), io, table.metadata.specs()).data
    read = (read_facts(io, manifest) for manifest in manifests)
    if (file := next((file for facts in read for file in facts.files(facts.live[:1])), None)) is None:
        return "the table has no data files yet"
    Storage.of(table.io).tail(file.path, file.size_bytes, 8)
    return f"{format_count(len(manifests), 'manifest')} and a data file of {format_bytes(file.size_bytes)}"


def _written(current: Current, environment: Environment) -> str:
    """Write and delete a file beside the metadata, whose time shows the storage's clock, and one beside the data."""
    table, settings = current.table, current.settings()
    now_ms = storage_now_ms(table.io, table.metadata.location.rstrip("/"), environment.new_id)
    probe = settings.locations.new_data_location(f"icesize-probe-{environment.new_id()}")
    with table.io.new_output(probe).create() as stream:
        stream.write(b"icesize looks whether it can write here\n")
    table.io.delete(probe)
    clock = clock_difference(now_ms - environment.now_ms()) or "that of this machine"
    return f"files were written and deleted in {table.metadata.location}, whose clock is {clock}"


def _bounded(current: Current, store: ManifestStore) -> str:
    """Count the data files that batches of upserts have to read because their bounds are unknown."""
    metadata, io = current.table.metadata, current.table.io
    rule = UpsertRule.of(metadata.properties)
    if rule is None:
        return "no key"
    manifests = manifests_of(head_snapshot(metadata), io, metadata.specs()).data
    files = bounds_reader(rule, metadata.schema(), store).files(metadata, io, manifests)
    unknown = [file.fact.path for file in files if None in file.bounds]
    counted = format_count(len(files), "data file")
    if not unknown:
        return f"{counted}, all with bounds of key and order"
    return f"{len(unknown):,} of {counted} have no bounds of key or order, so each batch reads them: {unknown[0]}"


def _deletable(current: Current) -> str:
    check_may_delete(current.table, current.name)
    return "expired snapshots' files may be deleted"
