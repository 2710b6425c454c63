"""Checks that the metadata of a table agree with each other at its newest snapshot, with storage, and with the files.

Files are read only if the scope is deep; of a Puffin file, the footer is read in any case.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pyiceberg.io import FileIO
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from icesize.environment import Environment, Stopwatch, rounded
from icesize.errors import ArgumentError, RewriteFailed, TableError
from icesize.events import Progress
from icesize.maintenance.table_context import TableContext
from icesize.maintenance.verify.data_files import FileCheck, Resume, shared_row_ids
from icesize.maintenance.verify.metadata_rules import RULES, Subject
from icesize.maintenance.verify.rules import (
    BACK,
    DAMAGED,
    LOST,
    SIZES,
    STATISTICS,
    Found,
    Rule,
    Severity,
)
from icesize.maintenance.verify.storage import MOST_LOOKUPS, StorageCheck, Stored, folders_of, listed_in
from icesize.results import Result, keys
from icesize.storage.table_storage import Storage
from icesize.table.catalog.access_errors import readable
from icesize.table.commit.steps.repair import Correction
from icesize.table.manifests.file_columns import read_facts
from icesize.table.manifests.manifest_lists import read_list
from icesize.table.storage.listing import Lister, list_files
from icesize.table.storage.reachable import listed_files


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
    def of(cls, found: Found) -> Finding:
        """Return what a rule has found, with the severity and the advice of the rule."""
        rule = found.rule
        return cls(rule.name, found.path, found.detail, rule.severity, rule.advice)


@dataclass(frozen=True)
class Verification(Result):
    """The outcome of a verification.

    Attributes:
        table: Name of the table.
        snapshot_id: The newest snapshot; None for a table without one.
        manifests: Number of its manifests that were read.
        files: Number of its live data files.
        delete_files: Number of its live delete files.
        findings: The broken rules, each with the file that breaks it. At most 1,000 of each rule are listed.
        snapshots: Number of snapshots whose files were compared with the storage; 0 if none were.
        stored_files: Number of files in storage that these snapshots need.
        read_files: Number of their files that were read as a whole, also by the run that this one resumes.
        notes: Sentences about what was not verified, and about rules with more findings than are listed.
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
        newest_only: Compare only the files of the newest snapshot, not those of all kept ones.
        deep: Also read the files.
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


_OF_STORAGE = {rule.name for rule in (LOST, SIZES, DAMAGED, STATISTICS)}


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
    metadata = table.metadata
    for statistics in (*metadata.statistics, *metadata.partition_statistics):
        if statistics.snapshot_id in snapshot_ids:
            yield statistics.statistics_path
    lists = [each.manifest_list for each in metadata.snapshots if each.snapshot_id in snapshot_ids]
    yield from listed_files(table.io, lists, set(), lacking=(FileNotFoundError, TableError))


class Examined(NamedTuple):
    """A verification, what it has found, the newest snapshot, and the true facts of files whose entries are wrong."""

    verification: Verification
    found: Sequence[Found]
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
        subject = Subject.read(metadata, Storage.of(io).without_memory())
        found.add(subject.unreadable)
        for rule, look, is_certain in RULES if subject.snapshot else ():
            found.add(Found(rule, path, detail, is_certain) for path, detail in look(subject))
        watch.lap("metadata")
        check = _storage(subject, scope, environment, found) if scope.lister and subject.snapshot else None
        watch.lap("storage")
        read = _files(subject, scope, environment, found)
        watch.lap("files")
    head = subject.snapshot.snapshot_id if subject.snapshot else None
    files, deletes = (sum(facts.live.size for facts in some) for some in (subject.data, subject.deletes))
    verification = Verification(
        name, head, len(subject.all), files, deletes, tuple(map(Finding.of, found.found)),
        snapshots=len(_snapshots(subject, scope)) if check else 0,
        stored_files=check.files if check else 0,
        read_files=read.files,
        notes=tuple(found.notes),
        seconds=rounded(watch.seconds),
    )  # fmt: skip
    return Examined(verification, found.found, subject, read.true)


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
        found.unverified.append(f"the files were not compared with the storage: {error}")
        return None
    check = StorageCheck(io, stored, sys.maxsize if scope.is_for_repair else MOST_LOOKUPS)
    known = {facts.path: facts for facts in subject.all}
    found.add(
        check.run(
            metadata, _snapshots(subject, scope),
            lambda manifest: known.get(manifest.manifest_path) or read_facts(io, manifest),
            [each.path for each in subject.unreadable],
        )
    )  # fmt: skip
    why = "an older snapshot that is kept lists it as removed"
    found.add(Found(BACK, path, why) for path in _back(subject, check))
    found.unverified += check.notes
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
        if each.rule != LOST or each.path not in known
    )
    try:
        found.add(shared_row_ids(metadata, io, subject.data, subject.index, check.runs))
    except (RewriteFailed, TableError) as error:
        # delete files that cannot be read are findings, each by its own rule
        found.unverified.append(f"row ids were not compared row by row: {error}")
    found.unverified += check.notes
    return check


class Findings:
    """Findings, of each rule at most `most`, and sentences about what was not verified."""

    def __init__(self, most: int = MOST_FINDINGS) -> None:
        self._most = most
        self._counts = Counter[str]()
        self._paths = defaultdict[str, set[str]](set)
        self.found: list[Found] = []
        self.unverified: list[str] = []

    @property
    def notes(self) -> list[str]:
        """Sentences about what was not verified, and about rules with more findings than are listed."""
        counts = {name: count for name, count in self._counts.items() if count > self._most}
        left_out = [f"{name}: the first {self._most:,} of {n:,} findings are listed" for name, n in counts.items()]
        return [*self.unverified, *left_out]

    def paths(self, *rules: Rule) -> set[str]:
        """Return the files that the findings of some rules are about, also of findings that are not listed."""
        return {path for rule in rules for path in self._paths[rule.name]}

    def add(self, found: Iterable[Found]) -> None:
        """Add findings of any rules. Only the first `most` of each rule are listed; the others are counted."""
        for each in found:
            name = each.rule.name
            self._counts[name] += 1
            self._paths[name].add(each.path)
            if self._counts[name] <= self._most:
                self.found.append(each)
