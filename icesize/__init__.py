"""Keeps the files of Apache Iceberg tables well sized while Spark writes them.

    import icesize
    table = icesize.open(spark, "lake.db.events")
    stream.writeStream.foreachBatch(table.sink(stream_id="clicks")).option("checkpointLocation", path).start()

    table = icesize.open(None, "lake.db.events")  # without Spark
    print(table.inspect())
    table.compact()

`open` returns a SizedTable, whose methods are the operations on a table. `scan` ranks the tables of a catalog, and
`maintain` runs one pass over them. Calls that change a table return a Report or a more specific result. A SizePolicy
sets the sizes of files. Every error is an IcesizeError. An Environment replaces clocks and limits of one process.

Importing this package imports neither pyspark nor pyarrow nor pyiceberg. The first use of a name that needs them, such
as `open`, imports them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from icesize.environment import Environment
from icesize.errors import (
    ArgumentError,
    BatchError,
    BatchInterrupted,
    BatchOutOfOrder,
    ClusteringOff,
    CommitConflict,
    CommitStateUnknown,
    EngineUnavailable,
    IcesizeError,
    PolicyError,
    RewriteFailed,
    SchemaMismatch,
    StreamMismatch,
    TableError,
    TableNotFound,
    UnsupportedTable,
)
from icesize.policy import SizePolicy
from icesize.report import Report

if TYPE_CHECKING:
    from icesize.maintenance.jobs.dangling_deletes import DanglingReport
    from icesize.maintenance.jobs.keys import KeyReport
    from icesize.maintenance.jobs.rewrite_deletes import DeletesReport
    from icesize.maintenance.jobs.rewrite_manifests import ManifestReport
    from icesize.maintenance.passes.maintain import MaintenancePlan, MaintenanceReport
    from icesize.maintenance.passes.many_tables import ManyTablesPlan, ManyTablesReport
    from icesize.maintenance.passes.survey import CatalogSurvey, scan
    from icesize.maintenance.verify.checkup import Check
    from icesize.maintenance.verify.repair import RepairReport
    from icesize.maintenance.verify.verification import Verification
    from icesize.planning.insight.inspection import Inspection
    from icesize.planning.merging.simulation import PolicyComparison
    from icesize.planning.plan import Plan
    from icesize.presentation.overview import Overview
    from icesize.sized_table import SizedTable, maintain, open
    from icesize.spark.stream.sink import Sink
    from icesize.table.cleanup.expiry import ExpiryReport
    from icesize.table.cleanup.orphans import OrphanReport
    from icesize.table.cluster_settings import ForgottenClusterBy
    from icesize.table.past.commits import History
    from icesize.table.past.versions import Version
    from icesize.table.records.ledger import LedgerEntry

__all__ = [
    "ArgumentError",
    "BatchError",
    "BatchInterrupted",
    "BatchOutOfOrder",
    "CatalogSurvey",
    "Check",
    "ClusteringOff",
    "CommitConflict",
    "CommitStateUnknown",
    "DanglingReport",
    "DeletesReport",
    "EngineUnavailable",
    "Environment",
    "ExpiryReport",
    "ForgottenClusterBy",
    "History",
    "IcesizeError",
    "Inspection",
    "KeyReport",
    "LedgerEntry",
    "MaintenancePlan",
    "MaintenanceReport",
    "ManifestReport",
    "ManyTablesPlan",
    "ManyTablesReport",
    "OrphanReport",
    "Overview",
    "Plan",
    "PolicyComparison",
    "PolicyError",
    "RepairReport",
    "Report",
    "RewriteFailed",
    "SchemaMismatch",
    "Sink",
    "SizePolicy",
    "SizedTable",
    "StreamMismatch",
    "TableError",
    "TableNotFound",
    "UnsupportedTable",
    "Verification",
    "Version",
    "maintain",
    "open",
    "scan",
]

__version__ = "0.1.0"

_LAZY = {
    "CatalogSurvey": "icesize.maintenance.passes.survey",
    "Check": "icesize.maintenance.verify.checkup",
    "DanglingReport": "icesize.maintenance.jobs.dangling_deletes",
    "DeletesReport": "icesize.maintenance.jobs.rewrite_deletes",
    "ExpiryReport": "icesize.table.cleanup.expiry",
    "ManyTablesPlan": "icesize.maintenance.passes.many_tables",
    "ManyTablesReport": "icesize.maintenance.passes.many_tables",
    "ForgottenClusterBy": "icesize.table.cluster_settings",
    "History": "icesize.table.past.commits",
    "Inspection": "icesize.planning.insight.inspection",
    "KeyReport": "icesize.maintenance.jobs.keys",
    "LedgerEntry": "icesize.table.records.ledger",
    "ManifestReport": "icesize.maintenance.jobs.rewrite_manifests",
    "OrphanReport": "icesize.table.cleanup.orphans",
    "Overview": "icesize.presentation.overview",
    "Plan": "icesize.planning.plan",
    "PolicyComparison": "icesize.planning.merging.simulation",
    "RepairReport": "icesize.maintenance.verify.repair",
    "Sink": "icesize.spark.stream.sink",
    "SizedTable": "icesize.sized_table",
    "MaintenancePlan": "icesize.maintenance.passes.maintain",
    "MaintenanceReport": "icesize.maintenance.passes.maintain",
    "Verification": "icesize.maintenance.verify.verification",
    "Version": "icesize.table.past.versions",
    "maintain": "icesize.sized_table",
    "open": "icesize.sized_table",
    "scan": "icesize.maintenance.passes.survey",
}
"""Name -> module that `__getattr__` imports when the name is first used."""

import_module("icesize.presentation.display")  # registers how results print


def __getattr__(name: str) -> object:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'icesize' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List also the names that are not loaded yet, for `help(icesize)` and for completion in shells.

    `Sink` needs the extra `spark`.
    """
    from importlib.util import find_spec

    return [name for name in __all__ if name != "Sink" or find_spec("pyspark") is not None]
