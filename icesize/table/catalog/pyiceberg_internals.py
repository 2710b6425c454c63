"""Private names of PyIceberg 0.12, each in one function with the reason that no public name serves.

Any release of PyIceberg may change them. `tests/table/catalog/test_pyiceberg_internals.py` checks each one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from copy import copy
from functools import partial
from typing import Any, cast

from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.expressions import BooleanExpression
from pyiceberg.expressions.visitors import _InclusiveMetricsEvaluator
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import StagedTable
from pyiceberg.table.update import RemoveSnapshotsUpdate, TableRequirement, TableUpdate
from pyiceberg.table.update.schema import UpdateSchema


def metrics_evaluator(schema: Schema, expression: BooleanExpression) -> Callable[[DataFile], bool]:
    """Return a function that is False for files that hold no matching row by their column metrics.

    The public way plans a scan of a whole table. Raises ValueError for a column that the schema lacks.
    """
    return _InclusiveMetricsEvaluator(schema, expression).eval


def changes_of(update: UpdateSchema) -> tuple[tuple[TableUpdate, ...], tuple[TableRequirement, ...]]:
    """Return what an update of the schema sends to the catalog. The public way commits it, with retries of its own."""
    return update._commit()


def http_adapters(catalog: Catalog) -> list[Any]:
    """Return the HTTP adapters of a REST catalog, none of another one: PyIceberg has no property for timeouts."""
    return [*getattr(getattr(catalog, "_session", None), "adapters", {}).values()]


def thrift_client(catalog: Catalog) -> AbstractContextManager[Any]:
    """Return the connection of a Hive catalog, whose public calls do not show locks."""
    return cast("AbstractContextManager[Any]", cast(Any, catalog)._client)


def staged_by(catalog: MetastoreCatalog, *commit: Any) -> StagedTable:
    """Return a table as the `commit` makes it: the current table, its name, requirements and updates."""
    return catalog._update_and_stage_table(*commit)


def with_own_writer(
    catalog: MetastoreCatalog, stage: Callable[..., StagedTable], write: Callable[..., None]
) -> MetastoreCatalog:
    """Return a copy of a catalog that stages its commits and writes its metadata files by these functions.

    They replace the steps of `commit_table` before its compare-and-swap, because PyIceberg writes no file of format v3.
    """
    single = copy(catalog)
    vars(single)["_update_and_stage_table"] = stage
    vars(single)["_write_metadata"] = write
    vars(single)["_write_metadata_no_exist_check"] = partial(write, overwrite=True)  # of Glue, for S3 Tables
    return single


def removal_of(snapshot_ids: Iterable[int]) -> RemoveSnapshotsUpdate:
    """Return the update that removes snapshots, without pydantic's copy: a list would be searched for each snapshot."""
    return RemoveSnapshotsUpdate.model_construct(snapshot_ids=_Ids(snapshot_ids))


class _Ids(list[int]):
    """Snapshot ids of one update, among which PyIceberg looks up every snapshot of the table."""

    def __init__(self, ids: Iterable[int]) -> None:
        super().__init__(ids)
        self._known = frozenset(self)

    def __contains__(self, snapshot_id: object) -> bool:
        return snapshot_id in self._known
