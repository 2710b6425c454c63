"""Which snapshots stay: Iceberg's own rules, stream readers, versions of partitions, and the refs that hold them."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Collection, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icesize.errors import PolicyError
from icesize.planning.files import PartitionKey
from icesize.planning.retention.ancestry import (
    MAIN,
    TOMBSTONE_BRANCH,
    VERSION_TAG,
    RefFact,
    SnapshotFact,
    ancestors,
    history_of_main,
)
from icesize.planning.retention.planner import Retention, RetentionRules, plan_retention
from icesize.planning.retention.version_cover import covered_commits
from icesize.policy import SizePolicy
from tests.support.examples import examples

DAY = 86_400_000
NOW = 1_000 * DAY
FOR_EVER = 2**63 - 1
KEEP_NOTHING = RetentionRules(older_than_ms=NOW)
thorough = examples(300)


def key(value: object) -> PartitionKey:
    return PartitionKey(0, (value,))


def label(partition: PartitionKey) -> str:
    return f"hour={partition.values[0]}" if partition.values else ""


def version_tag(snapshot_id: int) -> RefFact:
    return RefFact(f"{VERSION_TAG}{snapshot_id}", False, snapshot_id)


def commits(
    *touched: str, first: int = 1, parent: int | None = None, operation: str = "overwrite"
) -> list[SnapshotFact]:
    """Snapshots `first`, `first` + 1, ..., a day apart up to yesterday; the letters are the partitions of each."""
    return [
        SnapshotFact(
            snapshot_id=first + n,
            parent_id=first + n - 1 if n else parent,
            timestamp_ms=NOW - (len(touched) - n) * DAY,
            operation=operation,
            touched=frozenset(map(key, letters)),
            sequence_number=first + n,
        )
        for n, letters in enumerate(touched)
    ]


def main_at(snapshots: Sequence[SnapshotFact]) -> RefFact:
    return RefFact(MAIN, True, snapshots[-1].snapshot_id)


@dataclasses.dataclass(frozen=True)
class World:
    """A table; `truth` is everything that `main` ever went through and still stands on, oldest first."""

    snapshots: list[SnapshotFact]
    refs: list[RefFact]
    truth: list[SnapshotFact]

    def plan(self, rules: RetentionRules, readers: Collection[int] = ()) -> Retention:
        return plan_retention(self.snapshots, self.refs, rules, NOW, readers=readers, label=label)

    def after(self, retention: Retention) -> World:
        """The table once the retention was carried out, changes of expired snapshots put down to the next kept one."""
        refs = [r for r in self.refs if r.name not in retention.expired_refs and r.name not in retention.version_tags]
        refs += [RefFact(name, False, snapshot_id) for name, snapshot_id in retention.version_tags.items()]
        return seen([s for s in self.snapshots if s.snapshot_id in retention.kept], refs, self.truth)


def seen(snapshots: list[SnapshotFact], refs: list[RefFact], truth: list[SnapshotFact]) -> World:
    """A table in which some snapshots of `truth` are missing."""
    places = {s.snapshot_id: n for n, s in enumerate(truth)}
    touched = {}
    for before, snapshot in itertools.pairwise(history_of_main(snapshots, refs)):
        since = truth[places[before.snapshot_id] + 1 : places[snapshot.snapshot_id] + 1]
        touched[snapshot.snapshot_id] = frozenset[PartitionKey]().union(*(s.touched for s in since))
    facts = [dataclasses.replace(s, touched=touched.get(s.snapshot_id, s.touched)) for s in snapshots]
    return World(facts, refs, truth)


@st.composite
def worlds(draw: st.DrawFn, most: int = 14, rollbacks: bool = True) -> World:
    """Random commits on `main` and two branches, pairs of append and merge, rollbacks, tags, an expired beginning."""
    dice = random.Random(draw(st.integers(0, 2**32)))
    ids = dice.sample(range(1_000), most + 1)
    numbered = draw(st.booleans())
    heads: dict[str, int | None] = {MAIN: None}
    table: dict[int, SnapshotFact] = {}
    time = NOW - 12 * DAY

    def add(branch: str, operation: str, run_id: str | None) -> None:
        snapshot_id = ids[len(table)]
        touched = frozenset(map(key, dice.sample("abcd", dice.choice([0, 1, 1, 2]))))
        number = len(table) + 1 if numbered else 0
        table[snapshot_id] = SnapshotFact(snapshot_id, heads[branch], time, operation, run_id, touched, number)
        heads[branch] = snapshot_id

    for _ in range(draw(st.integers(1, most))):
        time += dice.choice([1, DAY // 2, DAY])
        branch = dice.choice([MAIN, MAIN, MAIN, MAIN, "one", "two"])
        heads.setdefault(branch, heads[MAIN])
        if len(table) + 2 <= most and dice.random() < 0.3:
            add(branch, "append", str(time))
            time += 1
            add(branch, "replace", str(time - 1))
        elif len(table) < most:
            add(branch, dice.choice(["append", "append", "overwrite", "delete", "replace"]), None)
        if rollbacks and dice.random() < 0.1 and heads[MAIN] is not None:
            heads[MAIN] = dice.choice(list(ancestors(table, heads[MAIN]))).snapshot_id
    truth = list(ancestors(table, heads[MAIN]))[::-1]
    refs = [own_retention(dice, RefFact(name, True, head)) for name, head in heads.items() if head is not None]
    for n, snapshot_id in enumerate(dice.sample(sorted(table), min(len(table), dice.choice([0, 1, 2, 3])))):
        refs.append(own_retention(dice, RefFact(f"tag{n}", False, snapshot_id)))
    if dice.random() < 0.5 and truth:
        oldest = dice.choice(truth)
        table = {i: s for i, s in table.items() if s.timestamp_ms >= oldest.timestamp_ms}
    return World(list(table.values()), refs, truth)


def own_retention(dice: random.Random, ref: RefFact) -> RefFact:
    """The ref, now and then with ages and a number of snapshots of its own."""
    age = dice.choice([None, None, None, 3 * DAY, 20 * DAY])
    if not ref.is_branch:
        return dataclasses.replace(ref, max_ref_age_ms=age)
    number = dice.choice([None, None, 1, 3])
    snapshot_age = dice.choice([None, None, DAY, 4 * DAY])
    return dataclasses.replace(ref, max_ref_age_ms=age, max_snapshot_age_ms=snapshot_age, min_snapshots_to_keep=number)


DAYS = st.integers(0, 15).map(lambda days: days * DAY)
VERSIONED = st.builds(
    RetentionRules,
    older_than_ms=DAYS.map(lambda age: NOW - age),
    retain_last=st.integers(1, 4),
    max_ref_age_ms=st.none() | DAYS,
    keep_versions=st.integers(1, 4),
    version_max_age_ms=DAYS,
)
RULES = VERSIONED | VERSIONED.map(lambda rules: without_versions(rules))


def without_versions(rules: RetentionRules) -> RetentionRules:
    return dataclasses.replace(rules, keep_versions=None)


def some_readers(world: World, seed: int) -> list[int]:
    dice = random.Random(seed)
    everything = [s.snapshot_id for s in world.snapshots] + [5_000]
    return dice.sample(everything, min(len(everything), dice.choice([0, 0, 1, 2])))


def kept_by_iceberg(world: World, rules: RetentionRules) -> tuple[set[int], set[str]]:
    """Iceberg's rule as its specification says it: snapshots that stay, refs that are removed."""
    table = {s.snapshot_id: s for s in world.snapshots}
    kept: set[int] = set()
    led_to: set[int] = set()
    removed = set()
    for ref in world.refs:
        limit = next((x for x in (ref.max_ref_age_ms, rules.max_ref_age_ms) if x is not None), FOR_EVER)
        if ref.name != MAIN and (ref.snapshot_id not in table or NOW - table[ref.snapshot_id].timestamp_ms > limit):
            removed.add(ref.name)
            continue
        line = [s.snapshot_id for s in ancestors(table, ref.snapshot_id)]
        kept |= set(line[:1])
        led_to |= set(line if ref.is_branch else line[:1])
        if ref.is_branch:
            number = rules.retain_last if ref.min_snapshots_to_keep is None else ref.min_snapshots_to_keep
            cut = rules.older_than_ms if ref.max_snapshot_age_ms is None else NOW - ref.max_snapshot_age_ms
            fits = [n < number or table[i].timestamp_ms >= cut for n, i in enumerate(line)]
            kept |= {i for n, i in enumerate(line) if all(fits[: n + 1])}
    kept |= {i for i, s in table.items() if i not in led_to and s.timestamp_ms >= rules.older_than_ms}
    return kept, removed


