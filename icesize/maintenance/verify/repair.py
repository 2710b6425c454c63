"""Repairs of a table: what `verify` finds and what can be put right without a guess, one commit for each kind.

A repair changes metadata only, so a rollback to the snapshot before it takes it back. What needs a decision, or what is
lost, is refused with the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from icesize.concurrency import concurrently
from icesize.environment import Stopwatch, rounded
from icesize.maintenance.jobs.dangling_deletes import remove_dangling_deletes
from icesize.maintenance.table_context import TableContext
from icesize.maintenance.verify.rules import DANGLING, LISTED_TWICE, LOST, Found, Kind
from icesize.maintenance.verify.storage import size_of
from icesize.maintenance.verify.verification import Examined, Finding, Scope, examine
from icesize.parquet.files.lineage_fields import FIRST_WITH_LINEAGE
from icesize.planning.lost_files import LostFiles, folder_of
from icesize.results import Result, keys
from icesize.storage.locations import names_one_file, normalised
from icesize.storage.table_storage import Storage
from icesize.table.commit.steps.repair import Repair
from icesize.table.manifests.file_columns import ManifestFacts
from icesize.table.manifests.repeated_files import entry_kept, repeated_entries
from icesize.table.state.handle import Current
from icesize.table.state.naming import Labels
from icesize.table.storage.listing import list_files
from icesize.units import format_count

AGAIN = "a repair can be started again"


@dataclass(frozen=True)
class Repaired(Result):
    """One kind of repair.

    Attributes:
        kind: `missing files` (their entries were removed), `listed twice` (each file is listed once), `dangling
            deletes`, `wrong entries` (sizes, rows and metrics as the files have them) or `manifest list` (counts,
            bounds and totals as the manifests have them).
        findings: Number of findings that it concerns.
        snapshot_id: The snapshot of its commit; None after a dry run, or if an earlier commit has put it right.
    """

    kind: str
    findings: int
    snapshot_id: int | None = None


@dataclass(frozen=True)
class RepairReport(Result):
    """The outcome of a repair.

    Attributes:
        table: The full name of the table.
        dry_run: True if nothing was changed.
        repairs: What was repaired, or would be: one commit each.
        rows_lost: Rows of missing files whose entries are removed, by partition; deleted rows included.
        refused: Findings that no repair concerns, each with the reason as its advice.
        notes: Sentences about what was not verified.
        seconds: Seconds of each phase, and `total`.
    """

    table: str
    dry_run: bool = False
    repairs: tuple[Repaired, ...] = ()
    rows_lost: Mapping[str, int] = field(default_factory=dict)
    refused: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)

    KEYS = keys("snapshot_ids")

    @property
    def snapshot_ids(self) -> tuple[int, ...]:
        """The snapshots of the commits, oldest first."""
        return tuple(each.snapshot_id for each in self.repairs if each.snapshot_id is not None)


def repair(
    context: TableContext, *, deep: bool = False, lost_files: int | None = None, dry_run: bool = False
) -> RepairReport:
    """Verify the newest snapshot and repair what is certain.

    Args:
        context: The table.
        deep: Read all files, to find wrong counts and bounds in entries.
        lost_files: The exact number of missing data files, which confirms that they are lost (see `LostFiles`).
        dry_run: Change nothing; return what would be repaired.

    Raises:
        CommitConflict: Other writers committed first until the deadline; repairs before that are visible.
        CommitStateUnknown: The outcome of a commit is unknown.
        TableError: The table cannot be read.
    """
    current, watch = context.load(), Stopwatch(context.environment)
    scope = Scope(list_files, deep=deep, is_for_repair=True)
    examined = examine(current.name, current.table.metadata, current.table.io, scope, context.environment)
    watch.lap("verify")
    plan = _Plan(examined, lost_files)
    repairs = []
    for kind, findings in plan.repairs.items():
        if not findings:
            continue
        if kind is Kind.REMOVED and (back := _back(current, [each.path for each in findings])):
            plan.refused += [replace(Finding.of(each), advice=back) for each in findings]
            findings.clear()
            continue
        if kind is Kind.DANGLING:
            snapshot_id = remove_dangling_deletes(context, dry_run=dry_run).snapshot_id
        else:
            outcome = context.commit(context.load(), plan.step(kind), AGAIN, dry_run=dry_run)
            snapshot_id = next(iter(outcome.snapshot_ids), None)
        repairs.append(Repaired(kind.value, len(findings), None if dry_run else snapshot_id))
    watch.lap("commit")
    labels = Labels(current.table.metadata)
    return RepairReport(
        current.name, dry_run, tuple(repairs), plan.rows_lost(labels), tuple(plan.refused),
        (*current.warnings, *examined.verification.notes), rounded(watch.seconds),
    )  # fmt: skip


class _Plan:
    """The repairs by kind, each with its findings, and the findings that are refused."""

    def __init__(self, examined: Examined, confirmed: int | None = None) -> None:
        self._examined = examined
        subject, found = examined.subject, examined.found
        missing = {each.path: each.is_certain for each in found if each.rule == LOST}
        self._data, self._deletes = (set(_listed(some, missing)) for some in (subject.data, subject.deletes))
        self._lost = _lost(subject.data, self._data, [path for path in self._data if missing[path]])
        self._kept = self._lost.why_kept(confirmed)
        self._manifests = {facts.path for facts in subject.all}
        self._dangling = {each.path for each in found if each.rule == DANGLING}
        self._uncertain = dict(_uncertain(examined)) if any(each.rule == LISTED_TWICE for each in found) else {}
        self.repairs: dict[Kind, list[Found]] = {kind: [] for kind in Kind}
        self.refused: list[Finding] = []
        for each in found:
            decided = self._decided(each)
            if isinstance(decided, Kind):
                self.repairs[decided].append(each)
            else:
                finding = Finding.of(each)
                self.refused.append(replace(finding, advice=decided or finding.advice))

    def step(self, kind: Kind) -> Repair:
        """Return the step of a kind of repair."""
        paths = [each.path for each in self.repairs[kind]]
        if kind is Kind.REMOVED:
            return Repair(gone=frozenset(paths))
        if kind is Kind.ENTRIES:
            return Repair(corrections={path: self._examined.true[path] for path in paths})
        return Repair(once=True) if kind is Kind.ONCE else Repair(manifests=frozenset(paths))

    def rows_lost(self, labels: Labels) -> dict[str, int]:
        """Return the rows of missing files by the label of their partition."""
        gone, rows = {each.path for each in self.repairs[Kind.REMOVED]}, Counter[str]()
        for facts in self._examined.subject.data if gone else ():
            for file in facts.files(facts.live):
                if file.path in gone:
                    gone.remove(file.path)
                    rows[labels.of(file.partition)] += file.rows
        return dict(sorted(rows.items()))

    def _decided(self, found: Found) -> Kind | str | None:
        """Return the kind of repair for a finding, or why there is none; None if its rule has the reason."""
        rule, path = found.rule, found.path
        if rule == LOST:
            return self._of_missing(path)
        if not found.is_certain:
            return None
        if rule.repair is Kind.ENTRIES:
            return Kind.LISTING if path in self._manifests else self._of_entry(path)
        if rule == LISTED_TWICE and (why := self._uncertain.get(normalised(path))):
            return why
        return rule.repair

    def _of_missing(self, path: str) -> Kind | str:
        if path in self._dangling:
            return Kind.DANGLING
        if path in self._data:
            return self._kept.get(path, Kind.REMOVED) if path in self._lost.rows else _NOT_LOOKED_UP
        if path in self._deletes:
            return _DELETES_GONE
        is_of_head = any(each.path == path for each in self._examined.subject.unreadable)
        return _METADATA_GONE if is_of_head else _OLDER

    def _of_entry(self, path: str) -> Kind | str:
        true = self._examined.true.get(path)
        if true is None:
            return "The file is damaged, or only older snapshots need it: restore it from a backup"
        has_row_ids = self._examined.subject.metadata.format_version >= FIRST_WITH_LINEAGE
        if has_row_ids and true.metrics.rows > true.listed_rows:
            return "Its rows have no row ids of their own (format v3): write the file again"
        return Kind.ENTRIES


def _back(current: Current, paths: Sequence[str]) -> str:
    """Return why no entry goes if one of these missing files is there again; empty if all of them are still missing."""
    there = [size for size in concurrently(partial(size_of, Storage.of(current.table.io)), paths) if size is not None]
    again = f"{len(there):,} of {format_count(len(paths), 'missing file')} were there again before the commit"
    return f"{again}: the storage does not respond reliably; run `icesize repair` again" if there else ""


def _listed(data: Iterable[ManifestFacts], wanted: Collection[str]) -> Iterator[str]:
    """Yield those of the paths that manifests list."""
    if wanted:
        yield from (path for facts in data for path in facts.paths() if path in wanted)


def _lost(data: Sequence[ManifestFacts], missing: Collection[str], gone: Iterable[str]) -> LostFiles:
    """Return the files of which a look at exactly their names found that they are gone, and the table around them."""
    rows = dict.fromkeys(filter(names_one_file, gone), 0)
    folders, there, seen = set(map(folder_of, rows)), set[str](), dict[str, int]()
    for facts in data if rows else ():
        for path, count in zip(facts.paths(), facts.columns.rows[facts.live].tolist(), strict=True):
            seen[path] = count
            if path not in missing and (folder := folder_of(path)) in folders:
                there.add(folder)
    return LostFiles({path: seen[path] for path in rows}, len(seen), sum(seen.values()), there)


def _uncertain(examined: Examined) -> Iterator[tuple[str, str]]:
    """Yield the normalised paths of files that are listed twice and stay so, with the reason."""
    subject = examined.subject
    listings = [subject.store.listing(subject.io, facts.manifest) for facts in subject.all]
    for (path, _), entries in repeated_entries(listings).items():
        if isinstance(why := entry_kept(entries), str):
            yield path, why


_NOT_LOOKED_UP = (
    "It was not looked up, because storage clients read its name in different ways: remove its rows if it is lost"
)
_METADATA_GONE = (
    "A manifest or manifest list is lost: restore it from a backup, or roll back to a snapshot that does not need it"
)
_OLDER = "Only older snapshots need it: they cannot be read any more; expire them, or restore the file from a backup"
_DELETES_GONE = (
    "Without this delete file, deleted rows would come back: restore it from a backup, roll back, or delete the rows "
    "again and then remove the file"
)
