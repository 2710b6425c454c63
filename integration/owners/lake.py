"""Makes a catalog from a seed: tables, and what other programs and people do to where their files lie."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.statistics import StatisticsFile
from pyiceberg.types import LongType, NestedField

import icesize
from integration.owners.oracle import path_of

NAMES = ("plain", "a b", "grün", "a%20b", "50%", "a+b", "k=1", "x.y", "a//b")
"""Names of folders and files that some parser could change."""
MISREAD = ("#old", "?version=1", "#", "?")
"""Ends of names that parsers of URLs cut off."""
SCHEMA = Schema(NestedField(1, "a", LongType()))


@dataclass
class Lake:
    """A catalog under construction, its tables, and the folders that are to disappear while commands run."""

    folder: Path
    dice: random.Random
    catalog: SqlCatalog = field(init=False)
    elsewhere: SqlCatalog = field(init=False)
    disks: list[Path] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    _value: int = 0

    def __post_init__(self) -> None:
        self.catalog, self.elsewhere = (
            SqlCatalog(name, uri=f"sqlite:///{self.folder}/{name}.db", warehouse=f"file://{self.folder}/{name}")
            for name in ("lake", "elsewhere")
        )
        for namespace in ("db", "ns"):
            self.catalog.create_namespace(namespace)
        self.elsewhere.create_namespace("db")

    def any_table(self) -> Table:
        """Return one of the tables."""
        return self.catalog.load_table(self.dice.choice(self.names))

    def rows(self) -> pa.Table:
        """Return a few rows."""
        self._value += 10
        return pa.table({"a": pa.array(range(self._value, self._value + self.dice.randint(1, 3)), pa.int64())})

    def place(self) -> str:
        """Return a folder: below a table, in its data, or of its own."""
        below = [f"{self.folder}/aside", *(path_of(self.catalog.load_table(name).location()) for name in self.names)]
        inner = self.dice.choice(["", "/data", "/metadata", "/data/deep/er"])
        return f"file://{self.dice.choice(below)}{inner}/{self.dice.choice(NAMES)}{self._serial()}"

    def parquet(self, folder: str) -> str:
        """Write a file that no table has; return its location."""
        path = Path(path_of(folder)) / f"{self.dice.choice(NAMES)}{self._serial()}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(self.rows(), path)
        return f"file://{path}"

    def _serial(self) -> str:
        self._value += 1
        return str(self._value)


def make(folder: Path, dice: random.Random) -> Lake:
    """Return a catalog with two to four tables to which some of `EVENTS` happened; all its files look old."""
    lake = Lake(folder, dice)
    for _ in range(2):
        create(lake)
    for event in dice.choices(EVENTS, k=dice.randint(3, 6)):
        try:
            lake.told.append(f"{event.__name__}: {event(lake)}")
        except (FileNotFoundError, OSError) as error:
            lake.told.append(f"{event.__name__}: {error}")
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            os.utime(path, (time.time() - 9 * 86_400,) * 2)
    return lake


def create(lake: Lake) -> str:
    """A table at a place of its own, below another one, or with data there."""
    name = f"{lake.dice.choice(['db', 'ns'])}.t{len(lake.names)}{lake.dice.choice(['', '_x'])}"
    options: dict[str, str] = {}
    if lake.names and lake.dice.random() < 0.3:
        options["location"] = lake.place()
    properties = {"history.expire.max-snapshot-age-ms": "1"}
    if lake.names and lake.dice.random() < 0.4:
        properties["write.data.path"] = lake.place()
    if lake.dice.random() < 0.1:
        properties["gc.enabled"] = "false"
    if lake.dice.random() < 0.05:
        properties["nessie.commit.id"] = "abc"
    table = lake.catalog.create_table(name, SCHEMA, properties=properties, **options)
    lake.names.append(name)
    for _ in range(lake.dice.randint(1, 2)):
        table.append(lake.rows())
    return f"{name} at {table.location()}, {properties.get('write.data.path', '')}"


def change(lake: Lake) -> str:
    """Snapshots that expire: rows are replaced or deleted."""
    table = lake.any_table()
    if lake.dice.random() < 0.5:
        table.overwrite(lake.rows())
    else:
        table.delete("a >= 0")
        table.append(lake.rows())
    table.append(lake.rows())
    return ".".join(table.name())


def compact(lake: Lake) -> str:
    """Merges, so that files have icesize's names."""
    table = lake.any_table()
    icesize.open(None, f"lake.{'.'.join(table.name())}", catalog=lake.catalog).compact()
    return ".".join(table.name())


def move(lake: Lake) -> str:
    """The table's folders change: its files stay where they were."""
    table = lake.any_table()
    if lake.dice.random() < 0.4:
        _relocate(lake, table, lake.place())
    else:
        with table.transaction() as change:
            if "write.data.path" in table.properties:
                change.remove_properties("write.data.path")
            else:
                change.set_properties({"write.data.path": lake.place()})
    lake.catalog.load_table(table.name()).append(lake.rows())
    return ".".join(table.name())


def _relocate(lake: Lake, table: Table, location: str) -> None:
    """Set the location in a metadata file of the new state, as PyIceberg itself cannot."""
    path = Path(path_of(table.metadata_location))
    document = json.loads(path.read_text()) | {"location": location}
    document["metadata-log"].append(
        {"metadata-file": table.metadata_location, "timestamp-ms": table.metadata.last_updated_ms}
    )
    new = path.with_name(f"{int(path.name.partition('-')[0]) + 1:05d}-{uuid4()}.metadata.json")
    new.write_text(json.dumps(document))
    lake.catalog.drop_table(table.name())
    lake.catalog.register_table(table.name(), f"file://{new}")


