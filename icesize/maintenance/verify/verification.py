"""Checks that the metadata of a table agree with each other at its newest snapshot, with storage, and with the files.

Files are read only if the scope is deep; of a Puffin file, the footer is read in any case.

Iceberg's specification defines what has to agree (sections "Snapshots", "Manifests", "Sequence Numbers" and "Deletes").
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from pyiceberg.conversions import from_bytes
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent, ManifestFile, PartitionFieldSummary
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import NestedField, PrimitiveType, UnknownType

from icesize.environment import Environment, Stopwatch, rounded
from icesize.errors import ArgumentError, RewriteFailed, TableError
from icesize.events import Progress
from icesize.maintenance.table_context import TableContext
from icesize.maintenance.verify import v3_rules
from icesize.maintenance.verify.data_files import CONTENTS, NAN_BOUNDS, FileCheck, Resume, shared_row_ids
from icesize.maintenance.verify.storage import (
    BACK,
    DAMAGED,
    GONE,
    LOST,
    MOST_LOOKUPS,
    SIZES,
    STATISTICS,
    Found,
    StorageCheck,
    Stored,
    attempt,
    folders_of,
    listed_in,
)
from icesize.parquet.files.lineage_fields import FIRST_WITH_LINEAGE
from icesize.parquet.verify.entry import BOUNDS, COUNTS, ROWS
from icesize.planning.deletes.dangling_rule import DanglingCandidates
from icesize.planning.deletes.delete_reach import only_path, plain_path
from icesize.planning.files import DeleteFile, PartitionKey
from icesize.planning.upsert_rule import PROPERTY
from icesize.policy import SizePolicy
from icesize.results import Result, keys
from icesize.table.catalog.access_errors import readable
from icesize.table.catalog.history import head_snapshot, summary_of
from icesize.table.catalog.locations import normalised
from icesize.table.commit.steps.repair import Correction
from icesize.table.manifests.avro_values import NO_FIELD_IDS
from icesize.table.manifests.delete_index import DeleteIndex
from icesize.table.manifests.entries import ADDED, DELETED, EXISTING
from icesize.table.manifests.file_columns import MISSING, ManifestFacts, read_facts, totals_of
from icesize.table.manifests.manifest_lists import Manifests, manifests_of, read_list
from icesize.table.manifests.repeated_files import listed_twice
from icesize.table.manifests.store import ManifestStore
from icesize.table.storage.listing import Lister, list_files

B = TypeVar("B")

_STATUSES = {ADDED: "added", EXISTING: "existing", DELETED: "deleted"}


class Severity(str, Enum):
    """The meaning of a finding for readers."""

    ERROR = "error"
    """Readers may miss rows, return wrong ones, or fail."""
    WARNING = "warning"
    """It costs readers time only."""


@dataclass(frozen=True)
class Finding(Result):
    """A statement of the metadata that another one, or the storage, contradicts; or files that readers open in vain.

    Attributes:
        rule: The rule that is broken, such as `manifest counts`.
        path: The file that it is about.
        detail: What is wrong with it.
        severity: What it means for readers.
        advice: What to do about it.
    """

    rule: str
    path: str
    detail: str
    severity: Severity = Severity.ERROR
    advice: str = ""

    KEYS = keys("is_error")

    @property
    def is_error(self) -> bool:
        """True unless it costs readers time only."""
        return self.severity is Severity.ERROR

    @classmethod
    def of(cls, rule: str, path: str, detail: str) -> Finding:
        """Return the finding of a rule, with the severity and the advice of the rule."""
        advice = _WITHOUT_IDS if NO_FIELD_IDS in detail else ADVICE[rule]
        return cls(rule, path, detail, Severity.WARNING if rule in HARMLESS else Severity.ERROR, advice)


@dataclass(frozen=True)
class Verification(Result):
    """The outcome of a verification.

    Attributes:
        table: Name of the table.
        snapshot_id: The newest snapshot; None for a table without one.
        manifests: Number of its manifests that were read.
        files: Number of its live data files.
        delete_files: Number of its live delete files.
        findings: What is wrong, in the order of the rules: at most 1,000 of each rule.
        snapshots: Number of snapshots whose files were compared with the storage; 0 if none were.
        stored_files: Number of files in storage that these snapshots need.
        read_files: Number of their files that were read as a whole, also by the run that this one resumes.
        notes: Sentences about what was not verified.
        seconds: Seconds of each phase, and `total`.
    """

    table: str
    snapshot_id: int | None
    manifests: int
    files: int
    delete_files: int
    findings: tuple[Finding, ...]
    snapshots: int = 0
    stored_files: int = 0
    read_files: int = 0
    notes: tuple[str, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict, compare=False)

    KEYS = keys("is_valid")

    @property
    def is_valid(self) -> bool:
        """True if no finding is an error."""
        return not any(finding.is_error for finding in self.findings)


MOST_FINDINGS = 1_000
"""Most findings of one rule: if a whole directory is gone, all of its files are missing."""


@dataclass(frozen=True)
class Scope:
    """The comparisons of a verification, besides the metadata of the newest snapshot with each other.

    Attributes:
        lister: Lists the files of a directory; None compares nothing with the storage.
        is_inventory: True if `lister` reads an older inventory.
        newest_only: Compare the files of the newest snapshot only, not those of all kept ones.
        deep: Read the files, too.
        resume: A local file with the paths of verified files, for a run that continues where another one ended.
        is_for_repair: List all findings, look up all files, and read those with a wrong size even if it is not deep.
    """

    lister: Lister | None = None
    is_inventory: bool = False
    newest_only: bool = False
    deep: bool = False
    resume: Path | None = None
    is_for_repair: bool = False


METADATA = Scope()
"""Compare the metadata of the newest snapshot with each other, and nothing else."""


def verify(
    name: str, metadata: TableMetadata, io: FileIO, scope: Scope = METADATA, environment: Environment | None = None
) -> Verification:
    """Verify a table as `examine` does, and return the findings only."""
    return examine(name, metadata, io, scope, environment).verification


def verify_kept(context: TableContext, scope: Scope) -> Verification:
    """Verify the newest state of a table; leave out files of snapshots that expire during the call."""
    state = context.load()
    found = verify(state.name, state.table.metadata, state.table.io, scope, context.environment)
    if found.is_valid or not (now := context.load()).lacks_snapshots_of(state):
        return found
    return without_expired(found, state.table, now.table)


def without_expired(found: Verification, before: Table, now: Table) -> Verification:
    """Leave out findings about files that only snapshots needed that have expired since, because they rightly go.

    Args:
        found: The outcome of a verification.
        before: The table when it began.
        now: The table when it ended.
    """
    suspects = {finding.path for finding in found.findings if finding.rule in _OF_STORAGE}
    kept = {snapshot.snapshot_id for snapshot in now.metadata.snapshots}
    needed = suspects.intersection(_files_of(before, kept))
    findings = tuple(each for each in found.findings if each.rule not in _OF_STORAGE or each.path in needed)
    left_out = len(found.findings) - len(findings)
    note = f"{left_out:,} findings about files of snapshots that expired during this call are left out"
    return replace(found, findings=findings, notes=(*found.notes, *([note] if left_out else ())))


def _files_of(table: Table, snapshot_ids: Collection[int]) -> Iterator[str]:
    """Yield the files that some snapshots of a table name, as far as their manifests can be read."""
    metadata, manifests = table.metadata, dict[str, ManifestFile]()
    for statistics in (*metadata.statistics, *metadata.partition_statistics):
        if statistics.snapshot_id in snapshot_ids:
            yield statistics.statistics_path
    for snapshot in metadata.snapshots:
        if snapshot.snapshot_id in snapshot_ids:
            yield snapshot.manifest_list
            listed = attempt(lambda path: list(read_list(table.io, path, metadata.specs())), snapshot.manifest_list)
            if isinstance(listed, list):
                manifests |= {each.manifest_path: each for each in listed}
    for path, manifest in manifests.items():
        yield path
        facts = attempt(partial(read_facts, table.io), manifest)
        yield from facts.paths() if isinstance(facts, ManifestFacts) else ()


class Examined(NamedTuple):
    """A verification, the newest snapshot that was read, and the true facts of files whose entries are wrong."""

    verification: Verification
    subject: Subject
    true: Mapping[str, Correction]


def examine(
    name: str, metadata: TableMetadata, io: FileIO, scope: Scope = METADATA, environment: Environment | None = None
) -> Examined:
    """Verify the newest snapshot of a table, and the files of its snapshots.

    Args:
        name: Name of the table.
        metadata: The table's metadata.
        io: Reads its manifests.
        scope: What is compared with the storage.
        environment: Its observer gets the number of listed files; the clock measures the phases.

    Raises:
        ArgumentError: The inventory cannot be read.
        TableError: Manifests cannot be read, for another reason than that they are damaged or missing.
    """
    environment = environment or Environment()
    watch = Stopwatch(environment)
    found = Findings(sys.maxsize if scope.is_for_repair else MOST_FINDINGS)
    with readable(name):
        subject = Subject.read(metadata, io)
        found.add(subject.unreadable)
        for rule, look in RULES.items():
            if subject.snapshot and (not subject.unreadable or rule not in NEED_ALL_MANIFESTS):
                found.add((rule, path, detail) for path, detail in look(subject))
        watch.lap("metadata")
        check = _storage(subject, scope, environment, found) if scope.lister and subject.snapshot else None
        watch.lap("storage")
        read = _files(subject, scope, environment, found)
        watch.lap("files")
    head = subject.snapshot.snapshot_id if subject.snapshot else None
    files, deletes = (sum(facts.live.size for facts in some) for some in (subject.data, subject.deletes))
    verification = Verification(
        name, head, len(subject.all), files, deletes, tuple(found.findings),
        snapshots=len(_snapshots(subject, scope)) if check else 0,
        stored_files=check.files if check else 0,
        read_files=read.files,
        notes=tuple(found.notes),
        seconds=rounded(watch.seconds),
    )  # fmt: skip
    return Examined(verification, subject, read.true)


def _snapshots(subject: Subject, scope: Scope) -> list[Snapshot]:
    """Return the snapshots whose files are compared with the storage: the newest one first, then the others."""
    others = [] if scope.newest_only else subject.metadata.snapshots
    head = subject.snapshot
    return [*([head] if head else []), *(each for each in others if head is None or each is not head)]


def _storage(subject: Subject, scope: Scope, environment: Environment, found: Findings) -> StorageCheck | None:
    """Compare the files of snapshots with the storage; None if it cannot be listed."""
    metadata, io, folders = subject.metadata, subject.io, folders_of(subject.metadata)

    def progress(count: int) -> None:
        environment.observe(Progress("verify", count))

    try:
        listed = listed_in(scope.lister or list_files, io, folders)
        stored = Stored.of(listed, folders, not scope.is_inventory, progress)
    except ArgumentError:
        raise
    except TableError as error:
        found.notes.append(f"the files were not compared with the storage: {error}")
        return None
    check = StorageCheck(io, stored, sys.maxsize if scope.is_for_repair else MOST_LOOKUPS)
    known = {facts.path: facts for facts in subject.all}
    found.add(
        check.run(
            metadata, _snapshots(subject, scope),
            lambda manifest: known.get(manifest.manifest_path) or read_facts(io, manifest),
            [path for _, path, _ in subject.unreadable],
        )
    )  # fmt: skip
    found.add((BACK, path, "an older snapshot that is kept lists it as removed") for path in _back(subject, check))
    found.notes += check.notes
    return check


def _back(subject: Subject, check: StorageCheck) -> Iterator[str]:
    """Yield live data files that a snapshot has removed.

    Several vectors share a Puffin file, so that delete files are left out.
    """
    removed = np.unique(np.concatenate([np.empty(0, np.int64), *check.removed]))
    for facts in subject.data if removed.size else ():
        yield from subject.store.listing(subject.io, facts.manifest).paths_of(removed)


def _files(subject: Subject, scope: Scope, environment: Environment, found: Findings) -> FileCheck:
    """Read the files of snapshots and compare them with their entries."""
    metadata, io, known = subject.metadata, subject.io, found.paths(LOST, DAMAGED)
    only = None if scope.deep else found.paths(SIZES) if scope.is_for_repair else set[str]()
    check = FileCheck(metadata, io, Resume(scope.resume, str(metadata.table_uuid)), only=only)
    if only is not None and not only:
        return check
    lists = [each.manifest_list for each in _snapshots(subject, scope) if each.manifest_list not in known]
    manifests = {each.manifest_path: each for path in lists for each in read_list(io, path, metadata.specs())}
    wanted = [each for path, each in manifests.items() if path not in known]
    # a file that the listing lacks was reported
    found.add(
        each
        for each in check.run(wanted, lambda count: environment.observe(Progress("verify", count)))
        if each[0] != LOST or each[1] not in known
    )
    try:
        found.add(shared_row_ids(metadata, io, subject.data, subject.index, check.runs))
    except (RewriteFailed, TableError) as error:
        # delete files that cannot be read are findings, each by its own rule
        found.notes.append(f"row ids were not compared row by row: {error}")
    found.notes += check.notes
    return check


class Findings:
    """Findings, of each rule at most `most`, and notes."""

    def __init__(self, most: int = MOST_FINDINGS) -> None:
        self._most = most
        self.findings: list[Finding] = []
        self.notes: list[str] = []

    def paths(self, *rules: str) -> set[str]:
        """Return the files that the findings of some rules are about."""
        return {finding.path for finding in self.findings if finding.rule in rules}

    def add(self, found: Iterable[Found]) -> None:
        """Add findings of any rules; the number of those that are left out becomes a note."""
        counts = Counter[str]()
        for rule, path, detail in found:
            counts[rule] += 1
            if counts[rule] <= self._most:
                self.findings.append(Finding.of(rule, path, detail))
        for rule, count in counts.items():
            if count > self._most:
                self.notes.append(f"{rule}: the first {self._most:,} of {count:,} findings are listed")


@dataclass(frozen=True)
class Subject:
    """A snapshot with the facts of its data manifests and of its delete manifests, read from storage again.

    `unreadable` are findings: its manifest list and manifests that are missing or damaged.
    """

    metadata: TableMetadata
    snapshot: Snapshot | None
    data: list[ManifestFacts]
    deletes: list[ManifestFacts]
    store: ManifestStore
    io: FileIO
    unreadable: tuple[Found, ...] = ()

    @classmethod
    def read(cls, metadata: TableMetadata, io: FileIO) -> Subject:
        """Read the manifests of the newest snapshot."""
        # a store of its own, so that nothing is taken from memory
        snapshot, store, unreadable = head_snapshot(metadata), ManifestStore(), list[Found]()

        def found(path: str, read: B | TableError | None) -> list[B]:
            if isinstance(read, TableError):
                unreadable.append((DAMAGED, path, str(read)))
            elif read is None:
                unreadable.append((LOST, path, GONE))
            else:
                return [read]
            return []

        listed = partial(manifests_of, io=io, specs=metadata.specs())
        parts = found(snapshot.manifest_list, attempt(listed, snapshot)) if snapshot else []
        data, deletes = (
            [
                facts
                for manifest in manifests
                for facts in found(manifest.manifest_path, attempt(partial(store.facts, io), manifest))
            ]
            for manifests in (parts[0] if parts else Manifests([], []))
        )
        return cls(metadata, snapshot, data, deletes, store, io, tuple(unreadable))

    @property
    def all(self) -> list[ManifestFacts]:
        """The facts of all manifests."""
        return [*self.data, *self.deletes]

    @cached_property
    def index(self) -> DeleteIndex:
        """The live delete files."""
        manifests = [facts.manifest for facts in self.deletes]
        return DeleteIndex.of(self.store, self.io, manifests, self.metadata.specs())

    @cached_property
    def delete_files(self) -> list[DeleteFile]:
        """All live delete files, each deletion vector on its own."""
        return [file for some in (*self.index.by_partition.values(), self.index.everywhere) for file in some]

    @cached_property
    def position_deletes(self) -> list[DeleteFile]:
        """Position deletes that name one data file."""
        return [file for file in self.delete_files if not file.equality_ids and only_path(file) is not None]

    @cached_property
    def partitions_of_named(self) -> Mapping[str, PartitionKey]:
        """The partition of each live data file that a position delete names, by its `plain_path`."""
        wanted = {plain_path(only_path(delete) or "") for delete in self.position_deletes}
        return {
            plain: facts.keys[place]
            for facts in self.data
            for place, path in zip(facts.columns.partition[facts.live].tolist(), facts.paths(), strict=True)
            if (plain := plain_path(path)) in wanted
        }


def _manifest_counts(subject: Subject) -> Iterator[tuple[str, str]]:
    """A manifest list has the number of files and rows of each manifest, by status."""
    for facts in subject.all:
        columns, manifest = facts.columns, facts.manifest
        for status, name in _STATUSES.items():
            chosen = columns.status == status
            for kind, found in (("files", int(chosen.sum())), ("rows", int(columns.rows[chosen].sum()))):
                listed = getattr(manifest, f"{name}_{kind}_count")
                if listed is not None and listed != found:
                    yield facts.path, f"the manifest list has {listed:,} {name} {kind}, the manifest {found:,}"


def _sequence_numbers(subject: Subject) -> Iterator[tuple[str, str]]:
    """No number is larger than that of what contains it, and only added files inherit one."""
    metadata, snapshot = subject.metadata, subject.snapshot
    if metadata.format_version == 1 or snapshot is None:
        return
    head = snapshot.sequence_number or 0
    if head > metadata.last_sequence_number:
        detail = f"its sequence number is {head}, the last one of the table is {metadata.last_sequence_number}"
        yield snapshot.manifest_list, detail
    for facts in subject.all:
        manifest, live = facts.manifest, facts.live
        if manifest.sequence_number > head:
            yield facts.path, f"its sequence number is {manifest.sequence_number}, that of the snapshot {head}"
        without = (facts.columns.sequence_numbers == MISSING) & (facts.columns.status != ADDED)
        is_v1 = manifest.sequence_number == 0  # readers take the missing numbers of format v1 for 0
        if without.any() and not is_v1:
            yield facts.path, f"{int(without.sum()):,} entries that are not new have no sequence number"
        if not live.size:
            continue
        numbers = facts.sequence_numbers[live]
        if int(numbers.max()) > manifest.sequence_number:
            yield facts.path, f"a file has the number {int(numbers.max())}, its manifest {manifest.sequence_number}"
        if int(numbers.min()) < (manifest.min_sequence_number or 0):
            listed = manifest.min_sequence_number
            yield facts.path, f"a file has the number {int(numbers.min())}, below the listed minimum {listed}"


def _partition_values(subject: Subject) -> Iterator[tuple[str, str]]:
    """The partition values of a manifest lie within the bounds in the manifest list; readers skip it by these."""
    for facts in subject.all:
        spec = subject.metadata.specs().get(facts.manifest.partition_spec_id)
        if spec is None:
            yield facts.path, f"its partition spec {facts.manifest.partition_spec_id} is unknown"
            continue
        fields = spec.partition_type(subject.metadata.schema()).fields
        live = np.unique(facts.columns.partition[facts.live]).tolist()
        for place, (column, summary) in enumerate(zip(fields, facts.manifest.partitions or (), strict=False)):
            values = {facts.keys[at].values[place] for at in live}
            if (why := _outside(values, column, summary)) is not None:
                yield facts.path, f"partition field '{column.name}': {why}"


def _outside(values: Collection[Any], field: NestedField, summary: PartitionFieldSummary) -> str | None:
    """Return the reason why a reader could miss one of the values; None if it could not."""
    if None in values and not summary.contains_null:
        return "by the manifest list, no value is NULL"
    present = [value for value in values if value is not None]
    if summary.contains_nan is False and any(value != value for value in present):
        return "by the manifest list, no value is NaN"
    ordered = [value for value in present if value == value]
    if not ordered or isinstance(field.field_type, UnknownType) or not isinstance(field.field_type, PrimitiveType):
        return None
    lowest, highest = (
        None if bound is None else from_bytes(field.field_type, bound)
        for bound in (summary.lower_bound, summary.upper_bound)
    )
    if lowest is None or highest is None:
        return "the manifest list has no bounds, although there are values"
    if min(ordered) < lowest:
        return f"{min(ordered)!r} is below the lower bound {lowest!r}"
    if max(ordered) > highest:
        return f"{max(ordered)!r} is above the upper bound {highest!r}"
    return None


def _totals(subject: Subject) -> Iterator[tuple[str, str]]:
    """The summary of the snapshot has the totals of its manifests.

    Sizes are left out: no reader uses their total, and Spark's `add_files` commits a wrong one.
    """
    snapshot = subject.snapshot
    if snapshot is None:
        return
    for name, number in totals_of(subject.all).items():
        if name == "total-files-size":
            continue
        listed = summary_of(snapshot, name)
        if listed is not None and listed != str(number):
            yield snapshot.manifest_list, f"'{name}' of the snapshot is {listed}, the manifests have {number}"


def _listed_twice(subject: Subject) -> Iterator[tuple[str, str]]:
    """No file is listed more than once, and no deletion vector."""
    manifests = [facts.manifest for facts in subject.data]
    twice = listed_twice(subject.store.listing(subject.io, manifest) for manifest in manifests)
    times = Counter(map(normalised, subject.store.listed(subject.io, manifests, twice)))
    yield from ((path, f"the table lists it {times[path]} times") for path in sorted(twice))
    deletes = Counter((normalised(delete.path), delete.content_offset) for delete in subject.delete_files)
    yield from ((path, f"the table lists it {count} times") for (path, _), count in deletes.items() if count > 1)


def _deletes_of_others(subject: Subject) -> Iterator[tuple[str, str]]:
    """A position delete file that names one data file has its partition."""
    for delete in subject.position_deletes:
        partition = subject.partitions_of_named.get(plain_path(only_path(delete) or ""))
        # ranks, because NaN among the values equals nothing
        if partition is not None and partition.rank != delete.partition.rank:
            where = f"{delete.partition.label} of spec {delete.partition.spec_id}"
            yield delete.path, f"it is in partition {where}, its data file in {partition.label} of {partition.spec_id}"


def _dangling(subject: Subject) -> Iterator[tuple[str, str]]:
    """Each delete file may apply to a live data file."""
    index, least = subject.index, dict[PartitionKey, int]()
    candidates = DanglingCandidates.of(index.by_partition, index.everywhere, index.by_partition.keys(), {}, {})
    manifests = [facts.manifest for facts in subject.data] if candidates else []
    for manifest in manifests:
        for key, number in subject.store.listing(subject.io, manifest).least_numbers():
            least[key] = min(number, least.get(key, number))
    live = [*subject.store.listed(subject.io, manifests, candidates.asked)]
    for delete_id in sorted(candidates.dangling(least, live), key=str):
        yield delete_id if isinstance(delete_id, str) else delete_id[0], "it applies to no live data file"


def _references(subject: Subject) -> Iterator[tuple[str, str]]:
    """Refs name snapshots that are there, and the snapshot a schema that is there."""
    metadata, snapshot = subject.metadata, subject.snapshot
    known = {each.snapshot_id for each in metadata.snapshots}
    for name, ref in metadata.refs.items():
        if ref.snapshot_id not in known:
            yield metadata.location, f"the ref '{name}' names snapshot {ref.snapshot_id}, which is not there"
    schemas = {schema.schema_id for schema in metadata.schemas}
    if snapshot and snapshot.schema_id is not None and snapshot.schema_id not in schemas:
        yield snapshot.manifest_list, f"the snapshot has schema {snapshot.schema_id}, which is not there"


def _contents(subject: Subject) -> Iterator[tuple[str, str]]:
    """A manifest list names each manifest once."""
    times = Counter(facts.path for facts in subject.all)
    yield from ((path, f"the manifest list names it {count} times") for path, count in times.items() if count > 1)
    for facts in subject.deletes:
        if subject.metadata.format_version == 1:
            yield facts.path, f"a table of format v1 has a {ManifestContent.DELETES.name.lower()} manifest"


def _many_deletes(subject: Subject) -> Iterator[tuple[str, str]]:
    """In a table with upserts, few delete files apply to a data file: `max-delete-files`, but at least two.

    Batches of icesize keep to that in format v2, and other writers may not. Vectors have a rule of their own.
    """
    metadata = subject.metadata
    if PROPERTY not in metadata.properties or metadata.format_version >= FIRST_WITH_LINEAGE:
        return
    most = max(2, SizePolicy.resolve(metadata.properties)[0].max_delete_files)
    everywhere = len(subject.index.everywhere)
    for partition, deletes in subject.index.by_partition.items():
        named = Counter(path for delete in deletes if (path := only_path(delete)) is not None)
        [(path, own)] = named.most_common(1) or [("", 0)]
        count = everywhere + len(deletes) - named.total() + own
        if count > most:
            where = path or f"partition {partition.label}"
            yield where, f"{count} delete files may apply to a data file, more than {most} ('max-delete-files')"


RULES: Mapping[str, Callable[[Subject], Iterator[tuple[str, str]]]] = {
    "references": _references,
    "manifest list": _contents,
    "manifest counts": _manifest_counts,
    "sequence numbers": _sequence_numbers,
    "partition values": _partition_values,
    "totals": _totals,
    "listed twice": _listed_twice,
    "deletes of another partition": _deletes_of_others,
    "dangling deletes": _dangling,
    "many deletes": _many_deletes,
    "row ids": lambda subject: v3_rules.row_ids(subject.metadata, subject.snapshot, subject.data),
    "position delete files": lambda subject: v3_rules.new_position_deletes(subject.metadata, subject.deletes),
    "deletion vectors": lambda subject: v3_rules.vectors(subject.io, subject.delete_files),
}
"""The rules by name. Each yields files with what is wrong."""
_OF_STORAGE = frozenset({LOST, SIZES, DAMAGED, STATISTICS})
NEED_ALL_MANIFESTS = frozenset({"totals", "dangling deletes", "many deletes"})
"""Rules that say nothing if a manifest cannot be read."""
HARMLESS = frozenset({"dangling deletes", "many deletes", STATISTICS, NAN_BOUNDS})
"""Rules that are broken without a wrong row: readers open more files than they need, or plan worse."""
_BACK = "Roll back to a snapshot before it, or write the partition again"
ADVICE: Mapping[str, str] = {
    LOST: "Restore the file from a backup or an older version of the object. If it is lost for good, "
    "`icesize repair` removes the entries of data files",
    SIZES: "Run `icesize repair`, which corrects the size of a file that is whole; restore one that is cut off",
    DAMAGED: "Restore the file from a backup, or roll back to a snapshot that does not need it",
    STATISTICS: "Compute the statistics again; readers work without them",
    BACK: "Run `icesize compact` or write the file again before snapshots expire: the expiry of Iceberg's Java library "
    "deletes a file that an expired snapshot has removed",
    "references": "Drop the ref, or create it again on a snapshot that is there",
    "manifest list": "Run `icesize repair`",
    "manifest counts": "Run `icesize repair`; until then, readers may skip the manifest",
    "sequence numbers": "Run `icesize repair`, which corrects a listed minimum; roll back if another number is wrong",
    "partition values": "Run `icesize repair`; until then, filters by the partition may miss rows",
    "totals": "Run `icesize repair`; until then, counts without a filter may be wrong",
    "listed twice": "Run `icesize repair`; until then, its rows count twice",
    "deletes of another partition": "Delete the rows again; the delete file has no effect",
    "dangling deletes": "Run `icesize remove-dangling-deletes` or `icesize repair`",
    "many deletes": "Run `icesize compact` or `icesize rewrite-deletes`",
    "row ids": "Do not rely on row ids; write the files again, or roll back to a snapshot before",
    "position delete files": "Run `icesize rewrite-deletes`, or `icesize compact`",
    "deletion vectors": _BACK,
    CONTENTS: _BACK,
    NAN_BOUNDS: "Nothing has to be done: readers ignore such a bound, and so read the row group for every filter",
    ROWS: "Run `icesize repair --deep`; until then, counts may be wrong",
    COUNTS: "Run `icesize repair --deep`; until then, filters may miss rows",
    BOUNDS: "Run `icesize repair --deep`; until then, filters may miss rows",
}
"""The advice for the findings of each rule."""
_WITHOUT_IDS = (
    "The file is whole, but its writer left out the field ids that Iceberg requires, and no Iceberg reader finds its "
    "fields: roll back to a snapshot that does not need it, or write the table again with another writer"
)
