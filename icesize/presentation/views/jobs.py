"""The views of jobs (expiry, orphan files, verification, repair, `maintain` and its steps), and of many tables."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TypeVar

from icesize.config_file import TablePolicy
from icesize.maintenance.jobs.dangling_deletes import DanglingReport
from icesize.maintenance.jobs.keys import KeyReport
from icesize.maintenance.jobs.rewrite_deletes import DeletesReport
from icesize.maintenance.jobs.rewrite_manifests import ManifestReport
from icesize.maintenance.passes.maintain import MaintenancePlan, MaintenanceReport
from icesize.maintenance.passes.many_tables import ManyTablesPlan, ManyTablesReport, TableShare
from icesize.maintenance.passes.survey import CatalogSurvey
from icesize.maintenance.verify.checkup import Check
from icesize.maintenance.verify.repair import RepairReport
from icesize.maintenance.verify.verification import Finding, Verification
from icesize.planning.insight.health import TableSurvey
from icesize.presentation.blocks import Block, Columns
from icesize.presentation.views import (
    MOST_LINES,
    MOST_TABLES,
    Look,
    change_of,
    format_price,
    more,
    notes,
    seconds_of,
    view,
)
from icesize.presentation.views.tables import SURVEY, committed, plan, survey_cells
from icesize.results import text_of
from icesize.table.cleanup.expiry import ExpiryReport
from icesize.table.cleanup.orphans import OrphanReport
from icesize.units import format_bytes, format_count

R = TypeVar("R")
MOST_REASONS = 8
_SPARE_IN_SURVEY = ("metadata", "snapshots", "files", "delete files", "USD", "snapshots due", "files saved")


@view.register
def expiry(result: ExpiryReport) -> Iterator[Block]:
    """Show the snapshots and files removed, the snapshots kept with their reasons, and the failures."""
    expired, before = len(result.snapshot_ids_expired), result.snapshots_before
    would, was, gone = ("would expire", "would be", "would be ") if result.dry_run else ("expired", "was", "")
    yield ((f"{would} {expired:,} of {format_count(before, 'snapshot')}", "bold"),)
    # If several rules keep a snapshot, it is counted for the first one.
    reasons = Counter(why[0] for why in result.kept.values())
    for reason, count in reasons.most_common(MOST_REASONS):
        yield (f"  {count:,} kept: {reason}",)
    if len(reasons) > MOST_REASONS:
        yield (f"  and {format_count(len(reasons) - MOST_REASONS, 'more reason')}",)
    for name in result.refs_removed:
        yield (f"  ref '{name}' {was} removed",)
    kinds = ", ".join(f"{kind.replace('_', ' ')} {n:,}" for kind, n in result.files_deleted.items())
    files = f"{format_count(sum(result.files_deleted.values()), 'file')} {gone}deleted"
    yield (f"{files}, {format_bytes(result.bytes_deleted)}" + (f": {kinds}" if kinds else ""),)
    yield from notes((*_failed(result), *result.dropped_versions, *result.notes))


@view.register
def orphans(result: OrphanReport) -> Iterator[Block]:
    """Show the orphan files found, examples, and the files deleted."""
    if result.files_found:
        found = f"{format_count(result.files_found, 'orphan file')}, {format_bytes(result.bytes_found)}"
        left = "delete with `icesize remove-orphan-files TABLE --delete`"
        yield ((f"{found}: {left if result.dry_run else f'{result.files_deleted:,} deleted'}", "bold"),)
    else:
        yield (("no orphan files", "bold"),)
    yield from ((f"  {path}",) for path in result.examples[:MOST_LINES])
    if result.too_recent:
        yield (f"  {format_count(result.too_recent, 'file')} too young to be sure",)
    if result.from_committed_batches:
        yield (
            f"  {result.from_committed_batches:,} are left from failed attempts of batches that were committed later",
        )
    if result.incomplete_uploads:
        yield (f"  {format_count(result.incomplete_uploads, 'incomplete upload')}, left to the store's rules",)
    yield from notes((*_failed(result), *result.notes))


def _failed(result: ExpiryReport | OrphanReport) -> list[str]:
    return [f"{format_count(result.files_failed, 'file')} could not be deleted"] if result.files_failed else []


@view.register
def verification(result: Verification) -> Iterator[Block]:
    """Show the verdict, and one line per finding, with the number of findings of each rule that are not shown."""
    read = (result.manifests, "manifest"), (result.files, "data file"), (result.delete_files, "delete file")
    counts = ", ".join(format_count(number, noun) for number, noun in read)
    verdict = "no errors" if result.is_valid else "the table is damaged"
    yield ((f"{result.table}: {verdict}", "bold" if result.is_valid else "bold red"), f" ({counts})")
    if result.snapshots:
        files, snapshots = format_count(result.stored_files, "file"), format_count(result.snapshots, "snapshot")
        whole = f", {format_count(result.read_files, 'file')} read" if result.read_files else ""
        yield (f"{files} of {snapshots} compared with the storage{whole}",)
    yield from _findings(result.findings)
    yield from notes(result.notes)


def _findings(findings: Iterable[Finding]) -> Iterator[Block]:
    """Show the findings of each rule with the same advice."""
    together: defaultdict[tuple[str, str], list[Finding]] = defaultdict(list)
    for finding in findings:
        together[finding.rule, finding.advice].append(finding)
    for (rule, advice), found in together.items():
        style = "bold red" if found[0].is_error else "bold"
        yield ((f"{rule}: {format_count(len(found), found[0].severity.value)}", style), f". {advice}")
        yield from ((f"  {finding.path}: {finding.detail}",) for finding in found[:MOST_LINES])
        if len(found) > MOST_LINES:
            yield ((f"  and {len(found) - MOST_LINES:,} more: use --json", "dim"),)


@view.register
def repair(result: RepairReport) -> Iterator[Block]:
    """Show the repairs, the rows that are lost, and what is refused."""
    if not result.repairs:
        left = f"; {format_count(len(result.refused), 'finding')} need a decision" if result.refused else ""
        yield ((f"{result.table}: nothing to repair{left}", "bold"),)
    for each in result.repairs:
        done = "repaired along with it" if each.snapshot_id is None else f"repaired in snapshot {each.snapshot_id}"
        done = "would be repaired" if result.dry_run else done
        yield ((f"{each.kind}: {format_count(each.findings, 'finding')} {done}", "bold"),)
    for partition, rows in list(result.rows_lost.items())[:MOST_LINES]:
        yield (f"  {format_count(rows, 'row')} of {partition or 'the table'} {'are' if rows > 1 else 'is'} lost",)
    yield from more(len(result.rows_lost), "partition")
    yield from _findings(result.refused)
    yield from notes(result.notes)


def checks(found: Sequence[Check]) -> Iterator[Block]:
    """Show one line per check."""
    style = {"ok": ("ok", "green"), "missing": ("--", "yellow"), "failed": ("no", "bold red")}
    yield Columns([(style[check.state], check.name, check.detail) for check in found])


@text_of.register
def check_line(check: Check) -> str:
    """Return a check in one line."""
    return f"{check.name}: {check.state}: {check.detail}"


@view.register
def deletes(result: DeletesReport) -> Iterator[Block]:
    """Show the number of delete files before and after."""
    if result.snapshot_ids:
        removed, files = format_count(result.files_removed, "delete file"), format_count(result.data_files, "file")
        size = format_bytes(result.bytes_written)
        line = (
            f"{removed} of {files} in {result.table} merged into {result.files_added:,}, {size}  {seconds_of(result)}"
        )
    elif result.dry_run and result.data_files:
        line = f"would rewrite the delete files of {format_count(result.data_files, 'file')} in {result.table}"
    else:
        line = f"no delete files of {result.table} were rewritten"
    yield ("  ".join((line, *result.notes, *result.conflicts)),)


@view.register
def dangling(result: DanglingReport) -> Iterator[Block]:
    """Show the number of dangling delete files."""
    line = f"nothing to do in {result.table}: no delete file is dangling"
    if result.delete_files:
        files = f"{format_count(result.delete_files, 'delete file')} of {format_bytes(result.bytes)}"
        verb = "would remove" if result.dry_run else "removed"
        line = f"{verb} {files} from {result.table}: dangling  {seconds_of(result)}"
    yield ("  ".join((line, *result.notes)),)


@view.register
def keys(result: KeyReport) -> Iterator[Block]:
    """Show the rows of the same key, or what changed in the rule."""
    key = f"({', '.join(result.key)})"
    if result.changed:
        verb = "would change" if result.dry_run else "changed"
        line = f"{verb} the rule of {result.table}: {'; '.join(result.changed)}  {seconds_of(result)}"
    elif result.rows_deleted:
        verb = "would be" if result.dry_run else "were"
        doubled, rows = format_count(result.doubled_keys, "key"), format_count(result.rows_deleted, "row")
        line = f"{doubled} by {key} in {result.table} had several rows: {rows} {verb} deleted  {seconds_of(result)}"
    else:
        line = f"nothing to do in {result.table}: each key by {key} has one row"
    yield ("  ".join((line, *result.notes)),)


@view.register
def manifests(result: ManifestReport) -> Iterator[Block]:
    """Show the number of manifests before and after."""
    before, after = result.manifests_before, result.manifests_after
    line = f"nothing to do in {result.table}: {format_count(before, 'manifest')}"
    if before != after:
        entries = f"entries {'to copy' if result.dry_run else 'copied'} {result.entries:,}"
        line = f"manifests of {result.table}: {before:,} -> {after:,}  {entries}  {seconds_of(result)}"
    yield ("  ".join((line, *result.notes)),)


@view.register
def maintenance(result: MaintenanceReport) -> Iterator[Block]:
    """Show each step of a pass under its heading, the failures, and the steps left for the next pass."""
    is_idle = not result.merges and "merges" not in (*result.failed, *result.not_started)
    idle = [("no merge of small files is due",)] if is_idle else []
    rounds = (chain.from_iterable(map(committed, reports)) for reports in (result.merges, result.clusterings))
    yield from _by_step(result, chain(idle, next(rounds)), next(rounds))
    failed = [f"{step} failed: {message}" for step, message in result.failed.items()]
    left = [f"no budget left for: {', '.join(result.not_started)}; the next pass resumes"] if result.not_started else []
    refused = [f"{step} left out: {message}" for step, message in result.unsupported.items()]
    yield from notes([*failed, *refused, *left])


@view.register
def maintenance_plan(result: MaintenancePlan) -> Iterator[Block]:
    """Show the changes that each step of a pass would make, under its heading."""
    yield from _by_step(result, _if_any(plan, result.merges), _if_any(plan, result.clustering))
    yield from notes(f"{step} cannot be planned: {message}" for step, message in result.failed.items())


def _by_step(result: MaintenanceReport | MaintenancePlan, merges: Look, clustering: Look) -> Iterator[Block]:
    """Show the blocks of the steps, each under its heading."""
    rewrite = result.rewritten_deletes
    # if no delete file is rewritten, the line of dangling ones is enough
    rewrite = rewrite if rewrite and (rewrite.data_files or rewrite.conflicts) else None
    yield from _section("small files", merges)
    yield from _section("clustering", clustering)
    yield from _section("delete files", chain(_if_any(deletes, rewrite), _if_any(dangling, result.deletes)))
    yield from _section("manifests", _if_any(manifests, result.manifests))
    yield from _section("snapshots", _if_any(expiry, result.expiry))
    yield from _section("orphan files", _if_any(orphans, result.orphans))


def _if_any(view: Callable[[R], Look], result: R | None) -> Look:
    return () if result is None else view(result)


def _section(title: str, blocks: Look) -> Iterator[Block]:
    for number, block in enumerate(blocks):
        if not number:
            yield ((title, "bold underline"),)
        yield block


@view.register
def survey(result: CatalogSurvey, limit: int = MOST_TABLES) -> Iterator[Block]:
    """Show the tables of a catalog, those to which maintenance brings most first, and the names that were skipped."""
    shown = result.tables[:limit]
    totals = f"{format_count(len(result.tables), 'table')}: {_survey_totals(result)}" if shown else "no table"
    yield (result.pattern, "bold"), f"  {totals}"
    if shown:
        yield Columns([*map(survey_cells, shown)], SURVEY, range(1, len(SURVEY)), _SPARE_IN_SURVEY)
    if len(result.tables) > limit:
        others = format_count(len(result.tables) - limit, "more table")
        yield ((f"and {others}: use --limit {len(result.tables)} for all", "dim"),)
    if len(result.tables) == 1:
        yield from table_survey(result.tables[0])
    for skipped in result.skipped[:MOST_LINES]:
        yield (f"skipped {'.'.join(skipped.name)} ({skipped.kind}): {skipped.why}",)
    yield from more(len(result.skipped), "skipped name")
    yield from notes((*result.doubts, *(f"{t.table}: {note}" for t in shown for note in t.notes)))
    if shown:
        yield ((result.formula, "dim"),)


def _survey_totals(result: CatalogSurvey) -> str:
    files, snapshots = format_count(result.files_saved, "file"), format_count(result.snapshots_due, "snapshot")
    write = f"{format_bytes(result.bytes_to_write)} to write"
    return f"maintenance would save scans {files} for {write}, and expire {snapshots}"


@view.register
def table_survey(table: TableSurvey) -> Iterator[Block]:
    """Show the causes of one table's cost."""
    for part in table.parts:
        yield (
            f"  {part.name}: {part.now:,} take {part.seconds:,.2f} s of a full scan, "
            f"{part.then:,} after maintenance {part.seconds - part.seconds_saved:,.2f} s",
        )


