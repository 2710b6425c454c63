"""A few random catalogs with files that are owned in odd ways; `python -m integration.owners` runs more."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.owners.run import check

CATALOGS = 20


@pytest.mark.parametrize("seed", range(CATALOGS))
def test_no_command_deletes_what_an_owner_needs(seed: int, tmp_path: Path) -> None:
    """Expiry, orphan cleanup, passes and repair leave each file and row that a name of a catalog needs."""
    check(seed, tmp_path)