def register(lake: Lake) -> str:
    """A second name of the table, which stays at this state."""
    table = lake.any_table()
    name = f"ns.copy{len(lake.names)}"
    lake.catalog.register_table(name, table.metadata_location)
    lake.names.append(name)
    table.append(lake.rows())
    return f"{'.'.join(table.name())} as {name}"


def recreate(lake: Lake) -> str:
    """Dropped without its files, and created again at its place."""
    table = lake.any_table()
    lake.catalog.drop_table(table.name())
    new = lake.catalog.create_table(table.name(), SCHEMA, location=table.location(), properties=table.properties)
    new.append(lake.rows())
    new.overwrite(lake.rows())
    new.append(lake.rows())
    return ".".join(table.name())


def foreign(lake: Lake) -> str:
    """A table of another catalog, whose metadata lie below one of ours."""
    name, location = f"db.f{lake._serial()}", lake.place()
    table = lake.elsewhere.create_table(name, SCHEMA, location=location)
    for _ in range(lake.dice.randint(1, 3)):
        table.append(lake.rows())
    return location


def add_file(lake: Lake) -> str:
    """A file from any folder."""
    table = lake.any_table()
    location = lake.parquet(lake.place())
    table.add_files([location])
    return f"{location} to {'.'.join(table.name())}"


def add_linked(lake: Lake) -> str:
    """A file below a table, by another name: a link to its folder, to itself, or a second name of it."""
    table, location = lake.any_table(), lake.parquet(lake.place())
    path, aside = Path(path_of(location)), lake.folder / f"links{lake._serial()}"
    aside.mkdir()
    kind = lake.dice.choice(["folder", "file", "hard"])
    named = aside / "there" / path.name if kind == "folder" else aside / "one.parquet"
    if kind == "folder":
        (aside / "there").symlink_to(path.parent)
    elif kind == "file":
        named.symlink_to(path)
    else:
        named.hardlink_to(path)
    table.add_files([f"file://{named}"])
    return f"{kind} to {location} in {'.'.join(table.name())}"


def share_file(lake: Lake) -> str:
    """A live file of one table in another one, too; then the first one replaces it."""
    one, other = lake.any_table(), lake.any_table()
    paths = [task.file.file_path for task in one.scan().plan_files()]
    if one.name() == other.name() or not paths:
        return "nothing"
    other.add_files(paths[:1], check_duplicate_files=False)
    lake.catalog.load_table(one.name()).overwrite(lake.rows())
    lake.catalog.load_table(one.name()).append(lake.rows())
    return f"{paths[0]} of {'.'.join(one.name())} in {'.'.join(other.name())}"


def stage(lake: Lake) -> str:
    """A snapshot on a branch; perhaps the branch is removed, so that no ref leads to it."""
    table, branch = lake.any_table(), f"b{lake._serial()}"
    if table.current_snapshot() is None:
        return "nothing"
    table.manage_snapshots().create_branch(table.current_snapshot().snapshot_id, branch).commit()  # type: ignore[union-attr]
    table.append(lake.rows(), branch=branch)
    if lake.dice.random() < 0.5:
        table.manage_snapshots().remove_branch(branch).commit()
    return f"{branch} of {'.'.join(table.name())}"


def statistics(lake: Lake) -> str:
    """A statistics file, at any place."""
    table, location = lake.any_table(), f"{lake.place()}.puffin"
    snapshot = table.current_snapshot()
    if snapshot is None:
        return "nothing"
    Path(path_of(location)).parent.mkdir(parents=True, exist_ok=True)
    Path(path_of(location)).write_bytes(b"PFA1")
    with table.update_statistics() as update:
        update.set_statistics(
            StatisticsFile(
                snapshot_id=snapshot.snapshot_id, statistics_path=location, file_size_in_bytes=4,
                file_footer_size_in_bytes=4, blob_metadata=[],
            )
        )  # fmt: skip
    return f"{location} of {'.'.join(table.name())}"


def litter(lake: Lake) -> str:
    """Files without an owner, some with the name of a live file and an end that parsers of URLs cut off."""
    table = lake.any_table()
    live = [path_of(task.file.file_path) for task in table.scan().plan_files()]
    location = lake.parquet(lake.place())
    for path in live[:1]:
        if os.path.exists(path):
            shutil.copy(path, path + lake.dice.choice(MISREAD))
    return location


def mark(lake: Lake) -> str:
    """Metadata files: empty, cut off, or of a table that is nowhere else."""
    table = lake.any_table()
    texts = [
        "",
        '{"format-version": 2, ',
        json.dumps({"format-version": 2, "table-uuid": str(uuid4()), "snapshots": []}),
    ]
    path = Path(path_of(table.location())) / "metadata" / f"{lake._serial()}-{uuid4()}.metadata.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(lake.dice.choice(texts))
    return str(path)


def unmount(lake: Lake) -> str:
    """A table with its files on a disk that is not there while the commands run."""
    disk = lake.folder / f"disk{lake._serial()}"
    name = f"ns.on_disk{len(lake.names)}"
    kind = lake.dice.choice(["data", "all"])
    properties = {"write.data.path": f"file://{disk}/data"} if kind == "data" else {}
    options = {"location": f"file://{disk}/t"} if kind == "all" else {}
    table = lake.catalog.create_table(name, SCHEMA, properties=properties, **options)
    lake.names.append(name)
    table.append(lake.rows())
    if lake.dice.random() < 0.5:
        table.add_files([lake.parquet(lake.place())])
    table.append(lake.rows())
    lake.disks.append(disk)
    return f"{kind} of {name}"


EVENTS: tuple[Callable[[Lake], str], ...] = (
    create, change, change, change, compact, move, move, register, recreate, foreign, add_file, add_linked, share_file,
    stage, statistics, litter, litter, mark, unmount,
)  # fmt: skip