@view.register
def many_tables(result: ManyTablesReport) -> Iterator[Block]:
    """Show the failed tables first, then a line for each table that changed, and what is left."""
    yield from _failed_tables(result.failed)
    counts = f"{format_count(len(result.tables), 'table')} changed or failed, {result.idle:,} needed nothing"
    yield ((f"{result.pattern}: {counts}", "bold"), f"  {result.seconds:,.1f} s")
    if result.tables:
        heads = ("table", "files", "delete files", "manifests", "written", "snapshots expired", "files deleted")
        yield Columns([*map(_maintained, result.tables)], heads, range(1, len(heads)))
    late = [f"no time left for {format_count(len(result.not_started), 'table')}"] if result.not_started else []
    yield from notes((*late, *_left_out(result.plan)))


def _maintained(report: MaintenanceReport) -> tuple[str, ...]:
    rewrites = (*report.merges, *report.clusterings)
    files = change_of(sum(r.files_added for r in rewrites), sum(r.files_removed for r in rewrites))
    packed, expired, deleted = "", 0, 0
    if report.manifests and report.manifests.snapshot_ids:
        packed = f"{report.manifests.manifests_before:,} -> {report.manifests.manifests_after:,}"
    if report.expiry:
        expired, deleted = len(report.expiry.snapshot_ids_expired), sum(report.expiry.files_deleted.values())
    written = format_bytes(report.bytes_rewritten)
    return report.table, files, _delete_files(report), packed, written, f"{expired:,}", f"{deleted:,}"