def kept_for_streams(world: World, readers: Collection[int]) -> set[int]:
    """From the newest append and from every reader's position on main to its head, and other readers' positions."""
    line = [s.snapshot_id for s in main_line(world)]
    starts = [s.snapshot_id for s in main_line(world) if s.operation == "append"][:1]
    starts += [position for position in readers if position in line]
    kept = {i for start in starts for i in line[: line.index(start) + 1]}
    return kept | (set(readers) & {s.snapshot_id for s in world.snapshots})


def main_line(world: World) -> list[SnapshotFact]:
    head = next((ref.snapshot_id for ref in world.refs if ref.name == MAIN), None)
    return list(ancestors({s.snapshot_id: s for s in world.snapshots}, head))


def states(world: World) -> list[tuple[int, dict[PartitionKey, int]]]:
    """Each commit of main with the number of the version of each partition that is read there; 0 before the first."""
    count = dict.fromkeys(map(key, "abcd"), 0)
    known = []
    for commit in covered_commits(history_of_main(world.snapshots, world.refs)):
        for partition in commit.touched:
            count[partition] += 1
        known.append((commit.snapshot_id, dict(count)))
    return known


def due(world: World, rules: RetentionRules) -> set[tuple[PartitionKey, int]]:
    """The versions that must be readable."""
    assert rules.keep_versions is not None
    history = history_of_main(world.snapshots, world.refs)
    young = [c for c in covered_commits(history) if c.timestamp_ms >= NOW - rules.version_max_age_ms]
    wanted = set()
    for partition in {partition for commit in young for partition in commit.touched}:
        numbers = {count[partition] for _, count in states(world)}
        if history[0].parent_id is None and history[0].sequence_number == 1:
            numbers.discard(0)
        wanted |= {(partition, number) for number in sorted(numbers)[-rules.keep_versions :]}
    return wanted


