"""Layouts of tables as literals and as Hypothesis strategies, and what becomes of them when a plan is carried out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from hypothesis import strategies as st

from icesize.planning.files import FileFact, Layout, PartitionFacts, PartitionKey, SkipReason
from icesize.planning.plan import Plan
from icesize.policy import SizePolicy
from tests.support.examples import examples

DEFAULT = SizePolicy()
SMALL_TARGET = SizePolicy(target_file_size_bytes=100_000)
LIMIT = SMALL_TARGET.small_file_limit_bytes
SPEC = 1
thorough = examples(150)


def key(value: object, spec_id: int = SPEC) -> PartitionKey:
    return PartitionKey(spec_id, (value,))


def partition(
    value: object,
    sizes: list[int],
    *,
    limit: int = LIMIT,
    quiet: int = 0,
    obstacles: list[SkipReason | None] | None = None,
    spec_id: int = SPEC,
) -> PartitionFacts:
    """A partition holding one file of each size; those below `limit` become small files."""
    owner = key(value, spec_id)
    reasons = obstacles or [None] * len(sizes)
    small = tuple(
        FileFact(f"{value}/{n}.parquet", size, size // 10 + 1, owner, n, reason)
        for n, (size, reason) in enumerate(zip(sizes, reasons, strict=True))
        if size < limit
    )
    rows = sum(size // 10 + 1 for size in sizes)
    return PartitionFacts(owner, f"hour={value}", len(sizes), sum(sizes), rows, small, quiet)


def layout_of(*partitions: PartitionFacts, limit: int = LIMIT) -> Layout:
    return Layout(7, 70, SPEC, limit, {facts.key: facts for facts in partitions})


def simulate(layout: Layout, plan: Plan, size_of_output: Callable[[int], int] = lambda size: size) -> Layout:
    """The layout after the plan was carried out, each output as large as `size_of_output(planned)` says."""
    partitions = dict(layout.partitions)
    sequence = layout.sequence_number + 1
    for number, group in enumerate(plan.groups):
        facts = partitions[group.partition]
        inputs = {file.path for file in group.inputs}
        sizes = [size_of_output(part) for part in equal_parts(group.size_bytes, group.outputs)]
        created = [
            FileFact(f"{sequence}/{number}-{n}.parquet", size, 1, group.partition, sequence)
            for n, size in enumerate(sizes)
        ]
        kept = [file for file in facts.small if file.path not in inputs]
        kept += [file for file in created if file.size_bytes < layout.small_file_limit_bytes]
        partitions[group.partition] = dataclasses.replace(
            facts,
            files=facts.files - len(inputs) + group.outputs,
            size_bytes=facts.size_bytes - group.size_bytes + sum(sizes),
            small=tuple(kept),
        )
    return dataclasses.replace(layout, partitions=partitions, sequence_number=sequence)


def equal_parts(total: int, parts: int) -> list[int]:
    return [total * (n + 1) // parts - total * n // parts for n in range(parts)]


def mergeable(layout: Layout, owner: PartitionKey) -> int:
    return sum(file.obstacle is None for file in layout.partitions[owner].small)


@st.composite
def policies(draw: st.DrawFn) -> SizePolicy:
    if draw(st.booleans()):
        return DEFAULT
    target = draw(st.integers(1_000, 2**30))
    return SizePolicy(
        target_file_size_bytes=target,
        small_file_limit_bytes=int(target * draw(st.floats(0.01, 1.0))),
        max_small_files=draw(st.integers(1, 9)),
        cold_after_commits=draw(st.integers(1, 30)),
    )


@st.composite
def layouts(draw: st.DrawFn, policy: SizePolicy, obstacles: bool = True) -> Layout:
    limit = policy.small_file_limit_bytes
    kinds = st.one_of(
        st.integers(1, max(1, limit // 100)),
        st.integers(1, max(1, limit - 1)),
        st.integers(max(1, limit - limit // 10), max(1, limit - 1)),
        st.integers(limit, 3 * policy.target_file_size_bytes),
    )
    reasons = st.sampled_from([None, None, None, SkipReason.HAS_DELETES, SkipReason.NOT_PARQUET, SkipReason.ENCRYPTED])
    found = []
    for value in range(draw(st.integers(0, 4))):
        sizes = draw(st.lists(kinds, max_size=40))
        found.append(
            partition(
                value if value else None,
                sizes,
                limit=limit,
                quiet=draw(st.integers(0, 40)),
                obstacles=draw(st.lists(reasons, min_size=len(sizes), max_size=len(sizes))) if obstacles else None,
                spec_id=draw(st.sampled_from([SPEC, SPEC, SPEC, 0])) if obstacles else SPEC,
            )
        )
    return layout_of(*found, limit=limit)
