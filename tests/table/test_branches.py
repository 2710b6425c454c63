"""Branches: what is done on one stays on it, in catalogs of both kinds and in format v2 and v3."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

import numpy as np
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

import icesize
from icesize.errors import TableError
from icesize.maintenance.jobs import compaction
from icesize.maintenance.rounds import Budget
from icesize.maintenance.table_context import TableContext
from icesize.report import Report
from icesize.sized_table import SizedTable
from icesize.table.cleanup.expiry import expire
from icesize.table.cleanup.retention_inputs import ExpireOptions
from icesize.table.commit.pyiceberg_committer import PyIcebergCommitter
from icesize.table.records.ledger import LedgerEntry
from icesize.table.state.handle import TableHandle
from icesize.table.upserts.settings import WantedRule
from tests.support.catalogs import OF_EACH_FORMAT, catalog_of
from tests.support.jobs import context_of
from tests.support.tables import NOW_MS, append, arrow, commit_by, make_table, request_on, theirs, write
from tests.support.upserts import upsert

AUDIT = "audit"


@pytest.fixture(params=OF_EACH_FORMAT)
def catalog(request: pytest.FixtureRequest) -> Catalog:
    """Catalogs of both kinds, whose tables are of format v2 and v3."""
    return catalog_of(request)


def append_to(catalog: Catalog, branch: str, ids: Iterable[int]) -> Table:
    """Rows committed to a branch; returns the table with them."""
    table = catalog.load_table("db.t")
    committer = PyIcebergCommitter(catalog, table, lambda: NOW_MS, branch)
    commit_by(committer, request_on(table, [write(table, ids)]), table)
    return catalog.load_table("db.t")


def branched(catalog: Catalog) -> Table:
    """Two small files on `main`, and three more on the branch `audit`."""
    make_table(catalog)
    append(catalog, [0, 1])
    table = append(catalog, [2, 3])
    theirs(table).manage_snapshots().create_branch(head_of(table, "main"), AUDIT).commit()
    for first in (10, 20, 30):
        table = append_to(catalog, AUDIT, [first, first + 1])
    return table


def head_of(table: Table, branch: str) -> int:
    """The id of the snapshot that a branch points to."""
    return table.metadata.refs[branch].snapshot_id


def ids_on(catalog: Catalog, branch: str) -> list[int]:
    """All rows that a reader of a branch sees, by id."""
    table = catalog.load_table("db.t")
    return sorted(table.scan(snapshot_id=head_of(table, branch)).to_arrow()["id"].to_pylist())


def audit(catalog: Catalog, **policy: int) -> SizedTable:
    """The branch `audit` of the table."""
    keys = {key.replace("_", "-"): value for key, value in policy.items()}
    return icesize.open(None, "lake.db.t", catalog=catalog, branch=AUDIT, policy=keys)


ON_MAIN, ON_AUDIT = [0, 1, 2, 3], [0, 1, 2, 3, 10, 11, 20, 21, 30, 31]


def test_each_job_changes_its_branch_only(catalog: Catalog) -> None:
    """Compaction, clustering and maintenance of a branch leave `main` and the branch's rows as they are."""
    before = branched(catalog)
    sized = audit(catalog)
    assert sized.inspect().files == 5
    assert sized.compact().files_removed == 5
    assert sized.inspect().files == 1
    sized.cluster(by=["id"])
    append_to(catalog, AUDIT, [40])
    sized.maintain()
    sized.rewrite_manifests()
    after = catalog.load_table("db.t")
    assert head_of(after, "main") == head_of(before, "main")
    assert after.metadata.current_snapshot_id == head_of(before, "main")
    assert head_of(after, AUDIT) != head_of(before, AUDIT)
    assert (ids_on(catalog, "main"), ids_on(catalog, AUDIT)) == (ON_MAIN, [*ON_AUDIT, 40])
    assert sized.verify().findings == ()
    assert icesize.open(None, "lake.db.t", catalog=catalog).inspect().files == 2


def test_the_past_of_a_branch(catalog: Catalog) -> None:
    """History and versions are those of the branch, and a restore of a version changes the branch only."""
    before = branched(catalog)
    sized = audit(catalog)
    assert [commit.rows for commit in sized.history().commits] == [2, 2, 2, 2, 2]
    assert len(icesize.open(None, "lake.db.t", catalog=catalog).history().commits) == 2
    assert [version.rows for version in sized.versions()] == [10, 8, 6, 4, 2]
    sized.restore({"kind": "a"}, sized.versions()[1].snapshot_id)
    assert (ids_on(catalog, "main"), ids_on(catalog, AUDIT)) == (ON_MAIN, ON_AUDIT[:-2])
    assert head_of(catalog.load_table("db.t"), "main") == head_of(before, "main")


def test_deletes_of_rows_on_a_branch(catalog: Catalog) -> None:
    """A merge on a branch applies the deletes that the branch has, and `main` keeps its own."""
    branched(catalog)
    audit(catalog).deduplicate("kind", "id")
    audit(catalog, max_delete_files=1).compact()
    assert (ids_on(catalog, "main"), ids_on(catalog, AUDIT)) == (ON_MAIN, [31])


def test_expiry_concerns_all_branches(catalog: Catalog) -> None:
    """An expiry on a branch keeps the heads of all branches, and orphan removal their files."""
    branched(catalog)
    sized = audit(catalog)
    sized.compact()
    report = sized.expire_snapshots(older_than=timedelta(0), retain_last=1)
    assert len(report.snapshot_ids_expired) == 4
    assert sized.remove_orphan_files(timedelta(days=1), dry_run=False).files_deleted == 0
    assert (ids_on(catalog, "main"), ids_on(catalog, AUDIT)) == (ON_MAIN, ON_AUDIT)