def readable(world: World, kept: Collection[int]) -> set[tuple[PartitionKey, int]]:
    return {item for snapshot_id, count in states(world) if snapshot_id in kept for item in count.items()}


def fewest_added(world: World, rules: RetentionRules, kept: Collection[int]) -> int:
    """By trial of all sets: how many commits must be added so that every due version is readable."""
    candidates = [snapshot_id for snapshot_id, _ in states(world) if snapshot_id not in kept]
    wanted = due(world, rules)
    for number in range(len(candidates) + 1):
        for added in itertools.combinations(candidates, number):
            if wanted <= readable(world, {*kept, *added}):
                return number
    raise AssertionError("a due version is readable nowhere")


@thorough
@given(worlds(), RULES, st.integers())
def test_every_snapshot_is_kept_with_reasons_or_expired(world: World, rules: RetentionRules, seed: int) -> None:
    """Kept and expired share the snapshots, oldest first; what stays has a reason, heads and retained refs stay."""
    retention = world.plan(rules, some_readers(world, seed))
    ordered = [s.snapshot_id for s in sorted(world.snapshots, key=lambda s: s.timestamp_ms)]
    assert list(retention.kept) == [i for i in ordered if i in retention.kept]
    assert list(retention.expired) == [i for i in ordered if i not in retention.kept]
    assert all(reasons and all(reasons) for reasons in retention.kept.values())
    for ref in world.refs:
        assert (ref.name in retention.expired_refs) or ref.snapshot_id in retention.kept
    assert MAIN not in retention.expired_refs
    assert set(retention.version_tags.values()) <= set(retention.kept)


@thorough
@given(worlds(), RULES, st.integers())
def test_rules_without_versions_are_those_of_iceberg_and_of_streams(
    world: World, rules: RetentionRules, seed: int
) -> None:
    """Nothing else is kept than what Iceberg would keep and what stream readers need, and no other ref is removed."""
    readers = some_readers(world, seed)
    retention = world.plan(without_versions(rules), readers)
    kept, removed = kept_by_iceberg(world, rules)
    assert set(retention.kept) == kept | kept_for_streams(world, readers)
    assert set(retention.expired_refs) == removed
    assert (retention.version_tags, retention.dropped_versions) == ({}, ())


@thorough
@given(worlds(most=9), VERSIONED, st.integers())
def test_due_versions_stay_readable_in_the_fewest_snapshots(world: World, rules: RetentionRules, seed: int) -> None:
    """Every due version is in a kept commit, and no smaller set of added snapshots would do (all sets are tried)."""
    readers = some_readers(world, seed)
    others = set(world.plan(without_versions(rules), readers).kept)
    retention = world.plan(rules, readers)
    assert due(world, rules) <= readable(world, retention.kept)
    assert len(retention.kept) - len(others) == fewest_added(world, rules, others)
    assert retention.dropped_versions == ()


@thorough
@given(worlds(), RULES, st.integers(), st.integers(1, 10))
def test_a_second_plan_finds_nothing_to_do(world: World, rules: RetentionRules, seed: int, most: int) -> None:
    """On what the first plan left, with the refs that it left, the same rules expire nothing, tags included."""
    readers = set(some_readers(world, seed)) - {5_000}
    rules = dataclasses.replace(rules, max_snapshots=most)
    first = world.plan(rules, readers)
    second = world.after(first).plan(rules, readers)
    assert list(second.kept) == list(first.kept)
    assert (second.expired, second.expired_refs, second.dropped_versions) == ((), (), ())
    # more where the beginning of the table is gone: what was before a partition may be a version of it now
    assert first.version_tags.items() <= second.version_tags.items()


@thorough
@given(worlds(rollbacks=False), st.integers(1, 3), st.integers(0, 2**32))
def test_versions_survive_any_number_of_expiries(world: World, keep_versions: int, seed: int) -> None:
    """Expiry after every few commits leaves the newest versions readable, as if nothing had ever been expired."""
    dice = random.Random(seed)
    rules = RetentionRules(older_than_ms=NOW, keep_versions=keep_versions, version_max_age_ms=100 * DAY)
    grown = World([], [], world.truth)
    for n, snapshot in enumerate(world.truth):
        refs = [ref for ref in grown.refs if ref.name != MAIN]
        grown = seen([*grown.snapshots, snapshot], [*refs, RefFact(MAIN, True, snapshot.snapshot_id)], world.truth)
        # never between an append and its merge
        last = n + 1 == len(world.truth) or snapshot.run_id is None or snapshot.run_id != world.truth[n + 1].run_id
        if last and dice.random() < 0.5:
            grown = grown.after(grown.plan(rules))
            whole = World(world.truth[: n + 1], [RefFact(MAIN, True, snapshot.snapshot_id)], world.truth)
            assert due(whole, rules) <= readable(whole, {s.snapshot_id for s in grown.snapshots})


