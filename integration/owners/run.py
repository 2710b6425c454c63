"""Runs every command that deletes on a catalog, and compares with the oracle after each."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import icesize
from icesize.errors import IcesizeError
from integration.owners.lake import Lake, make
from integration.owners.oracle import Known, Owned, owned_in


class LostError(Exception):
    """A command deleted files that some owner needs, or entries of files that are there."""


def check(seed: int, folder: Path) -> list[str]:
    """Make the catalog of a seed and run the commands in a random order. Return what happened.

    Raises LostError.
    """
    dice = random.Random(seed)
    lake = make(folder, dice)
    catalogs, known = (lake.catalog, lake.elsewhere), Known()
    try:
        before = owned_in(catalogs, known)
        commands = _commands(lake, dice)
        for name, command in dice.sample(commands, min(len(commands), 4)):
            with _without_disks(lake):
                try:
                    done = str(command()).splitlines()[0]
                except IcesizeError as error:
                    done = f"{type(error).__name__}: {error}"
            lake.told.append(f"$ {name}: {done[:200]}")
            before = _compared(before, owned_in(catalogs, known), lake.told)
    except Exception as error:
        error.add_note("\n".join(lake.told))
        raise
    finally:
        for catalog in catalogs:
            catalog.engine.dispose()
    return lake.told


def _commands(lake: Lake, dice: random.Random) -> list[tuple[str, Callable[[], object]]]:
    day, none = timedelta(days=1), timedelta(0)
    found: list[tuple[str, Callable[[], object]]] = [
        ("maintain", lambda: icesize.maintain("lake", catalog=lake.catalog))
    ]
    for name in lake.names:

        def opened(name: str = name) -> icesize.SizedTable:
            return icesize.open(None, f"lake.{name}", catalog=lake.catalog)

        found += [
            (f"expire {name}", lambda opened=opened: opened().expire_snapshots(older_than=none)),
            (f"orphans {name}", lambda opened=opened: opened().remove_orphan_files(older_than=day, dry_run=False)),
            (f"repair {name}", lambda opened=opened: opened().repair()),
        ]
        found.append(found[-2])  # orphan cleanup is the most likely to delete too much
    return found


@contextmanager
def _without_disks(lake: Lake) -> Iterator[None]:
    """Take disks away, as if they were not mounted."""
    there = [disk for disk in lake.disks if disk.exists()]
    for disk in there:
        disk.rename(disk.with_name(f".{disk.name}"))
    try:
        yield
    finally:
        for disk in there:
            if disk.exists():  # something was written at the mount point, and is hidden by the disk
                disk.rename(disk.with_name(f".hidden-{disk.name}"))
            disk.with_name(f".{disk.name}").rename(disk)


def _compared(before: dict[str, Owned], after: dict[str, Owned], told: list[str]) -> dict[str, Owned]:
    for name, owned in after.items():
        if lost := owned.missing - before[name].missing:
            raise LostError(f"{name} lost {len(lost)} files, such as {min(lost)}, by {told[-1]}")
        if owned.rows != before[name].rows:
            raise LostError(f"{name} had {before[name].rows} rows and has {owned.rows}, by {told[-1]}")
    return after