def test_names_that_are_no_branches(catalog: Catalog) -> None:
    """A missing branch, a tag, and a branch that was dropped are refused."""
    table = branched(catalog)
    theirs(table).manage_snapshots().create_tag(head_of(table, "main"), "then").commit()
    with pytest.raises(TableError, match=r"branch 'audits' of 'lake.db.t': there is none. Create it: ALTER TABLE"):
        icesize.open(None, "lake.db.t", catalog=catalog, branch="audits")
    with pytest.raises(TableError, match="it is a tag"):
        icesize.open(None, "lake.db.t", catalog=catalog, branch="then")
    sized = audit(catalog)
    theirs(catalog.load_table("db.t")).manage_snapshots().remove_branch(AUDIT).commit()
    with pytest.raises(TableError, match="there is none"):
        sized.compact()
    assert ids_on(catalog, "main") == ON_MAIN


def test_the_branch_of_a_session(catalog: Catalog) -> None:
    """With write-audit-publish, work goes to the session's branch, which its first commit creates; other tables and
    sessions go on with `main`."""
    make_table(catalog, properties={"write.wap.enabled": "true"})
    for first in (0, 2, 4):
        append(catalog, [first, first + 1])
    context = in_session(catalog, AUDIT)
    assert (context.load().branch, context.load().head.snapshot_id) == (AUDIT, head_of(context.load().table, "main"))
    before = catalog.load_table("db.t")
    assert compact(context).files_removed == 3
    assert compact(context).files_removed == 0
    after = catalog.load_table("db.t")
    assert head_of(after, "main") == head_of(before, "main")
    assert head_of(after, AUDIT) != head_of(before, "main")
    assert ids_on(catalog, AUDIT) == ids_on(catalog, "main") == [*range(6)]
    append(catalog, [6])
    expire(context.handle, ExpireOptions(older_than=timedelta(0), retain_last=1), context.environment)
    assert (len(ids_on(catalog, AUDIT)), len(ids_on(catalog, "main"))) == (6, 7)
    handle = TableHandle(catalog, ("db", "t"), spark_conf={"spark.wap.branch": AUDIT}, branch="other")
    with pytest.raises(TableError, match=r"the session sets 'spark\.wap\.branch' to 'audit'\. Unset one"):
        handle.load()
    make_table(catalog, name="db.plain")
    assert TableHandle(catalog, ("db", "plain"), spark_conf={"spark.wap.branch": AUDIT}).load().branch == "main"


def test_the_first_commit_of_a_table_is_on_a_branch(catalog: Catalog) -> None:
    """A session with write-audit-publish begins a table on its branch; `main` stays empty until it is published."""
    table = make_table(catalog, properties={"write.wap.enabled": "true"})
    committer = PyIcebergCommitter(catalog, table, lambda: NOW_MS, AUDIT, creates=True)
    commit_by(committer, request_on(table, [write(table, [1])]), table)
    table = catalog.load_table("db.t")
    assert (table.metadata.current_snapshot_id, ids_on(catalog, AUDIT)) == (None, [1])
    commit_by(committer, request_on(table, [write(table, [2])]), table)
    append(catalog, [3])
    assert (ids_on(catalog, "main"), ids_on(catalog, AUDIT)) == ([3], [1, 2])


@pytest.mark.parametrize("on_main", [[], [9]], ids=["empty", "with-rows"])
def test_upserts_begin_a_branch(catalog: Catalog, on_main: list[int]) -> None:
    """The first batch of such a session stores the rule of the table while its branch does not exist yet."""
    make_table(catalog, properties={"write.wap.enabled": "true"})
    for row in on_main:
        append(catalog, [row])
    handle = TableHandle(catalog, ("db", "t"), spark_conf={"spark.wap.branch": AUDIT})
    events = arrow([1, 2]), np.zeros(2, np.bool_)
    rule = WantedRule(key="id", order_by="ts")
    for batch in range(2):
        upsert(handle, rule, lambda current, rule: [lambda: events], LedgerEntry("s", "q", batch))
    table = catalog.load_table("db.t")
    assert ids_on(catalog, AUDIT) == [1, 2, *on_main]
    assert [row["id"] for row in table.scan().to_arrow().to_pylist()] == on_main


def in_session(catalog: Catalog, branch: str) -> TableContext:
    """The table as a session of Spark works with it, whose commits go to a branch."""
    return context_of(TableHandle(catalog, ("db", "t"), spark_conf={"spark.wap.branch": branch}))


def compact(context: TableContext) -> Report:
    """Merge the small files of the session's branch."""
    return compaction.compact(context, None, Budget.of(None, None))


def test_a_branch_that_moves_during_a_merge(catalog: Catalog) -> None:
    """Rows that others add to the branch while it is merged stay; a commit to `main` does not conflict."""
    branched(catalog)

    def meanwhile() -> None:
        append(catalog, [4])
        append_to(catalog, AUDIT, [40])

    with icesize.failpoints.armed("files-written", meanwhile):
        assert audit(catalog).compact().files_removed == 5
    assert (ids_on(catalog, "main"), ids_on(catalog, AUDIT)) == ([*ON_MAIN, 4], [*ON_AUDIT, 40])