@thorough
@given(worlds(), RULES, st.integers(), st.randoms(use_true_random=False))
def test_order_of_the_input_does_not_matter(
    world: World, rules: RetentionRules, seed: int, dice: random.Random
) -> None:
    """Snapshots, refs and readers in another order give the same retention, to the word."""
    readers = some_readers(world, seed)
    mixed = World(dice.sample(world.snapshots, len(world.snapshots)), dice.sample(world.refs, len(world.refs)), [])
    planned = world.plan(rules, readers)
    again = mixed.plan(rules, dice.sample(readers, len(readers)))
    assert again == planned
    assert list(again.kept.items()) == list(planned.kept.items())


@thorough
@given(worlds(), RULES, st.integers(), st.integers())
def test_another_rule_never_expires_more(world: World, rules: RetentionRules, seed: int, other: int) -> None:
    """Versions, readers, a tag, a longer age and more snapshots per branch each add to what stays."""
    alone = without_versions(rules)
    readers = some_readers(world, seed)
    least = set(world.plan(alone, readers).kept)
    assert least <= set(world.plan(rules, readers).kept)
    assert least <= set(world.plan(alone, [*readers, *some_readers(world, other)]).kept)
    longer = dataclasses.replace(alone, older_than_ms=rules.older_than_ms - DAY)
    assert least <= set(world.plan(longer, readers).kept)
    assert least <= set(world.plan(dataclasses.replace(alone, retain_last=5), readers).kept)
    if world.snapshots:
        tag = RefFact("new", False, random.Random(other).choice(world.snapshots).snapshot_id, FOR_EVER)
        assert least | {tag.snapshot_id} <= set(
            World(world.snapshots, [*world.refs, tag], []).plan(alone, readers).kept
        )


@thorough
@given(worlds(), RULES, st.integers(1, 12))
def test_max_snapshots_gives_up_the_oldest_versions(world: World, rules: RetentionRules, most: int) -> None:
    """Above the bound the oldest snapshots that only versions need go, none that another rule keeps; it is said."""
    others = set(world.plan(without_versions(rules)).kept)
    every = world.plan(rules)
    bounded = world.plan(dataclasses.replace(rules, max_snapshots=most))
    added = [i for i in every.kept if i not in others]
    room = max(0, most - len(others))
    assert set(bounded.kept) == others | set(added[max(0, len(added) - room) :])
    assert bool(bounded.dropped_versions) == (len(added) > room)


def test_the_fewest_snapshots_are_found_with_their_reasons() -> None:
    """The last but one versions of four partitions take two snapshots beside the head, each tagged and explained."""
    history = commits("abcd", "a", "b", "c", "c", "d", "a", "")
    retention = plan_retention(history, [main_at(history)], RetentionRules(NOW, keep_versions=2), NOW, label=label)
    assert retention == Retention(
        kept={
            2: ("version of hour=b",),
            4: ("version of hour=a, hour=c, hour=d",),
            8: ("head of branch 'main'",),
        },
        expired=(1, 3, 5, 6, 7),
        expired_refs=(),
        version_tags={"icesize-version-2": 2, "icesize-version-4": 4},
        dropped_versions=(),
    )


def test_iceberg_stops_at_the_first_snapshot_that_fails() -> None:
    """Snapshots of exactly the age stay; one that is too old hides younger ones behind it; the newest always stay."""
    history = commits("", "", "", "", "")
    history[1] = dataclasses.replace(history[1], timestamp_ms=NOW)
    rules = RetentionRules(older_than_ms=history[3].timestamp_ms)
    younger = "on branch 'main' and younger than 2 days"
    assert plan_retention(history, [main_at(history)], rules, NOW).kept == {
        4: (younger,),
        5: ("head of branch 'main'", younger),
    }
    among = "among the newest 3 of branch 'main'"
    assert plan_retention(history, [main_at(history)], RetentionRules(NOW + 1, retain_last=3), NOW).kept == {
        3: (among,),
        4: (among,),
        5: ("head of branch 'main'",),
    }


def test_branches_and_tags_have_their_own_retention() -> None:
    """What a ref says of itself is above the rules, in both directions, and a tag keeps one snapshot."""
    history = commits(*[""] * 10)
    refs = [
        main_at(history),
        RefFact("long", True, 6, max_ref_age_ms=FOR_EVER, max_snapshot_age_ms=7 * DAY),
        RefFact("many", True, 3, max_ref_age_ms=8 * DAY, min_snapshots_to_keep=2),
        RefFact("short", False, 7, max_ref_age_ms=4 * DAY - 1),
        RefFact("exact", False, 8, max_ref_age_ms=3 * DAY),
    ]
    retention = plan_retention(history, refs, RetentionRules(NOW, max_ref_age_ms=0), NOW)
    young = "on branch 'long' and younger than 7 days"
    assert retention.kept == {
        2: ("among the newest 2 of branch 'many'",),
        3: ("head of branch 'many'",),
        4: (young,),
        5: (young,),
        6: ("head of branch 'long'", young),
        8: ("tag 'exact'",),
        10: ("head of branch 'main'",),
    }
    assert retention.expired_refs == ("short",)


