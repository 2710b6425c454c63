"""Commands of icesize on tables whose metadata another writer made."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import timedelta
from random import Random

from pyiceberg.catalog import Catalog

import icesize
from icesize.sized_table import SizedTable
from integration.foreign_metadata.shapes import WRITERS, any_shape, document_change
from integration.foreign_metadata.tables import Made, live_rows, make, misplaced
from tests.support.foreign_metadata import as_written_by

POLICY = {"max-small-files": "1", "delete-ratio-threshold": "0.01", "delete-file-threshold": "1"}


LOG = logging.getLogger(__name__)


def prepare(catalog: Catalog, name: str, rng: Random) -> tuple[Made, str]:
    """Make a table, write its metadata in another shape, and return it with the name of the writer."""
    made = make(catalog, name, rng)
    writer = rng.choice([*WRITERS, *["any"] * len(WRITERS)])
    shapes = (WRITERS[writer], WRITERS[writer]) if writer in WRITERS else (any_shape(rng), any_shape(rng))
    as_written_by(catalog, *shapes, name=name, document=document_change(rng))
    return made, writer


def run(catalog: Catalog, name: str, made: Made, rng: Random) -> str | None:
    """Run all commands on a table, and return what is wrong after one of them: None if nothing is."""
    steps = (None, *rng.sample([*_STEPS], len(_STEPS)))
    try:
        return next(filter(None, (_check(catalog, name, made, step) for step in steps)), None)
    except Exception as error:  # a raw error of any command is a failure, too
        LOG.exception("seed of %s", name)
        return f"{type(error).__name__}: {error}"


def _check(catalog: Catalog, name: str, made: Made, step: str | None) -> str | None:
    """Return what is wrong after a step: findings, other rows, or rows that are listed in another partition."""
    table = icesize.open(None, f"{catalog.name}.{name}", catalog=catalog, policy=POLICY)
    if step is not None:
        _STEPS[step](table)
    table.inspect()
    loaded = catalog.load_table(name)
    rows = sorted((row for _, row in live_rows(loaded)), key=repr)
    if rows != made.rows:
        return f"after {step}: {len(rows)} rows instead of {len(made.rows)}"
    found = [f"{each.rule} {each.path}: {each.detail}" for each in table.verify().findings]
    return next((f"after {step}: {each}" for each in (misplaced(loaded), *found) if each), None)


_STEPS: Mapping[str, Callable[[SizedTable], object]] = {
    "compact": SizedTable.compact,
    "rewrite_manifests": SizedTable.rewrite_manifests,
    "expire": lambda table: table.expire_snapshots(older_than=timedelta(0), retain_last=1),
}
