"""The columns that a table should be clustered by, from the filters of its queries. Pure."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from icesize.planning.cluster_by import MOST_CURVE_COLUMNS
from icesize.planning.plan import Clustering, Plan
from icesize.results import Advice
from icesize.units import format_count

WORTH_IT = 0.5
"""Share of the files that queries open today. icesize advises clustering if queries then open at most this share."""


@dataclass(frozen=True)
class FilterUse:
    """A filter that queries use `times` times, and the number of data `files` that it opens by partitions and bounds.

    The filter selects single values of the columns `points`, and ranges or other properties of the columns `ranges`.
    """

    text: str
    points: tuple[str, ...]
    ranges: tuple[str, ...]
    files: int
    times: int = 1


def columns_to_cluster(uses: Sequence[FilterUse], partitioned: Collection[str] = ()) -> tuple[str, ...]:
    """Return the columns of which filters select single values, the most frequent first.

    A further column is added only if at least half as many filters as for the most frequent column select it and none
    of the columns before it. Columns of `partitioned` are left out because partitions already separate their values.
    """
    chosen: list[str] = []
    left = [use for use in uses if use.files > 1]
    most = 0
    while len(chosen) < MOST_CURVE_COLUMNS:
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
    """Return one sentence about the files that these filters would save if the table is clustered by `columns`.

    `files` is the number of files of the table, and `plan` clusters them. The sentence has the command if clustering is
    worth it. Returns nothing if no filter selects single values of `columns`, or if `plan` is not one of clustering.
    """
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
    command = f"icesize cluster {shlex.quote(table)} --by {shlex.quote(','.join(columns))}{how}"
    return (Advice(f"{sentence}, about {then:,.1f} after clustering: `{command}`", command),)


def _then(use: FilterUse, clustering: Clustering) -> float:
    """Return the files that a filter opens after the plan, at least 1.

    The number shrinks by the same factor as that of queries on the filter's best column.
    """
    before, expected = clustering.before, clustering.expected_point_files
    ratios = [expected[c] / before[c].point_files for c in use.points if c in expected and before[c].point_files > 0]
    return min(use.files, max(1.0, use.files * min(ratios, default=1.0)))