def _delete_files(report: MaintenanceReport) -> str:
    """Return the change of the steps that rewrite or remove only delete files."""
    merged, dangling = report.rewritten_deletes, report.deletes
    removed = (merged.files_removed if merged else 0) + (dangling.delete_files if dangling else 0)
    return change_of(merged.files_added if merged else 0, removed)


@view.register
def many_tables_plan(result: ManyTablesPlan) -> Iterator[Block]:
    """Show the failed tables first, then what each table needs, and what the merges within the budget cost."""
    yield from _failed_tables(result.failed)
    price = "" if result.usd is None else f", {format_price(result.usd)} USD"
    cost = f"{format_count(result.files_saved, 'file')} less for {format_bytes(result.bytes_to_write)} to write{price}"
    need = f"{format_count(len(result.tables), 'table')} to maintain, {result.idle:,} need nothing"
    yield ((f"{result.pattern}: {need}", "bold"), f"  {cost}")
    if result.tables:
        heads = ("table", "health", "files less", "to write", "left to write", "contested", "snapshots due", "USD")
        yield Columns([*map(_table_share, result.tables)], heads, range(1, len(heads)))
    yield from notes(_left_out(result))


def _table_share(share: TableShare) -> tuple[str, ...]:
    due = share.survey
    contested = format_bytes(share.bytes_contested) if share.bytes_contested else ""
    sizes = format_bytes(share.bytes_to_write), format_bytes(share.bytes_left), contested
    price = "" if share.usd is None else format_price(share.usd)
    return due.table, f"{due.health}", f"{share.files_saved:,}", *sizes, f"{due.snapshots_due:,}", price


