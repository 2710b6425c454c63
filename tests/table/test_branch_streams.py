"""Streams into branches: a batch counts where its rows are, through publication, expiry and branches thrown away."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import SetSnapshotRefUpdate

import icesize
from icesize.errors import BatchOutOfOrder, StreamMismatch, UnsupportedTable
from icesize.report import Report
from icesize.table.records.ledger import MOST_EARLIER, MOST_RETIRED, LedgerEntry, parse
from icesize.table.state.committed_batches import SOURCE_ID, is_committed, noted
from tests.support.catalogs import OF_EACH_FORMAT, catalog_of
from tests.support.tables import arrow, make_table, request_on, run, sqlite_catalog, theirs, write

AUDIT, MAIN = "audit", "main"


@pytest.fixture(params=OF_EACH_FORMAT)
def catalog(request: pytest.FixtureRequest) -> Catalog:
    """Catalogs of both kinds, whose tables are of format v2 and v3, with a table."""
    made = catalog_of(request)
    make_table(made)
    deliver(made, 0, MAIN)
    return made


def deliver(catalog: Catalog, batch: int, branch: str = AUDIT, stream: str = "s", ids: Iterable[int] = ()) -> Report:
    """A batch of three rows, in a process of its own."""
    rows = arrow([*ids] or range(3 * batch, 3 * batch + 3))
    sized = icesize.open(None, "lake.db.t", catalog=catalog, branch=branch)
    return sized.upsert(rows, "id", "ts", stream_id=stream, batch_id=batch)


def point(catalog: Catalog, branch: str, snapshot_id: int) -> None:
    """Create or move a branch, as `fast_forward`, `create_branch` and a rollback do."""
    table = catalog.load_table("db.t")
    ref = SetSnapshotRefUpdate(
        ref_name=branch, type=SnapshotRefType.BRANCH, snapshot_id=snapshot_id,
        max_ref_age_ms=None, max_snapshot_age_ms=None, min_snapshots_to_keep=None,
    )  # fmt: skip
    theirs(table).catalog.commit_table(table, (), (ref,))


def head(catalog: Catalog, branch: str = AUDIT) -> int:
    """The snapshot that a branch points to."""
    return catalog.load_table("db.t").metadata.refs[branch].snapshot_id


def branch_off(catalog: Catalog) -> None:
    """Make the branch again at the head of `main`."""
    table = catalog.load_table("db.t")
    if AUDIT in table.metadata.refs:
        theirs(table).manage_snapshots().remove_branch(AUDIT).commit()
    point(catalog, AUDIT, head(catalog, MAIN))


def publish(catalog: Catalog) -> None:
    """Move `main` to the head of the branch."""
    point(catalog, MAIN, head(catalog))


def expire(catalog: Catalog) -> None:
    """Expire all snapshots but the heads."""
    table = catalog.load_table("db.t")
    heads = {ref.snapshot_id for ref in table.metadata.refs.values()}
    ids = [s.snapshot_id for s in table.metadata.snapshots if s.snapshot_id not in heads]
    theirs(table).maintenance.expire_snapshots().by_ids(ids).commit()


def ids_on(catalog: Catalog, branch: str) -> list[int]:
    """All rows of a branch, by id."""
    table: Table = catalog.load_table("db.t")
    return sorted(table.scan(snapshot_id=table.metadata.refs[branch].snapshot_id).to_arrow()["id"].to_pylist())


@pytest.mark.parametrize("expiring", [False, True])
def test_a_branch_that_is_published_every_ten_batches(catalog: Catalog, expiring: bool) -> None:
    """Each row is on `main` once, and each replay is skipped, on the branch as after its publication."""
    branch_off(catalog)
    for batch in range(1, 24):
        assert not deliver(catalog, batch).already_committed
        assert deliver(catalog, batch).already_committed
        if batch % 10 == 0:
            publish(catalog)
            if expiring:
                expire(catalog)
            assert deliver(catalog, batch).already_committed
    assert ids_on(catalog, MAIN) == [*range(63)]
    publish(catalog)
    assert deliver(catalog, 23, MAIN).already_committed
    assert not deliver(catalog, 24, MAIN).already_committed
    assert ids_on(catalog, MAIN) == [*range(75)]
    assert icesize.open(None, "lake.db.t", catalog=catalog).verify().findings == ()


def test_a_branch_that_was_thrown_away(catalog: Catalog) -> None:
    """Its unpublished batches do not count: a checkpoint that is past them is refused, an older one delivers them."""
    branch_off(catalog)
    for batch in range(1, 6):
        deliver(catalog, batch)
        if batch == 2:
            publish(catalog)
    branch_off(catalog)
    assert ids_on(catalog, AUDIT) == [*range(9)]
    for batch in (5, 6):
        with pytest.raises(
            BatchOutOfOrder, match=rf"lacks batches 3 to {batch - 1}, .* older checkpoint.* --forget s`"
        ):
            deliver(catalog, batch)
    assert deliver(catalog, 2).already_committed
    for batch in range(3, 7):
        assert not deliver(catalog, batch).already_committed
        assert deliver(catalog, batch).already_committed
    publish(catalog)
    assert ids_on(catalog, MAIN) == [*range(21)]


def test_a_rollback_of_the_newest_batch(catalog: Catalog) -> None:
    """A branch that was rolled back by one batch gets it again if it is delivered again, and not the next one."""
    branch_off(catalog)
    deliver(catalog, 1)
    before = head(catalog)
    deliver(catalog, 2)
    point(catalog, AUDIT, before)
    with pytest.raises(BatchOutOfOrder, match="lacks batches 2 to 2"):
        deliver(catalog, 3)
    assert not deliver(catalog, 2).already_committed
    assert not deliver(catalog, 3).already_committed
    assert ids_on(catalog, AUDIT) == [*range(12)]


def test_going_on_without_what_was_thrown_away(catalog: Catalog) -> None:
    """After the stream is forgotten, its next batch is accepted, and only `main` has the rows of before."""
    branch_off(catalog)
    deliver(catalog, 1)
    branch_off(catalog)
    with pytest.raises(BatchOutOfOrder):
        deliver(catalog, 2)
    metadata = catalog.load_table("db.t").metadata
    assert not is_committed(metadata, AUDIT, LedgerEntry("s", "s", 2), accept_new_checkpoint=True)
    sized = icesize.open(None, "lake.db.t", catalog=catalog)
    assert [(each.branch, each.batch_id) for each in sized.streams()] == [(AUDIT, 1), (MAIN, 0)]
    sized.forget_stream("s")
    assert sized.streams() == []
    assert not deliver(catalog, 2).already_committed
    assert deliver(catalog, 2).already_committed
    assert ids_on(catalog, AUDIT) == [0, 1, 2, 6, 7, 8]


def test_two_branches_with_one_stream_each(catalog: Catalog) -> None:
    """Streams do not see each other, and a stream that writes to two branches counts on each of them."""
    branch_off(catalog)
    point(catalog, "other", head(catalog, MAIN))
    for batch in range(1, 4):
        deliver(catalog, batch)
        deliver(catalog, batch, "other", stream="t", ids=[100 + batch])
        deliver(catalog, batch, "other")
        assert deliver(catalog, batch, "other").already_committed
        assert deliver(catalog, batch).already_committed
    assert ids_on(catalog, AUDIT) == [*range(12)]
    assert ids_on(catalog, "other") == [*range(12), 101, 102, 103]


def test_expiry_on_each_branch(catalog: Catalog) -> None:
    """Where an ancestor has expired, a batch counts on the branch it went to; on others, a replay is refused."""
    branch_off(catalog)
    deliver(catalog, 1)
    publish(catalog)
    deliver(catalog, 0, MAIN, stream="t", ids=[90])
    deliver(catalog, 0, AUDIT, stream="u", ids=[91])
    expire(catalog)
    assert deliver(catalog, 1).already_committed
    with pytest.raises(BatchOutOfOrder, match="are known, and not whether the branch has this one"):
        deliver(catalog, 1, MAIN)
    assert not deliver(catalog, 2).already_committed
    assert ids_on(catalog, AUDIT) == [*range(9), 91]


def test_a_batch_that_was_cherry_picked(catalog: Catalog) -> None:
    """A copy of the snapshot on `main` counts as the batch: a replay there is skipped."""
    branch_off(catalog)
    deliver(catalog, 1)
    with pytest.raises(BatchOutOfOrder, match="lacks batches 1 to 1"):
        deliver(catalog, 2, MAIN)
    table = catalog.load_table("db.t")
    picked = {SOURCE_ID: str(head(catalog))}
    run(catalog, request_on(table, [write(table, [3, 4, 5])], summary=picked), table)
    assert deliver(catalog, 1, MAIN).already_committed
    assert not deliver(catalog, 2, MAIN).already_committed
    assert ids_on(catalog, MAIN) == [*range(9)]


def test_another_query_on_a_branch(catalog: Catalog) -> None:
    """The batches that a branch has from `main` hold for it: another query under the same stream id is refused."""
    branch_off(catalog)
    metadata = catalog.load_table("db.t").metadata
    with pytest.raises(StreamMismatch):
        is_committed(metadata, AUDIT, LedgerEntry("s", "another", 0))
    assert not is_committed(metadata, AUDIT, LedgerEntry("s", "another", 0), accept_new_checkpoint=True)


def test_remembered_deletes_stay_on_main(catalog: Catalog) -> None:
    """A table that remembers deletes refuses upserts into a branch."""
    branch_off(catalog)
    icesize.open(None, "lake.db.t", catalog=catalog).rekey(tombstones="1h")
    with pytest.raises(UnsupportedTable, match="the table remembers deletes"):
        deliver(catalog, 1)


def test_an_entry_fits_into_a_property() -> None:
    """Hive keeps 4,000 characters: an entry with the most batches and retired queries is shorter."""
    entry = LedgerEntry(
        "s" * 200, "q" * 100, 10**9, ("0" * 12,) * MOST_RETIRED, "b" * 100, (2**63 - 1, 10**7),
        ((10**9, 2**63 - 1, 10**7),) * MOST_EARLIER,
    )  # fmt: skip
    assert len(entry.to_json()) < 4_000
    assert parse(entry.to_json()) == entry


def test_entries_of_earlier_releases_count_on_main(catalog: Catalog) -> None:
    """An entry without a snapshot counts on `main`; on a branch, its batch is refused and a later one accepted."""
    branch_off(catalog)
    metadata = catalog.load_table("db.t").metadata
    old = LedgerEntry("s", "s", 7)
    later = {LedgerEntry("t", "t", 0).key: '{"version": 2}'}
    metadata = metadata.model_copy(update={"properties": {old.key: old.to_json(), **later}})
    assert is_committed(metadata, MAIN, old)
    with pytest.raises(BatchOutOfOrder):
        is_committed(metadata, MAIN, replace(old, batch_id=6))
    with pytest.raises(BatchOutOfOrder, match="not whether the branch has this one"):
        is_committed(metadata, AUDIT, old)
    assert not is_committed(metadata, AUDIT, replace(old, batch_id=8))


@dataclass
class World:
    """Metadata under random changes, and the batches that each snapshot really has, with all its ancestors."""

    metadata: TableMetadata
    numbered: bool
    rows: dict[int, frozenset[int]] = field(default_factory=dict)
    sequence_number: int = 0
    newest: int = -1
    committed: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.commit(MAIN, frozenset())

    def head(self, branch: str) -> int:
        """The head of a branch, which is created at the head of `main` when it is first named."""
        refs = self.metadata.refs
        if MAIN in refs and branch not in refs:
            self.point(branch, refs[MAIN].snapshot_id)
        return self.metadata.refs[branch].snapshot_id if refs else 0

    def has(self, branch: str) -> frozenset[int]:
        return self.rows.get(self.head(branch), frozenset())

    def set(self, **changes: object) -> None:
        self.metadata = self.metadata.model_copy(update=changes)

    def point(self, branch: str, snapshot_id: int | None) -> None:
        refs = {name: ref for name, ref in self.metadata.refs.items() if name != branch}
        if snapshot_id is not None:
            refs[branch] = SnapshotRef.model_validate({"snapshot-id": snapshot_id, "type": "branch"})
        main = refs[MAIN].snapshot_id if MAIN in refs else None
        self.set(refs=refs, current_snapshot_id=main)

    def commit(self, branch: str, batches: frozenset[int], source: int | None = None) -> int:
        """A snapshot on a branch with these batches."""
        self.sequence_number += 1
        parent, number = self.head(branch) or None, 1000 + self.sequence_number
        more = {} if source is None else {SOURCE_ID: str(source)}
        made = Snapshot(
            snapshot_id=number, parent_snapshot_id=parent,
            sequence_number=self.sequence_number if self.numbered else None,
            timestamp_ms=self.sequence_number, manifest_list="m", summary=Summary(Operation.APPEND, **more),
        )  # fmt: skip
        self.rows[number] = self.rows.get(parent or 0, frozenset()) | batches
        self.set(snapshots=[*self.metadata.snapshots, made])
        self.point(branch, number)
        return number

    def deliver(self, branch: str, batch: int) -> None:
        """A batch as icesize commits it: never twice, and with a whole history never past what the branch lacks."""
        entry, has = LedgerEntry("s", "q", batch), self.has(branch)
        try:
            done = is_committed(self.metadata, branch, entry)
        except BatchOutOfOrder:
            return
        is_whole = len(self.rows) == len(self.metadata.snapshots)
        if done:
            assert batch in has or not is_whole, "the branch does not have the batch"
            return
        assert batch not in has, "the branch has the batch already"
        skipped = {each for each in self.committed - has if max(has, default=-1) < each < batch}
        assert not (skipped and is_whole), "the checkpoint is past batches that the branch lacks"
        self.committed |= {batch}
        number = self.commit(branch, frozenset({batch}))
        stored = noted(self.metadata, branch, entry, (number, self.sequence_number if self.numbered else 0))
        self.set(properties={**self.metadata.properties, stored.key: stored.to_json()})

    def next(self, branch: str) -> None:
        """The stream goes on."""
        self.newest += 1
        self.deliver(branch, self.newest)

    def replay(self, branch: str, age: int) -> None:
        """A checkpoint delivers an earlier batch, maybe to another branch."""
        self.deliver(branch, max(0, self.newest - age))

    def publish(self, source: str, target: str) -> None:
        """A fast-forward."""
        if self.has(target) <= self.has(source):
            self.point(target, self.head(source))

    def pick(self, branch: str) -> None:
        """A cherry-pick of the newest snapshot of a branch to `main`."""
        source, known = self.head(branch), {s.snapshot_id: s for s in self.metadata.snapshots}
        parent = known[source].parent_snapshot_id if source in known else None
        new = self.rows[source] - self.rows[parent] if source in self.rows and parent in known else frozenset()
        if new and not new & self.has(MAIN):
            self.commit(MAIN, new, source)

    def others(self, branch: str) -> None:
        """A commit of another writer."""
        self.commit(branch, frozenset())

    def expire(self, cuts: bool) -> None:
        """Keep heads only; PyIceberg also forgets the ids of expired parents."""
        heads = {ref.snapshot_id for ref in self.metadata.refs.values()}
        kept = [s for s in self.metadata.snapshots if s.snapshot_id in heads]
        if cuts:
            ids = [s.parent_snapshot_id if s.parent_snapshot_id in heads else None for s in kept]
            kept = [s.model_copy(update={"parent_snapshot_id": i}) for s, i in zip(kept, ids, strict=True)]
        self.set(snapshots=kept)


NAMES = st.sampled_from([MAIN, AUDIT, "other"])
STEPS = st.one_of(
    st.tuples(st.just("next"), NAMES),
    st.tuples(st.just("next"), NAMES),
    st.tuples(st.just("replay"), NAMES, st.integers(0, 3)),
    st.tuples(st.just("publish"), NAMES, NAMES),
    st.tuples(st.just("point"), st.sampled_from([AUDIT, "other"]), st.none()),
    st.tuples(st.just("pick"), NAMES),
    st.tuples(st.just("others"), NAMES),
    st.tuples(st.just("expire"), st.booleans()),
)


@pytest.fixture(scope="module")
def lake_metadata(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TableMetadata]:
    """Metadata of an empty table."""
    lake = sqlite_catalog(tmp_path_factory.mktemp("lake"))
    yield make_table(lake).metadata
    lake.close()


@settings(max_examples=300)
@given(numbered=st.booleans(), steps=st.lists(STEPS, max_size=40))
def test_no_batch_is_committed_twice(
    lake_metadata: TableMetadata, numbered: bool, steps: list[tuple[Any, ...]]
) -> None:
    """Whatever happens to branches, snapshots and checkpoints, in format v1 as in later ones: no branch gets a batch
    that it has."""
    world = World(lake_metadata, numbered)
    for kind, *arguments in steps:
        getattr(world, kind)(*arguments)
