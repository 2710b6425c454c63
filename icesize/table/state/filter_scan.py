"""The number of data files that filters of queries open: those that partition values and bounds do not rule out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from typing import cast

from pyiceberg.expressions import And, BooleanExpression, EqualTo, In, Not, Or, UnboundPredicate
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import IdentityTransform

from icesize.parquet.files.data_file import FileMetrics
from icesize.planning.files import PartitionKey
from icesize.planning.insight.filters import FilterUse
from icesize.table.catalog.access_errors import readable
from icesize.table.catalog.history import head_snapshot
from icesize.table.catalog.pyiceberg_internals import metrics_evaluator
from icesize.table.manifests.file_columns import read_metrics
from icesize.table.manifests.manifest_lists import manifests_of
from icesize.table.manifests.store import ManifestStore
from icesize.table.state.where import parsed, partition_filter


def filters_asked(
    metadata: TableMetadata,
    io: FileIO,
    filters: Sequence[str],
    partitions: Collection[PartitionKey],
    store: ManifestStore,
) -> tuple[FilterUse, ...]:
    """Return each filter once, with the number of data files of these partitions that a reader opens for it.

    Each manifest that may list such a file is read once.

    Raises ArgumentError for text that is not a filter and for columns that do not exist. Raises TableError if storage
    does not return manifests.
    """
    asked = [_Asked(metadata, text) for text in dict.fromkeys(filters)]
    with readable(metadata.location):
        for manifest in manifests_of(head_snapshot(metadata), io, metadata.specs()).data:
            if not (wanted := [each for each in asked if each.chosen.may_hold(manifest)]):
                continue
            facts = store.facts(io, manifest)
            concerned = {
                place: [each for each in wanted if each.chosen.touches(key)]
                for place, key in enumerate(facts.keys)
                if key in partitions
            }
            if any(concerned.values()):
                places = facts.columns.partition[facts.live].tolist()
                for place, (_, metrics) in zip(places, read_metrics(io, facts.path), strict=True):
                    for each in concerned.get(place, ()):
                        each.files += each.may_match(metrics)
    times = Counter(filters)
    return tuple(FilterUse(a.text, a.points, a.ranges, a.files, times[a.text]) for a in asked)


def partition_columns(metadata: TableMetadata) -> frozenset[str]:
    """Return the columns that identity partition fields use: each value has its own partition."""
    whole = (field.source_id for field in metadata.spec().fields if isinstance(field.transform, IdentityTransform))
    names = (metadata.schema().find_column_name(source_id) for source_id in whole)
    return frozenset(name for name in names if name is not None)


class _Asked:
    """One filter: its columns, and the number of files that it opens."""

    def __init__(self, metadata: TableMetadata, text: str) -> None:
        self.text, self.files = text, 0
        expression = parsed(text, metadata.schema())
        self.chosen = partition_filter(metadata, text)
        predicates = list(_predicates(expression, positive=True))
        self.points = tuple(dict.fromkeys(name for name, is_point in predicates if is_point))
        self.ranges = tuple(dict.fromkeys(name for name, is_point in predicates if not is_point))
        self._may_match: Callable[[DataFile], bool] | None = None
        # a filter on partition fields has no columns with bounds
        with suppress(ValueError):
            self._may_match = metrics_evaluator(metadata.schema(), expression)

    def may_match(self, metrics: FileMetrics) -> bool:
        """Return True unless the bounds of a file rule it out."""
        return self._may_match is None or self._may_match(cast(DataFile, metrics))


def _predicates(expression: BooleanExpression, positive: bool) -> Iterator[tuple[str, bool]]:
    """Yield (column, True for a condition on single values) of every condition."""
    if isinstance(expression, (And, Or)):
        yield from _predicates(expression.left, positive)
        yield from _predicates(expression.right, positive)
    elif isinstance(expression, Not):
        yield from _predicates(expression.child, not positive)
    elif isinstance(expression, UnboundPredicate):
        yield str(getattr(expression.term, "name", expression.term)), positive and isinstance(expression, (EqualTo, In))