@view.register
def table_policy(result: TablePolicy) -> Iterator[Block]:
    """Show each key of a policy with its value and its origin; keys with their defaults come last."""
    file = "no configuration file" if result.path is None else result.path
    yield (result.table, "bold"), f"  {file}"
    ranked = sorted(result.keys, key=lambda origin: origin.source.startswith("default"))
    rows = [
        (one.key, "unset" if one.value is None else json.dumps(one.value), one.source, ", ".join(one.overridden))
        for one in ranked
    ]
    yield Columns(rows, ("key", "value", "from", "instead of"))
    left_out = f"{file} leaves this table out of `scan` and of `maintain` for many tables"
    yield from notes((*result.notes, *([] if result.is_chosen else [left_out])))


def _failed_tables(failed: Mapping[str, str]) -> Iterator[Block]:
    return (((f"{table} failed", "bold red"), f": {why}") for table, why in failed.items())


def _left_out(result: ManyTablesPlan) -> Iterator[str]:
    if result.bytes_left:
        yield f"no budget left for merges of {format_bytes(result.bytes_left)}; the next pass resumes"
    if result.bytes_contested:
        tables = format_count(sum(share.bytes_contested > 0 for share in result.tables), "table")
        size = format_bytes(result.bytes_contested)
        yield f"other writers changed {tables} in the last ten minutes; a later pass merges {size} there"
    for table, service in result.left_alone.items():
        yield f"{table} left alone: {service} maintains it; use --take-over to work on it"
    yield from (f"{name} skipped: {why}" for name, why in result.skipped.items())
    yield from result.notes