def test_the_branch_of_tombstones_has_no_age() -> None:
    """It stays even without an age of its own; a tag of its name does not."""
    history, rules = commits(*[""] * 10), RetentionRules(NOW, max_ref_age_ms=0)
    branch = RefFact(TOMBSTONE_BRANCH, True, 3, None, 1, 1)
    assert plan_retention(history, [main_at(history), branch], rules, NOW).expired_refs == ()
    tag = dataclasses.replace(branch, is_branch=False)
    assert plan_retention(history, [main_at(history), tag], rules, NOW).expired_refs == (TOMBSTONE_BRANCH,)


def test_refs_to_snapshots_that_are_gone_are_removed() -> None:
    """A dangling tag or branch goes, whatever age it allows itself; `main` is never removed."""
    history = commits("", "")
    refs = [main_at(history), RefFact("tag", False, 77, FOR_EVER), RefFact("branch", True, 78)]
    assert plan_retention(history, refs, KEEP_NOTHING, NOW).expired_refs == ("branch", "tag")
    lost = plan_retention(history, [RefFact(MAIN, True, 79)], RetentionRules(NOW, keep_versions=2), NOW)
    assert (lost.expired, lost.expired_refs) == ((1, 2), ())


def test_snapshots_on_no_branch_stay_while_they_are_young() -> None:
    """After a rollback the abandoned snapshots stay up to the age, and those of a branch that is removed too."""
    history = commits(*[""] * 6)
    refs = [RefFact(MAIN, True, 2), RefFact("old", True, 4, max_ref_age_ms=0), RefFact("tag", False, 6)]
    retention = plan_retention(history, refs, RetentionRules(history[3].timestamp_ms), NOW)
    abandoned = "on no branch, but younger than 3 days"
    assert retention.kept == {
        2: ("head of branch 'main'",),
        4: (abandoned,),
        5: (abandoned,),
        6: ("tag 'tag'",),
    }
    assert (retention.expired, retention.expired_refs) == ((1, 3), ("old",))


def test_the_newest_append_stays_with_its_merge_and_all_that_is_newer() -> None:
    """Offsets of stream readers stand on the newest append; what came after it must not have a gap."""
    history = commits("", "a", "a", "a", "b", "")
    history[1] = dataclasses.replace(history[1], operation="append")
    history[2] = dataclasses.replace(history[2], operation="append", run_id="r")
    history[3] = dataclasses.replace(history[3], operation="replace", run_id="r")
    newer = "newer than the newest append of branch 'main'"
    assert plan_retention(history, [main_at(history)], KEEP_NOTHING, NOW).kept == {
        3: ("the newest append of branch 'main'",),
        4: (newer,),
        5: (newer,),
        6: ("head of branch 'main'", newer),
    }


def test_what_readers_have_not_read_stays() -> None:
    """From the position that is furthest behind to the head nothing goes; a position beside main stays alone."""
    history = commits(*[""] * 6)
    beside = SnapshotFact(9, 2, NOW - DAY, "append", sequence_number=9)
    retention = plan_retention([*history, beside], [main_at(history)], KEEP_NOTHING, NOW, readers=[9, 5, 3, 3, 70])
    newer = "newer than the position of a reader"
    assert retention.kept == {
        3: ("position of a reader",),
        4: (newer,),
        5: ("position of a reader", newer),
        6: ("head of branch 'main'", newer),
        9: ("position of a reader",),
    }
    assert retention.expired == (1, 2)


def pairs() -> list[SnapshotFact]:
    """Two commits of an append and its merge, all in one partition."""
    history = commits("a", "a", "a", "a")
    for n, run_id in enumerate(["x", "x", "y", "y"]):
        history[n] = dataclasses.replace(history[n], operation="replace" if n % 2 else "append", run_id=run_id)
    return history


@pytest.mark.parametrize("operation", ["append", "overwrite"])
def test_new_rows_that_are_merged_at_once_are_no_version(operation: str) -> None:
    """Two pairs are two versions, readable where the merges are; an overwrite (`absorb`) is like an append."""
    history = pairs()
    history[0] = dataclasses.replace(history[0], operation=operation)
    for keep_versions, kept in ((1, {3, 4}), (2, {2, 3, 4}), (3, {2, 3, 4})):
        rules = RetentionRules(NOW, keep_versions=keep_versions)
        assert set(plan_retention(history, [main_at(history)], rules, NOW).kept) == kept


@pytest.mark.parametrize(
    ("append", "merge"),
    [
        ({"run_id": None}, {"run_id": None}),
        ({"run_id": "z"}, {}),
    ],
)
def test_snapshots_that_are_no_pair_are_versions_each(append: dict[str, str], merge: dict[str, str]) -> None:
    """Without a common run, an append and what follows it are two commits."""
    history = pairs()
    history[0] = dataclasses.replace(history[0], **append)  # type: ignore[arg-type]
    history[1] = dataclasses.replace(history[1], **merge)  # type: ignore[arg-type]
    rules = RetentionRules(NOW, keep_versions=3)
    assert set(plan_retention(history, [main_at(history)], rules, NOW).kept) == {1, 2, 3, 4}


