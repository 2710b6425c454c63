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
from icesize.maintenance.verify.storage import GONE, LOST, SIZES, size_of
from icesize.maintenance.verify.verification import Examined, Finding, Scope, examine
from icesize.parquet.files.lineage_fields import FIRST_WITH_LINEAGE
from icesize.parquet.verify.entry import BOUNDS, COUNTS, ROWS
from icesize.planning.lost_files import LostFiles, folder_of
from icesize.results import Result, keys
from icesize.table.catalog.locations import names_one_file, normalised
from icesize.table.commit.steps.repair import Repair
from icesize.table.manifests.file_columns import ManifestFacts
from icesize.table.manifests.repeated_files import entry_kept, repeated_entries
from icesize.table.state.handle import Current
from icesize.table.state.naming import Labels
from icesize.table.storage.listing import Lister, list_files
from icesize.units import format_count

AGAIN = "a repair can be started again"
REMOVED, ONCE, DANGLING, ENTRIES, LISTING = (
    "missing files", "listed twice", "dangling deletes", "wrong entries", "manifest list",
)  # fmt: skip
"""Kinds of repairs, in their order: what removes entries comes before what counts them."""


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
    context: TableContext,
    *,
    deep: bool = False,
    lost_files: int | None = None,
    dry_run: bool = False,
    lister: Lister = list_files,
) -> RepairReport:
    """Verify the newest snapshot and repair what is certain.

    Args:
        context: The table.
        deep: Read all files, to find wrong counts and bounds in entries.
        lost_files: The exact number of missing data files, which confirms that they are lost (see `LostFiles`).
        dry_run: Change nothing; return what would be repaired.
        lister: Lists the files of a directory.

    Raises:
        CommitConflict: Other writers committed first until the deadline; repairs before that are visible.
        CommitStateUnknown: The outcome of a commit is unknown.
        TableError: The table cannot be read.
    """
    current, watch = context.load(), Stopwatch(context.environment)
    scope = Scope(lister, deep=deep, is_for_repair=True)
    found = examine(current.name, current.table.metadata, current.table.io, scope, context.environment)
    watch.lap("verify")
    plan = _Plan(found, lost_files)
    repairs = []
    for kind, findings in plan.repairs.items():
        if not findings:
            continue
        if kind == REMOVED and (back := _back(current, [finding.path for finding in findings])):
            plan.refused += [replace(finding, advice=back) for finding in findings]
            findings.clear()
            continue
        if kind == DANGLING:
            snapshot_id = remove_dangling_deletes(context, dry_run=dry_run).snapshot_id
        else:
            outcome = context.commit(context.load(), plan.step(kind), AGAIN, dry_run=dry_run)
            snapshot_id = next(iter(outcome.snapshot_ids), None)
        repairs.append(Repaired(kind, len(findings), None if dry_run else snapshot_id))
    watch.lap("commit")
    labels = Labels(current.table.metadata)
    return RepairReport(
        current.name, dry_run, tuple(repairs), plan.rows_lost(labels), tuple(plan.refused),
        (*current.warnings, *found.verification.notes), rounded(watch.seconds),
    )  # fmt: skip


