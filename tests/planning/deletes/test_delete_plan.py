"""Which data files get their delete files put together, which are taken along, and where rewriting is better."""

from __future__ import annotations

import pytest

from icesize.planning.deletes.delete_plan import DeleteRewrite, plan_delete_rewrites
from icesize.planning.files import DeleteFile, Head, Layout, PartitionFacts, PartitionKey, Partitions, SkipReason
from icesize.planning.merging.planner import plan_merges
from icesize.policy import SizePolicy
from tests.support.layouts import SPEC, key, partition

LARGE = 50_000_000
POLICY = SizePolicy(target_file_size_bytes=40_000_000)
P = key("p")


def equality(number: int, partition: PartitionKey = P, rows: int = 10) -> DeleteFile:
    """An equality delete file of so many rows."""
    return DeleteFile(f"e{number}.parquet", 1_000, rows, partition, number, equality_ids=(1,))


def position(number: int, path: str | None, rows: int = 10) -> DeleteFile:
    """A position delete file of one data file, or of nobody knows which."""
    return DeleteFile(f"p{number}-{path}.parquet", 1_000, rows, P, number, referenced_path=path)


def planned(*partitions: PartitionFacts, policy: SizePolicy = POLICY) -> list[DeleteRewrite]:
    layout = Layout(
        Head(1, 100), SPEC, policy.small_file_limit_bytes, Partitions.of({facts.key: facts for facts in partitions})
    )
    return list(plan_delete_rewrites(layout, policy))


def names(rewrite: DeleteRewrite) -> tuple[list[str], list[str]]:
    """Those that are due, and all."""
    return [file.path for file in rewrite.due], [file.path for file in rewrite.files]


def test_what_shares_delete_files_is_taken_along() -> None:
    """Equality deletes go only with the last file that they hit: a small one that is hit by two of them is taken along,
    one that is younger than all of them is not."""
    facts = partition("p", [LARGE, 5_000, LARGE], deletes=[equality(n) for n in (1, 1, 1, 1, 1, 2, 2)])
    [rewrite] = planned(facts)
    assert names(rewrite) == (["p/0.parquet"], ["p/1.parquet", "p/0.parquet"])
    assert rewrite.size_bytes == LARGE + 5_000


def test_position_deletes_of_one_file_concern_no_other() -> None:
    """Those that may be about several do."""
    own = [position(number, "p/0.parquet") for number in range(5, 12)]
    other = position(12, "p/1.parquet")
    [rewrite] = planned(partition("p", [LARGE, LARGE], deletes=[*own, other]))
    assert names(rewrite) == (["p/0.parquet"], ["p/0.parquet"])
    [rewrite] = planned(partition("p", [LARGE, LARGE], deletes=[*own[1:], other, position(13, None)]))
    assert names(rewrite) == (["p/0.parquet"], ["p/0.parquet", "p/1.parquet"])


@pytest.mark.parametrize("count", [6, 7])
def test_more_than_may_be_read_with_a_file(count: int) -> None:
    """As many as `max-delete-files` are no reason yet; merges leave out what is planned so, and what they leave is no
    backlog."""
    facts = partition("p", [LARGE], deletes=[equality(n) for n in range(1, count + 1)])
    rewrites = planned(facts)
    assert len(rewrites) == (count > POLICY.max_delete_files)
    layout = Layout(Head(1, 100), SPEC, POLICY.small_file_limit_bytes, Partitions.of({facts.key: facts}))
    excluded_paths = [file.path for rewrite in rewrites for file in rewrite.due]
    assert plan_merges(layout, POLICY, excluded_paths=excluded_paths).groups == ()
    assert plan_merges(layout, POLICY, excluded_paths=excluded_paths).partitions_over_delete_limit == ()
    assert len(plan_merges(layout, POLICY).groups) == (count > POLICY.max_delete_files)


@pytest.mark.parametrize(
    ("sizes", "deletes", "policy"),
    [
        ([50_000], [equality(n) for n in range(1, 8)], POLICY),
        ([LARGE], [equality(n, rows=LARGE // 70) for n in range(1, 8)], POLICY),
        ([LARGE], [position(n, "p/0.parquet", rows=LARGE // 230) for n in range(1, 8)], POLICY),
        ([LARGE], [equality(n) for n in range(1, 8)], SizePolicy(delete_file_threshold=7)),
        ([LARGE], [equality(1)], SizePolicy(max_delete_files=0)),
        ([LARGE], [equality(n) for n in range(1, 8)], SizePolicy(small_file_limit_bytes=0)),
    ],
    ids=["small", "expected share", "known share", "threshold", "none allowed", "merging is off"],
)
def test_where_rewriting_is_better(sizes: list[int], deletes: list[DeleteFile], policy: SizePolicy) -> None:
    """A file that is smaller than what one more costs, of which much is deleted, known or probably, or that the policy
    wants to be rewritten or left alone."""
    assert planned(partition("p", sizes, deletes=deletes), policy=policy) == []


def test_what_cannot_go_is_not_begun() -> None:
    """Deletes that hit a file which cannot be covered, or files of other partitions."""
    seven = [equality(n) for n in range(1, 8)]
    assert planned(partition("p", [LARGE, LARGE], deletes=seven, obstacles=[None, SkipReason.ENCRYPTED])) == []
    everywhere = [*seven[1:], equality(1, PartitionKey(0))]
    assert planned(partition("p", [LARGE], deletes=everywhere)) == []
    old = partition("p", [LARGE], deletes=seven, spec_id=SPEC - 1)
    assert planned(old) == []
    alone = PartitionKey(SPEC, (None,))
    facts = partition(None, [LARGE], deletes=[equality(n, alone) for n in range(1, 8)])
    assert len(planned(facts)) == 1
    assert planned(facts, old) == []


def test_the_order_does_not_depend_on_that_of_the_layout() -> None:
    """Partitions by their values."""
    both = [partition(v, [LARGE], deletes=[equality(n, key(v)) for n in range(1, 8)]) for v in ("b", "a")]
    assert [rewrite.label for rewrite in planned(*both)] == ["hour=a", "hour=b"]