def test_a_pair_is_adjacent() -> None:
    """A merge that follows an append over a gap is a commit of its own, although their run is the same."""
    history = pairs()
    history[3] = dataclasses.replace(history[3], run_id="x")
    known = [history[0], history[3]]
    retention = plan_retention(known, [main_at(known), version_tag(1)], RetentionRules(NOW, keep_versions=2), NOW)
    assert (tuple(retention.kept), retention.version_tags) == ((1, 4), {"icesize-version-1": 1})


def test_the_partition_must_have_changed_lately_not_the_version() -> None:
    """An old version stays when its partition changed within the age, bound included; else it goes."""
    history = commits("ab", "b", "", "a", "")
    refs = [main_at(history)]
    rules = RetentionRules(NOW, keep_versions=2, version_max_age_ms=2 * DAY)
    assert plan_retention(history, refs, rules, NOW, label=label).kept == {
        3: ("version of hour=a",),
        5: ("head of branch 'main'",),
    }
    tighter = dataclasses.replace(rules, version_max_age_ms=2 * DAY - 1)
    assert set(plan_retention(history, refs, tighter, NOW).kept) == {5}
    wider = dataclasses.replace(rules, version_max_age_ms=4 * DAY)
    assert set(plan_retention(history, refs, wider, NOW).kept) == {1, 5}


@pytest.mark.parametrize(
    ("first", "parent", "sequence_number", "kept"),
    [(1, None, 1, {3}), (1, 0, 1, {2, 3}), (2, None, 2, {3, 4}), (1, None, 0, {2, 3})],
    ids=["whole", "parent-expired", "parent-id-dropped", "v1"],
)
def test_the_oldest_known_state_is_a_version_where_the_beginning_may_have_expired(
    first: int, parent: int | None, sequence_number: int, kept: set[int]
) -> None:
    """In the first snapshot of a table its later partitions are not there; after older ones expired they may be."""
    history = commits("b", "", "a", first=first, parent=parent)
    history[0] = dataclasses.replace(history[0], sequence_number=sequence_number)
    assert set(plan_retention(history, [main_at(history)], RetentionRules(NOW, keep_versions=2), NOW).kept) == kept


def test_an_unpartitioned_table_is_called_the_table() -> None:
    """All snapshots of an unpartitioned table touch its one partition, which has no name."""
    history = [dataclasses.replace(s, touched=frozenset([PartitionKey(0)])) for s in commits("", "", "")]
    retention = plan_retention(history, [main_at(history)], RetentionRules(NOW, keep_versions=2), NOW)
    assert retention.kept == {2: ("version of the table",), 3: ("head of branch 'main'",)}


@pytest.mark.parametrize(
    ("letters", "words"),
    [("abc", "a, b, c"), ("abcd", "a, b, c and 1 more partition"), ("edcba", "a, b, c and 2 more partitions")],
)
def test_three_partitions_are_named(letters: str, words: str) -> None:
    """A reason names the first three partitions and counts the others; values are names where no label is given."""
    history = commits(letters, letters)
    retention = plan_retention(history, [main_at(history)], RetentionRules(NOW, keep_versions=2), NOW)
    assert retention.kept[1] == (f"version of {words}",)


def test_what_max_snapshots_gives_up_is_said() -> None:
    """Snapshots that hold versions go, the oldest first, until the bound is met; what is lost is counted and named."""
    history = commits("abcde", "a", "b", "c", "d", "e", "abcde")
    dropped_versions = {}
    for most in (4, 3, 2, 1):
        rules = RetentionRules(NOW, keep_versions=3, max_snapshots=most)
        retention = plan_retention(history, [main_at(history)], rules, NOW, label=label)
        dropped_versions[most] = (tuple(retention.kept), retention.dropped_versions)
        assert list(retention.version_tags.values()) == [i for i in retention.kept if i != 7]
    assert dropped_versions == {
        4: ((1, 6, 7), ()),
        3: ((1, 6, 7), ()),
        2: (
            (6, 7),
            (
                "5 versions of hour=a, hour=b, hour=c and 2 more partitions cannot be kept: "
                "that takes 1 snapshot more than 'max-snapshots' (2)",
            ),
        ),
        1: (
            (7,),
            (
                "10 versions of hour=a, hour=b, hour=c and 2 more partitions cannot be kept: "
                "that takes 2 snapshots more than 'max-snapshots' (1)",
            ),
        ),
    }


def test_version_tags_that_are_not_needed_are_removed() -> None:
    """A version tag keeps nothing: with its version out of the count, or versions not asked for, it goes."""
    history = commits("a", "a", "a", "a")
    refs = [main_at(history), *map(version_tag, (1, 2, 3)), RefFact(f"{VERSION_TAG}mine", False, 4)]
    two = plan_retention(history, refs, RetentionRules(NOW, keep_versions=2), NOW)
    assert (tuple(two.kept), two.version_tags) == ((3, 4), {"icesize-version-3": 3})
    assert two.expired_refs == ("icesize-version-1", "icesize-version-2", "icesize-version-mine")
    none = plan_retention(history, refs, KEEP_NOTHING, NOW)
    assert (tuple(none.kept), none.version_tags) == ((4,), {})
    assert none.expired_refs == tuple(sorted(ref.name for ref in refs[1:]))