class _Plan:
    """The repairs by kind, each with its findings, and the findings that are refused."""

    def __init__(self, found: Examined, confirmed: int | None = None) -> None:
        self._found = found
        subject, findings = found.subject, found.verification.findings
        missing = {finding.path: finding.detail == GONE for finding in findings if finding.rule == LOST}
        self._data, self._deletes = (set(_listed(some, missing)) for some in (subject.data, subject.deletes))
        self._lost = _lost(subject.data, self._data, [path for path in self._data if missing[path]])
        self._kept = self._lost.why_kept(confirmed)
        self._manifests = {facts.path for facts in subject.all}
        self._dangling = {finding.path for finding in findings if finding.rule == "dangling deletes"}
        self._uncertain = dict(_uncertain(found)) if any(each.rule == "listed twice" for each in findings) else {}
        self.repairs: dict[str, list[Finding]] = {kind: [] for kind in (REMOVED, ONCE, DANGLING, ENTRIES, LISTING)}
        self.refused: list[Finding] = []
        for finding in findings:
            kind, why = self._decided(finding)
            if kind:
                self.repairs[kind].append(finding)
            else:
                self.refused.append(replace(finding, advice=why or finding.advice))

    def step(self, kind: str) -> Repair:
        """Return the step of a kind of repair."""
        paths = [finding.path for finding in self.repairs[kind]]
        if kind == REMOVED:
            return Repair(gone=frozenset(paths))
        if kind == ENTRIES:
            return Repair(corrections={path: self._found.true[path] for path in paths})
        return Repair(once=True) if kind == ONCE else Repair(manifests=frozenset(paths))

    def rows_lost(self, labels: Labels) -> dict[str, int]:
        """Return the rows of missing files by the label of their partition."""
        gone, rows = {finding.path for finding in self.repairs[REMOVED]}, Counter[str]()
        for facts in self._found.subject.data if gone else ():
            for file in facts.files(facts.live):
                if file.path in gone:
                    gone.remove(file.path)
                    rows[labels.of(file.partition)] += file.rows
        return dict(sorted(rows.items()))

    def _decided(self, finding: Finding) -> tuple[str, str]:
        """Return the kind of repair for a finding, empty if there is none, and the reason for that."""
        rule, path, detail = finding.rule, finding.path, finding.detail
        if rule == LOST and path not in self._dangling:
            if path in self._data:
                why = self._kept.get(path, "") if path in self._lost.rows else _NOT_LOOKED_UP
                return ("", why) if why else (REMOVED, "")
            if path in self._deletes:
                return "", _DELETES_GONE
            of_head = path in {path for _, path, _ in self._found.subject.unreadable}
            return "", _METADATA_GONE if of_head else _OLDER
        if rule == SIZES and path in self._manifests:
            return LISTING, ""
        if rule in (SIZES, ROWS, COUNTS, BOUNDS):
            return self._of_entry(path)
        if rule in ("manifest counts", "totals", "manifest list", "partition values", "sequence numbers", "row ids"):
            is_certain = rule not in _CERTAIN or any(words in detail for words in _CERTAIN[rule])
            kind = ONCE if rule == "manifest list" else LISTING
            return (kind, "") if is_certain else ("", "")
        if rule == "listed twice" and normalised(path) in self._uncertain:
            return "", self._uncertain[normalised(path)]
        return {"listed twice": ONCE, "dangling deletes": DANGLING, LOST: DANGLING}.get(rule, ""), ""

    def _of_entry(self, path: str) -> tuple[str, str]:
        true = self._found.true.get(path)
        if true is None:
            return "", "The file is damaged, or only older snapshots need it: restore it from a backup"
        if self._found.subject.metadata.format_version >= FIRST_WITH_LINEAGE and true.metrics.rows > true.listed_rows:
            return "", "Its rows have no row ids of their own (format v3): write the file again"
        return ENTRIES, ""


def _back(current: Current, paths: Sequence[str]) -> str:
    """Return why no entry goes if one of these missing files is there again; empty if all of them are still missing."""
    there = [size for size in concurrently(partial(size_of, current.table.io), paths) if size is not None]
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


def _uncertain(found: Examined) -> Iterator[tuple[str, str]]:
    """Yield the normalised paths of files that are listed twice and stay so, with the reason."""
    subject = found.subject
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
_CERTAIN: Mapping[str, tuple[str, ...]] = {
    "manifest list": ("times",),
    "partition values": ("below the lower bound", "above the upper bound", "the manifest list"),
    "sequence numbers": ("below the listed minimum",),
    "row ids": ("it has no first row id, although the snapshot has one",),
}
"""Words of the findings of a rule whose cause is certain; of other rules, all are."""
