"""By which columns a table should be clustered, from the filters that its queries ask. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from icesize.planning.plan import Clustering, Plan
from icesize.results import Advice
from icesize.units import format_count

MOST_COLUMNS = 4
"""Columns that a curve is laid through."""
WORTH_IT = 0.5
"""Share of the files that queries open now, that they may still open for clustering to be advised."""


@dataclass(frozen=True)
class FilterUse:
    """A filter of queries, asked so many `times`, and the data files that it opens by partitions and bounds.

    It asks for single values of the columns `points`, and for ranges or other properties of `ranges`.
    """

    text: str
    points: tuple[str, ...]
    ranges: tuple[str, ...]
    files: int
    times: int = 1


def columns_to_cluster(uses: Sequence[FilterUse], partitioned: Collection[str] = ()) -> tuple[str, ...]:
    """Columns of which filters ask single values, the most asked first; a further one only where at least half as many
    filters ask for it, and not for those before. Columns of `partitioned` tell files apart already."""
    chosen: list[str] = []
    left = [use for use in uses if use.files > 1]
    most = 0
    while len(chosen) < MOST_COLUMNS:
        asked = Counter[str]()
        for use in left:
            asked.update({column: use.times for column in use.points if column not in partitioned})
        if not asked:
            break
        column, times = max(asked.items(), key=lambda item: (item[1], item[0]))
        if 2 * times < most:
            break
        most = max(most, times)
        chosen.append(column)
        left = [use for use in left if column not in use.points]
    return tuple(chosen)


def recommend(
    table: str, files: int, uses: Sequence[FilterUse], columns: Sequence[str], plan: Plan
) -> tuple[Advice, ...]:
    """What clustering the table's `files` by `columns`, as `plan` does it, would spare these filters: one sentence,
    with the command where it is worth it."""
    asking = [use for use in uses if set(use.points) & set(columns)]
    times, all_times = sum(use.times for use in asking), sum(use.times for use in uses)
    if plan.clustering is None or not times:
        return ()
    now = sum(use.files * use.times for use in asking) / times
    then = sum(use.times * _then(use, plan.clustering) for use in asking) / times
    of, by = format_count(all_times, "filter"), ", ".join(columns)
    select = "selects" if times == 1 else "select"
    sentence = f"{times:,} of {of} {select} single values of {by}, in {now:,.1f} of {files:,} files on average"
    if then > WORTH_IT * now:
        return (Advice(f"{sentence}; clustering would leave {then:,.1f}: not worth it"),)
    how = " --strategy hilbert" if len(columns) > 1 else ""
    command = f"icesize cluster {table} --by {','.join(columns)}{how}"
    return (Advice(f"{sentence}, about {then:,.1f} after clustering: `{command}`", command),)


def _then(use: FilterUse, clustering: Clustering) -> float:
    """Files that a filter opens after the plan: as many fewer as queries on its best column do; at least one."""
    before, expected = clustering.before, clustering.expected_point_files
    ratios = [expected[c] / before[c].point_files for c in use.points if c in expected and before[c].point_files > 0]
    return min(use.files, max(1.0, use.files * min(ratios, default=1.0)))
