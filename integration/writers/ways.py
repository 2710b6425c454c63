"""The ways in which the bytes of files may move into merged ones, and in which they did."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from pyiceberg.table.metadata import TableMetadataUtil

from icesize.parquet.deletes.deleted_rows import deleted_rows
from icesize.parquet.files.data_file import MergeResult
from icesize.parquet.files.settings import Limits, WriteSettings
from icesize.parquet.format.footer import Footer, read_footer
from icesize.parquet.format.refusals import CopyRefused, Refusal
from icesize.parquet.format.sources import LocalSource, Source
from icesize.parquet.format.statistics import column_orders
from icesize.parquet.pages.column_plan import Part
from icesize.parquet.reading.prefetch import Fetched
from icesize.parquet.rewriting.copy_merge import CopyPlan, plan_copy
from icesize.parquet.rewriting.merge import with_enough_outputs
from icesize.parquet.rewriting.output_file import PageRun
from icesize.parquet.row_groups.compatibility import rare_encodings
from icesize.planning.files import FileFact, PartitionKey
from icesize.planning.plan import MergeTask
from integration.writers.pool import Made
from integration.writers.rows import metadata_of

COPYING = ("whole", "pages", "again")
"""Whole row groups, single pages, columns that are encoded again."""
_ANY = {"least_chunk_bytes": 1, "least_page_rows": 1, "least_page_bytes": 1, "least_copied_bytes": 1}
_WHOLE = Limits(good_group_rows=1, **_ANY)
_PAGES = Limits(good_group_rows=10**9, good_group_bytes=2**50, **_ANY)
_COMPARED = {"whole_file_bytes": 10_000, "compared_chunk_bytes": 0}
"""Least and greatest values are compared in small files, too, except those of a few rows."""


def limits_of(path: str, seed: int) -> Limits:
    """Return the limits of a path; where it is forced, files of any size are copied.

    A third of the seeds compare the least and greatest values of files of any size.
    """
    compared = _COMPARED if random.Random(f"compared {seed}").random() < 1 / 3 else {}
    limits = Limits() if path not in COPYING else _WHOLE if path == "whole" else _PAGES
    return replace(limits, **compared)


@lru_cache(None)
def why_not_copied(file: Made) -> str | None:
    """Return why no bytes of a file are copied even if it is merged alone; None if they are."""
    metadata = TableMetadataUtil.parse_raw(metadata_of(file.columns, "file:///none"))
    settings = replace(WriteSettings.of(metadata, {}, 2**29), limits=_WHOLE)
    fact = FileFact(file.path, Path(file.path).stat().st_size, file.rows, PartitionKey(0))
    try:
        plan_copy([fact], 1, settings, lambda facts: [LocalSource(each.path) for each in facts])
    except CopyRefused as refused:
        return refused.code.value
    return None


@lru_cache(None)
def alike(file: Made, path: str) -> Hashable:
    """Return what files have in common of which the bytes may lie in one file, copied by this path."""
    footer = _footer(file.path)
    codecs = frozenset(chunk.codec for group in footer.row_groups for chunk in group.chunks)
    rare = rare_encodings(footer, footer.row_groups) if path == "whole" else None
    return footer.meaning, column_orders(footer), codecs, rare


def _footer(path: str) -> Footer:
    return read_footer(LocalSource(path))


def ways_of(group: MergeTask, settings: WriteSettings, merged: MergeResult) -> dict[str, frozenset[str]]:
    """Return how the bytes of each file moved of which some were copied, by the plan of the merge."""
    names = dict[int, str]()
    with Fetched(settings, 1) as fetched:

        def find(facts: Sequence[FileFact]) -> Sequence[Source | Refusal]:
            sources = fetched.fetch(facts)
            names.update({id(source): Path(fact.path).stem for fact, source in zip(facts, sources, strict=True)})
            return sources

        deleted = deleted_rows(group.inputs, settings, group.partition, fetched)
        outputs = with_enough_outputs(group, settings, deleted).outputs
        try:
            plan = plan_copy(group.inputs, outputs, settings, find, deleted=deleted.positions)
        except CopyRefused:
            return {}
    if dict(plan.decode_reasons) != dict(merged.decode_reasons):
        return {}  # pages are read after the plan is made
    found = defaultdict[str, set[str]](set)
    for part, way in _ways_of_parts(plan):
        found[names[id(part.source)]].add(way)
    return {name: frozenset(ways) for name, ways in found.items()}


def _ways_of_parts(plan: CopyPlan) -> Iterator[tuple[Part, str]]:
    yield from ((part, "whole") for output in plan.outputs for part in output.whole)
    for run in plan.runs:
        for part in run.parts:
            yield from ((part, way) for way in _ways_of_part(run, part))


def _ways_of_part(run: PageRun, part: Part) -> Iterator[str]:
    for column in part.footer.columns:
        yield "again" if column.top in run.plan.reencode else "pages"
