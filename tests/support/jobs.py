"""Jobs of maintenance called without the facade."""

from __future__ import annotations

from icesize.environment import Environment
from icesize.maintenance.table_context import InThisProcess, TableContext
from icesize.table.state.handle import TableHandle


def context_of(handle: TableHandle, environment: Environment | None = None) -> TableContext:
    """What a job works with, without Spark."""
    environment = environment or Environment()
    return TableContext(handle, environment, InThisProcess(environment.limits.bytes_without_spark))
