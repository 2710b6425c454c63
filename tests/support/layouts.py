"""Layouts of tables as literals and as Hypothesis strategies, and what becomes of them when a plan is carried out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from hypothesis import strategies as st

from icesize.planning.deletes.delete_reach import PartitionDeletes, is_due, only_path
from icesize.planning.files import (
    DeleteFile,
    FileFact,
    Head,
    Layout,
    PartitionFacts,
    PartitionKey,
    Partitions,
    SkipReason,
)
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
    deletes: Sequence[DeleteFile] = (),
) -> PartitionFacts:
    """A partition holding one file of each size, numbered from 0; those below `limit` become small files, and
    others large ones where a delete hits them."""
    owner = key(value, spec_id)
    reasons = obstacles or [None] * len(sizes)
    files = [
        FileFact(f"{value}/{n}.parquet", size, size // 10 + 1, owner, n, reason, file_sequence_number=n)
        for n, (size, reason) in enumerate(zip(sizes, reasons, strict=True))
    ]
    rows = sum(file.rows for file in files)
    facts = PartitionFacts(owner, f"hour={value}", len(sizes), sum(sizes), rows, (), -quiet)
    return noted(facts, files, deletes, limit)


def noted(
    facts: PartitionFacts, files: Sequence[FileFact], deletes: Sequence[DeleteFile], limit: int
) -> PartitionFacts:
    """The partition with these of its files as values, each with its deletes, as a reader of layouts has them."""
    known = PartitionDeletes(deletes)
    with_deletes = [
        dataclasses.replace(file, deletes=known.files if hits.delete_files else (), **hits._asdict())
        for file in files
        for hits in [known.hitting(file)]
    ]
    return dataclasses.replace(
        facts,
        small=tuple(file for file in with_deletes if file.size_bytes < limit),
        large=tuple(file for file in with_deletes if file.size_bytes >= limit and file.delete_files),
    )


def equality_delete(owner: PartitionKey, number: int) -> DeleteFile:
    return DeleteFile(f"eq-{owner.values}-{number}", 1, 1, owner, number, equality_ids=(1,))


def position_delete(owner: PartitionKey, number: int, path: str | None = None, rows: int = 1) -> DeleteFile:
    """One about a file, or about files that it does not tell."""
    name = f"pos-{owner.values}-{number}-{path}"
    return DeleteFile(name, 1, rows, owner, number, referenced_path=path)


def layout_of(*partitions: PartitionFacts, limit: int = LIMIT) -> Layout:
    return Layout(Head(7, 70), SPEC, limit, Partitions.of({facts.key: facts for facts in partitions}))


def simulate(layout: Layout, plan: Plan, size_of_output: Callable[[int], int] = lambda size: size) -> Layout:
    """The layout after the plan was carried out, each output as large as `size_of_output(planned)` says. Outputs have
    the greatest number of their inputs and of the equality deletes that were applied, and position deletes that can be
    about no file any more are gone."""
    partitions = dict(layout.partitions)
    sequence = layout.head.sequence_number + 1
    for number, group in enumerate(plan.groups):
        facts = partitions[group.partition]
        inputs = {file.path for file in group.inputs}
        sizes = [size_of_output(part) for part in equal_parts(group.live_bytes, group.outputs)]
        rows = equal_parts(sum(file.rows - file.deleted_rows for file in group.inputs), group.outputs)
        applied = [d.sequence_number for file in group.inputs for d in file.deletes if d.equality_ids]
        newest = max(max(file.sequence_number for file in group.inputs), *applied, 0)
        created = [
            FileFact(f"{sequence}/{number}-{n}.parquet", size, rows[n], group.partition, newest)
            for n, size in enumerate(sizes)
        ]
        created = [dataclasses.replace(file, file_sequence_number=sequence) for file in created]
        kept = [file for file in facts.small + facts.large if file.path not in inputs]
        changed = dataclasses.replace(
            facts,
            files=facts.files - len(inputs) + group.outputs,
            size_bytes=facts.size_bytes - group.size_bytes + sum(sizes),
        )
        partitions[group.partition] = noted(
            changed, [*kept, *created], _deletes_left(facts, kept), layout.small_file_limit_bytes
        )
    head = dataclasses.replace(layout.head, sequence_number=sequence)
    return dataclasses.replace(layout, partitions=Partitions.of(partitions), head=head)


def _deletes_left(facts: PartitionFacts, kept: Sequence[FileFact]) -> list[DeleteFile]:
    deletes = next((file.deletes for file in facts.with_deletes), ())
    paths, oldest = {file.path for file in kept}, min((file.file_sequence_number for file in kept), default=1 << 60)
    return [
        delete
        for delete in deletes
        if delete.equality_ids
        or (delete.sequence_number >= oldest if (only := only_path(delete)) is None else only in paths)
    ]


def due(layout: Layout, policy: SizePolicy) -> list[FileFact]:
    """Files whose deletes are due and may be applied."""
    files = (f for facts in layout.partitions.values() for f in facts.with_deletes)
    return [file for file in files if file.obstacle is None and is_due(file, policy)]


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
        delete_ratio_threshold=draw(st.sampled_from([0.01, 0.3, 1.0])),
        delete_file_threshold=draw(st.sampled_from([None, 1, 3])),
        max_delete_files=draw(st.integers(0, 6)),
    )


@st.composite
def deletes_of(draw: st.DrawFn, value: object, files: int) -> list[DeleteFile]:
    """Delete files of all kinds in a partition with so many files."""
    owner, numbers = key(value), st.integers(0, 69)
    found = [equality_delete(owner, number) for number in draw(st.lists(numbers, max_size=9, unique=True))]
    found += [position_delete(owner, number) for number in draw(st.lists(numbers, max_size=9, unique=True))]
    about = st.tuples(st.integers(0, max(0, files - 1)), st.integers(0, 69), st.integers(0, 10**8))
    for file, number, rows in draw(st.lists(about, max_size=20, unique_by=lambda each: each[:2])):
        found.append(position_delete(owner, max(file, number), f"{value}/{file}.parquet", rows))
    for low, number in draw(st.lists(st.tuples(st.integers(0, 40), numbers), max_size=3)):
        bounds = {"lowest_path": f"{value}/{low}", "highest_path": f"{value}/{low + 9}"}
        found.append(DeleteFile(f"between-{value}-{low}-{number}", 1, 1, owner, number, **bounds))  # type: ignore[arg-type]
    return found


@st.composite
def layouts(draw: st.DrawFn, policy: SizePolicy, obstacles: bool = True, deletes: bool = True) -> Layout:
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
                deletes=draw(st.just([]) | deletes_of(value if value else None, len(sizes))) if deletes else (),
            )
        )
    return layout_of(*found, limit=limit)
