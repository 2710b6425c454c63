"""A search for orphan files."""

from __future__ import annotations

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from tests.support.orphans import Search


@pytest.fixture
def search(lake: SqlCatalog) -> Search:
    return Search(lake)