def test_a_branch_with_the_name_of_a_version_tag_is_respected() -> None:
    """Only tags are ours: a branch may hold commits of somebody."""
    history = commits("a", "a", "a")
    refs = [main_at(history), RefFact(f"{VERSION_TAG}work", True, 2)]
    retention = plan_retention(history, refs, KEEP_NOTHING, NOW)
    assert retention.kept[2] == (f"head of branch '{VERSION_TAG}work'",)
    assert retention.expired_refs == ()


def test_a_version_under_a_tag_of_somebody_outlives_that_tag() -> None:
    """A snapshot that a user's tag keeps serves versions, gets a version tag too, and stays when the user's is gone."""
    history = commits("ab", "a", "b", "a", "b")
    world = World(history, [main_at(history), RefFact("audit", False, 3)], history)
    rules = RetentionRules(NOW, keep_versions=2)
    first = world.plan(rules)
    assert first.kept[3] == ("tag 'audit'", "version of hour=a, hour=b")
    assert first.version_tags == {"icesize-version-3": 3}
    after = world.after(first)
    after = World(after.snapshots, [ref for ref in after.refs if ref.name != "audit"], history)
    second = after.plan(rules)
    assert (second.kept[3], second.expired, second.expired_refs) == (("version of hour=a, hour=b",), (), ())


def test_snapshots_that_are_kept_anyway_serve_versions() -> None:
    """A user's tag spares a snapshot of our own; it gets no version tag where one that must be added serves as well."""
    history = commits("a", "a", "", "", "a")
    refs = [main_at(history), RefFact("audit", False, 3)]
    rules = RetentionRules(NOW, keep_versions=2)
    alone = plan_retention(history, refs, rules, NOW, label=label)
    assert (tuple(alone.kept), alone.version_tags) == ((3, 5), {"icesize-version-3": 3})
    history = commits("ab", "a", "", "b", "ab")
    both = plan_retention(history, refs, rules, NOW, label=label)
    assert both.version_tags == {"icesize-version-4": 4}
    assert both.kept == {
        3: ("tag 'audit'",),
        4: ("version of hour=a, hour=b",),
        5: ("head of branch 'main'",),
    }


def test_snapshots_that_main_left_are_no_history() -> None:
    """A version tag on a snapshot newer than the one that main went back to, or on a side line, says nothing."""
    history = commits("a", "a", "a", "a")
    tags = [version_tag(i) for i in (1, 3)]
    gap = [history[0], *history[2:]]
    forward = [RefFact(MAIN, True, 4), *tags]
    assert [s.snapshot_id for s in history_of_main(gap, forward)] == [1, 3, 4]
    back = [RefFact(MAIN, True, 1), *tags]
    assert [s.snapshot_id for s in history_of_main(gap, back)] == [1]
    retention = plan_retention(gap, back, RetentionRules(NOW, keep_versions=3), NOW)
    assert (tuple(retention.kept), retention.expired_refs) == ((1,), ("icesize-version-1", "icesize-version-3"))
    # main went back to 2 and on to 9, so that 3 was left at 2
    ahead = SnapshotFact(9, 2, NOW, "append", sequence_number=9)
    assert [s.snapshot_id for s in history_of_main([*history, ahead], [RefFact(MAIN, True, 9), *tags])] == [1, 2, 9]
    # beside main, and older than its beginning by a clock that was late
    late = SnapshotFact(3, 1, NOW - 9 * DAY, "append")
    main = [dataclasses.replace(snapshot, sequence_number=0) for snapshot in history[:2]]
    assert [s.snapshot_id for s in history_of_main([*main, late], [main_at(main), *tags])] == [1, 2]


def test_pieces_of_history_are_joined_in_order() -> None:
    """Sequence numbers order what has lost its parents, times where there are none; parents of what is held count."""
    history = commits(*"abcdefgh")
    refs = [main_at(history), *map(version_tag, (5, 4, 2))]
    known = [s for s in history if s.snapshot_id in (2, 4, 5, 7, 8)]
    skewed = [dataclasses.replace(s, timestamp_ms=NOW - s.snapshot_id) for s in known]
    without = [dataclasses.replace(s, sequence_number=0) for s in known]
    for snapshots in (known, skewed, without):
        assert [s.snapshot_id for s in history_of_main(snapshots[::-1], refs)] == [2, 4, 5, 7, 8]


def test_nothing_to_plan() -> None:
    """A table without snapshots, and one that has no `main`."""
    rules = RetentionRules(NOW, keep_versions=2)
    assert plan_retention([], [], rules, NOW) == Retention({}, (), (), {}, ())
    headless = plan_retention(commits("a", "a"), [version_tag(1)], rules, NOW)
    assert (headless.expired, headless.expired_refs) == ((1, 2), ("icesize-version-1",))


@pytest.mark.parametrize(
    ("age_ms", "words"),
    [
        (5 * DAY, "5 days"),
        (DAY, "1 day"),
        (DAY - 1, "24 hours"),
        (90 * 60_000, "1.5 hours"),
        (60_000, "1 minute"),
        (1_000, "1 second"),
        (1, "1 ms"),
        (-5, "0 ms"),
    ],
)
def test_ages_are_said_in_the_largest_unit(age_ms: int, words: str) -> None:
    """The reason of a snapshot that stays for its age names that age; one that lies ahead counts as none."""
    (snapshot,) = commits("")
    ahead = dataclasses.replace(snapshot, timestamp_ms=NOW + 10)
    retention = plan_retention([ahead], [RefFact(MAIN, True, 1)], RetentionRules(NOW - age_ms), NOW)
    assert retention.kept == {1: ("head of branch 'main'", f"on branch 'main' and younger than {words}")}


