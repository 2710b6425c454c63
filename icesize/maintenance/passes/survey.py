"""Surveys the tables of a catalog: the scan time that maintenance would save, from metadata alone.

Nothing is written, and rights to read are enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from operator import attrgetter
from threading import Event, Lock
from typing import TypeVar

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from icesize.environment import Environment
from icesize.errors import IcesizeError, TableError, UnsupportedTable
from icesize.events import Progress
from icesize.maintenance.jobs.compaction import plan_of_round
from icesize.maintenance.table_context import InThisProcess, TableContext
from icesize.planning.deletes.delete_plan import plan_delete_rewrites
from icesize.planning.insight.health import FORMULA, TableSurvey, parts_of
from icesize.planning.insight.scan_cost import A_COMMIT, LayoutCost, WorkCost
from icesize.planning.merging.groups import UNLIMITED, MergeBudget
from icesize.planning.plan import Plan
from icesize.planning.retention.planner import plan_retention
from icesize.policy import SizePolicy
from icesize.redaction import scrub
from icesize.results import Result, keys
from icesize.storage.locations import is_object_store
from icesize.table.catalog.access_errors import asking_again, said
from icesize.table.catalog.history import fact_of, head_snapshot, refs_of, summary_count
from icesize.table.catalog.opening import LIST, denied, responds
from icesize.table.catalog.tables import Ask, Name, NotLoaded, TablePattern, catalog_of, each_of, load_named, names_of
from icesize.table.cleanup.retention_inputs import ExpireOptions
from icesize.table.manifests.manifest_lists import Manifests, manifests_of
from icesize.table.manifests.packing import live_entries, worth_packing
from icesize.table.manifests.store import ManifestStore, Memory
from icesize.table.manifests.writer import target_manifest_bytes
from icesize.table.state.concurrent_writers import optimizer_of
from icesize.table.state.handle import Current, PolicyArgument, TableHandle
from icesize.table.storage.shared_location import check_may_delete
from icesize.units import format_count

T = TypeVar("T")

LookAtTable = Callable[[TableContext, Table], T]
"""Returns a result about a table from its context and its loaded metadata."""

RETRY_SECONDS = 120.0
"""Seconds during which one request is repeated if the catalog does not respond, or not now (429, 503)."""

LARGE_FILES = 200_000
"""Tables with more files are surveyed one at a time: the facts of this number of small files take about 100 MB."""


@dataclass(frozen=True)
class CatalogSurvey(Result):
    """The benefit of maintenance for the tables of a catalog.

    Attributes:
        pattern: The pattern that selected the tables.
        tables: The tables, those to which maintenance brings most first.
        skipped: Names without a survey: views, tables of other formats, unsupported and unreadable ones.
        doubts: Namespaces that could not be listed, as sentences.
        formula: The formula of the health score.
    """

    pattern: str
    tables: tuple[TableSurvey, ...]
    skipped: tuple[NotLoaded, ...] = ()
    doubts: tuple[str, ...] = ()
    formula: str = FORMULA

    KEYS = keys("files_saved", "bytes_to_write", "snapshots_due")

    @property
    def files_saved(self) -> int:
        """Files that full scans of all tables would open less after maintenance."""
        return sum(table.files_saved for table in self.tables)

    @property
    def bytes_to_write(self) -> int:
        """Bytes of data files that maintenance would rewrite."""
        return sum(table.bytes_to_write for table in self.tables)

    @property
    def snapshots_due(self) -> int:
        """Snapshots that would expire."""
        return sum(table.snapshots_due for table in self.tables)


def scan(
    pattern: str,
    *,
    catalog: Catalog | None = None,
    policy: PolicyArgument = None,
    environment: Environment | None = None,
    is_chosen: Callable[[str], bool] = lambda name: True,
) -> CatalogSurvey:
    """Rank the tables of a catalog by the scan time that maintenance would save.

    Only metadata are read, and nothing is written. A request that the catalog does not answer, or not now (429, 503),
    is repeated with growing pauses. A table that cannot be surveyed does not stop the others.

    Args:
        pattern: The catalog, a namespace in it, or a pattern: `lake`, `lake.db`, `lake.db.events_*`. A namespace
            includes the namespaces below it. The name of a table selects this table.
        catalog: A PyIceberg catalog. None opens the catalog of that name from PyIceberg's configuration.
        policy: A SizePolicy or a mapping of its keys. Each given key overrides the properties of every table.
        environment: The clock and the observer, which gets `Progress`; None uses the defaults.
        is_chosen: Called with the full name of each table that the pattern selects; False leaves it out.

    Returns:
        The tables, those to which maintenance brings most first, and the names that were skipped.

    Raises:
        ArgumentError: The pattern is malformed, or begins with the name of another catalog.
        PolicyError: The policy is invalid.
        TableNotFound: PyIceberg's configuration does not name the catalog.
        TableError: The catalog cannot be opened, or cannot list its namespaces.
    """
    selected = TablePattern.of(pattern)
    SizePolicy.resolve({}, policy)  # an error in it concerns all tables
    chosen = catalog_of(selected, catalog)
    with closing(chosen) if catalog is None else nullcontext():
        tables_chosen = CatalogTables(chosen, selected, environment or Environment(), policy, is_chosen)
        found, doubts = tables_chosen.look_at_each(lambda *table: survey_and_merges(*table)[0])
    tables = (result for result in found if isinstance(result, TableSurvey))
    skipped = (result for result in found if isinstance(result, NotLoaded))
    return CatalogSurvey(
        pattern,
        tuple(sorted(tables, key=lambda table: (-table.seconds_saved, table.table))),
        tuple(sorted(skipped, key=attrgetter("name"))),
        tuple(doubts),
    )


@dataclass(frozen=True)
class CatalogTables:
    """The tables of a catalog that a pattern and a filter select.

    Attributes:
        catalog: The catalog.
        pattern: Which of its tables.
        environment: Clock and observer.
        policy: A size policy, or some of its keys, for every table.
        is_chosen: Returns False for the full names of tables that are left alone.
    """

    catalog: Catalog
    pattern: TablePattern
    environment: Environment = field(default_factory=Environment)
    policy: PolicyArgument = None
    is_chosen: Callable[[str], bool] = lambda name: True

    def look_at_each(
        self, look: LookAtTable[T], stores: Callable[[str], ManifestStore] = lambda uuid: ManifestStore(Memory(), uuid)
    ) -> tuple[list[T | NotLoaded], list[str]]:
        """Return the results of `look` for the tables of a pattern, and sentences about namespaces without a listing.

        Full names for which `is_chosen` returns False are left out. `stores` returns the store of a table's UUID. By
        default, the facts about a table are dropped when it was looked at.

        Raises TableError if the catalog cannot list its namespaces.
        """
        catalog, environment = self.catalog, self.environment
        doubts, large, is_down = list[str](), Lock(), Event()

        def look_at(name: Name) -> T | NotLoaded:
            handle = TableHandle(catalog, name, self.policy, stores=stores)
            if is_down.is_set():
                return NotLoaded(name, "unreadable", "the catalog did not respond before")
            table = load_named(catalog, name, self._asking(handle.name))
            if isinstance(table, NotLoaded):
                # requests for a thousand tables would be repeated for two minutes each
                if table.kind == "unreadable" and not responds(catalog):
                    is_down.set()
                return table
            try:
                with large if _is_large(table.metadata) else nullcontext():
                    return look(TableContext(handle, environment, InThisProcess(0)), table)
            except UnsupportedTable as error:
                return NotLoaded(name, "unsupported", said(error))
            except Exception as error:  # storage clients and parsers raise their own errors; other tables are surveyed
                return NotLoaded(name, "unreadable", said(error))

        names = self._names(doubts.append)
        found = list[T | NotLoaded]()
        environment.observe(Progress("surveying", 0, len(names), "table"))
        for result in each_of(catalog)(look_at, names):
            found.append(result)
            environment.observe(Progress("surveying", len(found), len(names), "table"))
        return found, doubts

    def _asking(self, name: str) -> Ask:
        """Return what calls a function, and calls it again as long as the catalog does not respond."""
        return lambda function, *given: asking_again(self.environment, RETRY_SECONDS, name)(function, *given)

    def _names(self, doubt: Callable[[str], object]) -> list[Name]:
        """Return the names of the tables; `doubt` gets sentences about namespaces without a listing."""
        name = str(self.pattern)
        try:
            selected = names_of(self.catalog, doubt, self.pattern, self._asking(name))
            return [each for each in selected if self.is_chosen(".".join((self.catalog.name, *each)))]
        except Exception as error:  # each catalog client raises its own errors
            why = said(error) if isinstance(error, IcesizeError) else denied(error, LIST)
            raise TableError(f"Cannot list the tables of '{name}': {why}", pattern=self.pattern) from scrub(error)


def _is_large(metadata: TableMetadata) -> bool:
    head = head_snapshot(metadata)
    files = summary_count(head, "total-data-files") + summary_count(head, "total-delete-files") if head else 0
    return files > LARGE_FILES


def survey_and_merges(context: TableContext, table: Table, most_bytes: int | None = None) -> tuple[TableSurvey, Plan]:
    """Return the survey of one loaded table, by the plans of `maintain`, and those merges within `most_bytes`.

    None is no limit. Partitions that other writers change at the moment count like others, because they do not stay
    contested. The plan has the notes that the limit causes, and no others. Raises UnsupportedTable, PolicyError,
    TableError, and the errors of the storage.
    """
    current = context.handle.current(table)
    selection, metadata = context.select(current=current), table.metadata
    layout, manifests = selection.layout, manifests_of(head_snapshot(metadata), table.io, metadata.specs())
    plan = plan_of_round(context, selection, UNLIMITED, contested=())
    rewrites = plan_delete_rewrites(layout, current.policy)
    due, notes = _snapshots_due(current, context.environment.now_ms())
    if service := optimizer_of(metadata, table.catalog):
        notes = (*notes, f"{service} maintains the table")
    listed = [*manifests.data, *manifests.deletes]
    manifests_then = _manifests_then(metadata, manifests)
    steps = bool(rewrites) + (manifests_then < len(listed)) + bool(due)
    work = sum([A_COMMIT] * steps, WorkCost.of(plan))
    cost = LayoutCost.of(layout, plan, None)
    survey = TableSurvey(
        table=current.name,
        snapshot_id=layout.head.snapshot_id,
        partitions=len(layout.partitions),
        files=layout.files,
        size_bytes=layout.size_bytes,
        small_files=sum(len(facts.small) for facts in layout.partitions.values()),
        delete_files=sum(map(live_entries, manifests.deletes)),
        snapshots=len(metadata.snapshots),
        snapshots_due=due,
        metadata_bytes=len(table.io.new_input(table.metadata_location)),
        manifests=len(listed),
        manifest_bytes=sum(manifest.manifest_length for manifest in listed),
        files_to_merge=plan.files_removed,
        files_merged=plan.files_added,
        parts=parts_of(
            cost, rewrites, manifests_then=manifests_then, snapshots=len(metadata.snapshots), snapshots_due=due
        ),
        work=work,
        usd=work.usd if is_object_store(metadata.location) else None,
        notes=(*current.warnings, *notes),
    )
    if most_bytes is None or plan.bytes_to_write <= most_bytes:
        return survey, replace(plan, notes=())
    within = plan_of_round(context, selection, MergeBudget.hard(most_bytes), contested=())
    return survey, replace(within, notes=tuple(note for note in within.notes if note not in plan.notes))


def _manifests_then(metadata: TableMetadata, manifests: Manifests) -> int:
    """Return the number of manifests after small ones are merged."""
    target_bytes = target_manifest_bytes(metadata)
    packed = worth_packing(manifests.data, target_bytes).values()
    filled = (max(1, math.ceil(sum(m.manifest_length for m in some) / target_bytes)) for some in packed)
    spared = sum(len(some) - count for some, count in zip(packed, filled, strict=True))
    return len(manifests.data) + len(manifests.deletes) - max(0, spared)


def _snapshots_due(current: Current, now_ms: int) -> tuple[int, tuple[str, ...]]:
    """Return the number of snapshots that would expire, and notes.

    Versions of partitions are not looked up, because that reads the manifests of all snapshots.
    """
    metadata = current.table.metadata
    try:
        check_may_delete(current.table, current.name)
    except UnsupportedTable as error:
        return 0, (str(error),)
    rules = ExpireOptions().rules(metadata.properties, current.policy, now_ms)
    refs = refs_of(metadata)
    without_versions = replace(rules, keep_versions=None)
    expired = set(plan_retention([*map(fact_of, metadata.snapshots)], refs, without_versions, now_ms).expired)
    if rules.keep_versions is None or not expired:
        return len(expired), ()
    expired.difference_update(ref.snapshot_id for ref in refs if ref.holds_version)
    return len(expired), (f"'keep-versions' may keep some of {format_count(len(expired), 'snapshot')} that are due",)
