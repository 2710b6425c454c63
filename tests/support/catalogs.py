"""Catalogs of both kinds for fixtures, also with tables of format v3."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyiceberg.catalog import Catalog

from tests.support.tables import NEW_TABLES

if TYPE_CHECKING:
    from tests.support.rest_server import MiniRest

OF_BOTH_KINDS = ("sqlite", "rest")
OF_EACH_FORMAT = (*OF_BOTH_KINDS, "sqlite-v3", "rest-v3")
"""Catalogs of both kinds whose tables are of format v2, and of v3."""


def catalog_of(request: pytest.FixtureRequest) -> Catalog:
    """The catalog that a fixture with one of these parameters asks for."""
    kind, _, version = request.param.partition("-")
    if kind == "sqlite":
        catalog: Catalog = request.getfixturevalue("lake")
    else:
        server: MiniRest = request.getfixturevalue("mini")
        catalog = server.catalog("lake")
    catalog.properties[NEW_TABLES] = version
    return catalog