REFUSED = [
    ("retain_last", 0, "'retain-last' (0) must be >= 1: the newest snapshot of a branch is the branch itself"),
    ("max_ref_age_ms", -1, "'max-ref-age-ms' (-1) must be >= 0: no branch or tag is younger than now"),
    (
        "keep_versions",
        0,
        "'keep-versions' (0) must be >= 1: the newest version is the table itself; leave it out to keep no older ones",
    ),
    ("version_max_age_ms", -1, "'version-max-age-ms' (-1) must be >= 0: no version is younger than now"),
    ("max_snapshots", 0, "'max-snapshots' (0) must be >= 1: the newest snapshot is the table itself"),
    ("progress_max_age_ms", -1, "'progress-max-age-ms' (-1) must be >= 0: no progress is younger than now"),
]


@pytest.mark.parametrize(("name", "value", "message"), REFUSED, ids=lambda value: str(value)[:20])
def test_rules_that_keep_nothing_are_refused(name: str, value: int, message: str) -> None:
    """A value below the least that makes sense names its key and what it would mean; the least itself is taken."""
    with pytest.raises(PolicyError) as caught:
        RetentionRules(NOW, **{name: value})
    assert str(caught.value) == message
    assert (caught.value.key, caught.value.value) == (name.replace("_", "-"), value)
    assert getattr(RetentionRules(NOW, **{name: value + 1}), name) == value + 1


def test_rules_have_the_defaults_of_the_policy() -> None:
    """Expiry called with rules of its own keeps versions as a table without policy does."""
    rules, policy = RetentionRules(NOW), SizePolicy()
    for name in ("keep_versions", "version_max_age_ms", "max_snapshots", "progress_max_age_ms"):
        assert getattr(rules, name) == getattr(policy, name)


def test_the_newest_progress_of_each_writer_stays_for_a_while() -> None:
    """One snapshot for each writer, and the run from it to the head; progress that is too old is not kept."""
    history = commits("a", "a", "a", "a", "a", "a")
    writers = {1: ("Flink job j",), 2: ("Flink job j", "Kafka Connect c"), 4: ("Spark query q",), 5: ("Spark query q",)}
    history = [dataclasses.replace(s, writers=writers.get(s.snapshot_id, ())) for s in history]
    times = {s.snapshot_id: s.timestamp_ms for s in history}

    def progress(age_ms: int) -> tuple[list[int], dict[int, list[str]]]:
        rules = RetentionRules(NOW, progress_max_age_ms=age_ms)
        kept = plan_retention(history, [main_at(history)], rules, NOW).kept
        named = {i: [why for why in whys if "newest progress" in why] for i, whys in kept.items()}
        return list(kept), {i: whys for i, whys in named.items() if whys}

    kept, named = progress(NOW - times[2])
    assert kept == [2, 3, 4, 5, 6]
    names = ("Flink job j", "Kafka Connect c", "Spark query q")
    flink, kafka, spark = (f"the newest progress of {name}" for name in names)
    assert named == {2: [flink, kafka], 5: [spark]}
    assert progress(NOW - times[2] - 1) == ([5, 6], {5: [spark]})
    assert progress(NOW - times[6]) == ([6], {})


def test_huge_values_keep_everything() -> None:
    """Ages and numbers beyond any table are as good as for ever."""
    history = commits("a", "a", "ab", "b")
    refs = [main_at(history), RefFact("tag", False, 1)]
    for rules in (
        RetentionRules(NOW - FOR_EVER, max_ref_age_ms=FOR_EVER),
        RetentionRules(NOW, retain_last=FOR_EVER),
        RetentionRules(NOW, keep_versions=FOR_EVER, version_max_age_ms=FOR_EVER, max_snapshots=FOR_EVER),
    ):
        retention = plan_retention(history, refs, rules, NOW)
        assert (tuple(retention.kept), retention.expired_refs) == ((1, 2, 3, 4), ())


def test_thousands_of_snapshots_are_planned() -> None:
    """5,000 snapshots touch 200 of 1,000 partitions each, in turns: three versions of all take three snapshots."""
    groups = [frozenset(key(n) for n in range(first, first + 200)) for first in range(0, 1_000, 200)]
    history = [
        SnapshotFact(n, n - 1 if n else None, NOW - 5_000 + n, "overwrite", touched=groups[n % 5]) for n in range(5_000)
    ]
    retention = plan_retention(history, [main_at(history)], RetentionRules(NOW, keep_versions=3), NOW, label=label)
    assert retention.kept == {
        4_989: ("version of hour=0, hour=1, hour=10 and 997 more partitions",),
        4_994: ("version of hour=0, hour=1, hour=10 and 997 more partitions",),
        4_999: ("head of branch 'main'",),
    }
    assert len(retention.expired) == 4_997
