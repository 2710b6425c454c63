"""Answers about one table, from its metadata: the sizes of its files, and its batches under other policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from icesize.errors import TableError
from icesize.maintenance.table_context import Selection, TableContext
from icesize.planning.advice.merging import advise_merging
from icesize.planning.cluster_by import HILBERT, SORT
from icesize.planning.insight.filters import FilterUse, columns_to_cluster, recommend
from icesize.planning.insight.inspection import Inspection, inspect
from icesize.planning.insight.scan_cost import PRICE_PER_1000_REQUESTS
from icesize.planning.merging.planner import plan_merges
from icesize.planning.merging.simulation import MOST_BATCHES, PolicyComparison, compare
from icesize.results import Advice
from icesize.storage.locations import is_object_store
from icesize.table.state.column_advice import columns_advised
from icesize.table.state.filter_scan import filters_asked, partition_columns
from icesize.table.state.naming import Labels
from icesize.table.state.partition_changes import arrivals_of, bytes_per_partition_and_day, recent_appends
from icesize.table.state.where import Where


def inspect_files(
    context: TableContext, where: Where, filters: Sequence[str], price_per_1000_requests: float | None
) -> Inspection:
    """Return the sizes of the files in the partitions that `where` selects, and the files that each filter opens."""
    selection = context.select(where)
    if not filters:
        return inspect_selected(selection, price_per_1000_requests)
    uses, recommended = _filters_asked(context, selection, filters, where)
    return replace(inspect_selected(selection, price_per_1000_requests, recommended), filters=uses)


def _filters_asked(
    context: TableContext, selection: Selection, filters: Sequence[str], where: Where
) -> tuple[tuple[FilterUse, ...], tuple[Advice, ...]]:
    """Return the files that each filter opens, and advice on the columns to cluster by."""
    from icesize.maintenance.jobs.clustering import ClusterRequest, plan_clustering  # slow: imports what orders rows

    table, layout = selection.current.table, selection.layout
    uses = filters_asked(table.metadata, table.io, filters, layout.partitions.keys(), context.handle.store)
    columns = columns_to_cluster(uses, partition_columns(table.metadata))
    if not columns:
        return uses, ()
    try:
        plan = plan_clustering(context, ClusterRequest(columns, HILBERT if len(columns) > 1 else SORT, where))
    except TableError as error:
        return uses, (Advice(str(error)),)
    return uses, recommend(selection.current.name, layout.files, uses, columns, plan) if plan else ()


def inspect_selected(
    selection: Selection,
    price_per_1000_requests: float | None = None,
    recommended: tuple[Advice, ...] | None = None,
) -> Inspection:
    """Return the inspection; without `recommended`, derive the columns to cluster by from file bounds."""
    current, layout = selection.current, selection.layout
    if recommended is None:
        recommended = columns_advised(current, layout, selection.filter.may_hold)
    metadata = current.table.metadata
    labels = Labels(metadata)
    if price_per_1000_requests is None and is_object_store(metadata.location):
        price_per_1000_requests = PRICE_PER_1000_REQUESTS
    return inspect(
        layout,
        current.policy,
        {key: labels.values(key) for key in layout.partitions},
        plan_merges(layout, current.policy),
        table=current.name,
        bytes_per_partition_and_day=bytes_per_partition_and_day(metadata),
        notes=(*current.warnings, *selection.notes),
        price_per_1000_requests=price_per_1000_requests,
        recommended=(*advise_merging(arrivals_of(metadata), current.policy), *recommended),
    )


def compare_policies(context: TableContext, policies: Sequence[Mapping[str, object]]) -> PolicyComparison:
    """Replay the newest batches of the history under the current policy, and with the keys of each of `policies`."""
    current = context.load()
    others = {", ".join(f"{k} {v}" for k, v in keys.items()): current.policy.changed(keys) for keys in policies}
    appends = recent_appends(current.table.metadata, current.table.io, context.handle.store, MOST_BATCHES)
    batches = [{key: seen.size_bytes for key, seen in append.items()} for append in appends]
    return compare(current.name, batches, {"current": current.policy, **others})
