"""Other writers of the table of a history. Each method is one commit, and changes the model as it changes the table."""

from __future__ import annotations

import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import numpy as np
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot, ancestors_of
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import DecimalType, IntegerType, LongType, NestedField

import icesize
from icesize.environment import Environment
from icesize.errors import TableError, UnsupportedTable
from icesize.maintenance.jobs.keys import rekey
from icesize.maintenance.jobs.restore import restore
from icesize.parquet.files.data_file import NewDataFile, NewDeleteFile
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.writing.row_writer import write_rows
from icesize.planning.files import FileFact, FileId
from icesize.planning.retention.ancestry import TOMBSTONE_BRANCH
from icesize.sized_table import SizedTable
from icesize.table.commit.snapshot_builder import SnapshotBuilder
from icesize.table.commit.steps.remove_dangling_deletes import split_dangling
from icesize.table.state.handle import TableHandle
from icesize.table.upserts.changes import with_row_ids
from integration.keyed.model import RULES, Event, Model, Row
from integration.keyed.shape import Shape
from integration.keyed.table import Live, Watch
from tests.support.delete_files import delete_positions, equality_deletes
from tests.support.jobs import context_of
from tests.support.puffin import add_deletes, exchange_vectors
from tests.support.tables import commit_built, request_on, run, theirs
from tests.support.v3_tables import as_v3

_numbers = itertools.count()
FEW = {"small_file_limit_bytes": 1, "target_file_size_bytes": 1, "max_delete_files": 1, "close_file_cost_bytes": 0,
       "delete_ratio_threshold": 1}  # fmt: skip
HOUR_MS = 3_600_000


class Skip(Exception):
    """There is nothing to do for a writer."""


@dataclass
class Writers:
    """Everybody else at the table.

    `new_event` makes an event of a random key, `events` are those of all streams, `upsert` commits some as a stream.
    """

    shape: Shape
    catalog: Catalog
    model: Model
    watch: Watch
    chance: random.Random
    environment: Environment
    new_event: Callable[[], Event]
    events: list[Event]
    upsert: Callable[[Sequence[Event]], object]
    changed_lineage: set[Row]

    @property
    def table(self) -> Table:
        return theirs(self.catalog.load_table("db.t"))

    def act(self, name: str) -> str:
        """Perform one of WEIGHTS."""
        try:
            getattr(self, name.replace("-", "_"))()
        except Skip:
            return f"{name} (nothing to do)"
        return name

    def append(self) -> None:
        """Rows of any keys, so that some keys have several rows."""
        self._append([self.new_event().row for _ in range(self.chance.randrange(1, 5))])

    def append_others(self) -> None:
        """Rows of keys that no batch has, some of them NULL."""
        number = 1_000_000 + next(_numbers)
        keys = [self.shape.key_of(number)] * 1 + (
            [(None,) * len(self.shape.key_ids)] if self.chance.random() < 0.3 else []
        )
        self._append([self.new_event().row._replace(key=key) for key in keys])

    def _append(self, rows: Sequence[Row]) -> None:
        table = self.table
        run(self.catalog, request_on(table, self._written(table, rows)), table, now_ms=self.environment.now_ms())
        self.model.add(rows)

    def _written(self, table: Table, rows: Sequence[Row]) -> list[NewDataFile]:
        settings = WriteSettings.of(table.metadata, table.io.properties, 2**30)
        return write_rows([self.shape.arrow(table, rows)], settings, FileNames("other", next(_numbers), 0))

    def _some(self) -> tuple[Table, list[Live]]:
        """Some live rows of one data file."""
        table, by_path = self.table, defaultdict[str, list[Live]](list)
        for each in self.watch.rows(table):
            by_path[each.path].append(each)
        if not by_path:
            raise Skip
        rows = by_path[self.chance.choice(sorted(by_path))]
        return table, self.chance.sample(rows, self.chance.randrange(1, 1 + min(3, len(rows))))

    def delete(self) -> None:
        """Delete rows of one file by position."""
        self._delete(*self._some())

    def _delete(self, table: Table, chosen: Sequence[Live]) -> None:
        path, partition = chosen[0].path, chosen[0].partition
        positions = [each.position for each in chosen]
        if table.metadata.format_version == 2:
            self.watch.foreign_deletes = True
            delete_positions(table, {path: sorted(positions)}, partition)
        else:
            snapshot = table.metadata.current_snapshot()
            assert snapshot is not None
            entries = self.watch.contents.entries(snapshot, table.io)
            gone = self.watch.contents._deleted(entries)[path]
            old: list[FileId] = [(e.path, e.offset) for e in entries if e.offset is not None and e.referenced == path]
            if not old and gone:
                raise Skip  # position deletes from before the upgrade
            file = FileFact(path, 0, 0, partition)
            exchange_vectors(self.catalog, {file: sorted({*gone, *positions})}, old)
        self.model.remove(each.row for each in chosen)

    def move_key(self) -> None:
        """An UPDATE of the key of a row, as Spark does it in format v3: the row keeps its row id."""
        table, chosen = self._some()
        before, key = chosen[0], self.new_event().row.key
        if table.metadata.format_version == 2 or before.row_id is None:
            raise Skip
        self._delete(table, [before])
        row = before.row._replace(key=key)
        settings = WriteSettings.of(table.metadata, table.io.properties, 2**30).with_lineage
        rows = with_row_ids(self.shape.arrow(table, [row]), np.array([before.row_id]))
        files = write_rows([rows], settings, FileNames("other", next(_numbers), 0))
        table = self.table
        run(self.catalog, request_on(table, files), table, now_ms=self.environment.now_ms())
        self.model.add([row])
        self.changed_lineage.add(row)

    def delete_equal(self) -> None:
        """Delete rows of one partition by their keys, as Flink does."""
        table, chosen = self._some()
        keys, partition = {each.row.key for each in chosen}, chosen[0].partition
        if any(None in key for key in keys):
            raise Skip
        names = [table.schema().find_field(i).name for i in self.shape.key_ids]
        rows = [
            tuple(each.values())
            for each in self.shape.arrow(table, [e.row for e in chosen], self.shape.key_ids).to_pylist()
        ]
        file = equality_deletes(table, names, rows, partition)
        is_global = table.specs()[partition.spec_id].is_unpartitioned()
        self.model.remove(
            e.row for e in self.watch.rows(table) if e.row.key in keys and (is_global or e.partition == partition)
        )
        made = NewDeleteFile(
            file.file_path, file.file_size_in_bytes, file.record_count, partition,
            equality_ids=tuple(self.shape.key_ids),
        )  # fmt: skip
        add_deletes(self.catalog, [made])

    def roll_back(self) -> None:
        """Main is an older snapshot again."""
        table = self.table
        line = list(ancestors_of(table.metadata.current_snapshot(), table.metadata))
        if len(line) < 2:
            raise Skip
        snapshot = self.chance.choice(line[1:3])
        table.manage_snapshots().rollback_to_snapshot(snapshot.snapshot_id).commit()
        self.model.set(each.row for each in self.watch.rows(self.table))
        self.changed_lineage.update(self.model.all())

    def delete_copying(self) -> None:
        """Delete rows of one file by writing the others again, as copy-on-write does, without row ids."""
        table, chosen = self._some()
        path = chosen[0].path
        rest = [e.row for e in self.watch.rows(table) if e.path == path and e not in chosen]
        files = self._written(table, rest) if rest else []

        def build(builder: SnapshotBuilder) -> Snapshot:
            split = builder.split([path])
            split_dangling(builder, split, {chosen[0].partition}, files, {})
            return builder.exchange(Operation.OVERWRITE, split, files, {})

        commit_built(self.catalog, build)
        self.model.remove(each.row for each in chosen)
        self.changed_lineage |= set(rest)

    def _opened(self, policy: Mapping[str, object] | None = None) -> SizedTable:
        return icesize.open(None, "db.t", catalog=self.catalog, policy=policy, environment=self.environment)

    def compact(self) -> None:
        """icesize's merges in another process."""
        self._opened().compact()

    def compact_all(self) -> None:
        """Merges that apply every delete."""
        self._opened({"delete_ratio_threshold": 0.0001}).compact()

    def deduplicate(self) -> None:
        """icesize's removal of rows of one key; without an order or with equal ones, the newest commit counts."""
        if "icesize.upsert" not in self.table.properties:
            raise Skip
        self._opened().deduplicate()
        after = Counter(each.row for each in self.watch.rows(self.table))
        for key, rows in self.model.rows.items():
            if len(rows) > 1 and None not in key:
                kept = [row for row in rows if after[row]]
                assert len(kept) == 1, f"key {key} has {len(kept)} rows"
                newest = max(map(self.model.order_of, rows))
                assert not self.model.has_order or self.model.order_of(kept[0]) == newest
                self.model.rows[key] = kept

    def rewrite_deletes(self) -> None:
        """Delete files in place of others."""
        self._opened(FEW).rewrite_deletes()

    def remove_dangling_deletes(self) -> None:
        """Delete files go that hit nothing."""
        self._opened().remove_dangling_deletes()

    def rewrite_manifests(self) -> None:
        """Fewer manifests."""
        self._opened().rewrite_manifests()

    def expire(self) -> None:
        """All snapshots but the newest, by PyIceberg; no file is deleted."""
        table = self.table
        kept = {ref.snapshot_id for ref in table.metadata.refs.values()}
        if not (ids := [s.snapshot_id for s in table.metadata.snapshots if s.snapshot_id not in kept]):
            raise Skip
        table.maintenance.expire_snapshots().by_ids(ids).commit()

    def expire_files(self) -> None:
        """The same by icesize, with the files."""
        environment = self.environment
        later = replace(environment, now_ms=lambda: environment.now_ms() + HOUR_MS)
        opened = icesize.open(None, "db.t", catalog=self.catalog, environment=later)
        opened.expire_snapshots(1, timedelta(0))

    def upsert_stream(self) -> None:
        """A batch of another stream of icesize."""
        if not self.shape.order_ids:
            raise Skip  # refused: two streams have no order
        self.upsert([self.new_event() for _ in range(self.chance.randrange(1, 8))])

    def send_again(self) -> None:
        """Another stream begins again somewhere in the source, as after a rollback."""
        if not self.shape.order_ids or not self.events:
            raise Skip
        start = self.chance.randrange(len(self.events))
        self.upsert(self.events[start : start + 20])

    def restore(self) -> None:
        """A partition is what it was, if no key gets two rows."""
        table = self.table
        line = list(ancestors_of(table.metadata.current_snapshot(), table.metadata))[1:6]
        if not line:
            raise Skip
        snapshot = self.chance.choice(line)
        then, now = self.watch.contents.live_rows(snapshot, table), self.watch.rows(table)
        partitions = {each.partition for each in then if each.partition.spec_id == table.metadata.default_spec_id}
        if not partitions:
            raise Skip
        partition = self.chance.choice(sorted(partitions, key=repr))
        wanted = [each.row for each in then if each.partition == partition]
        others = [each.row for each in now if each.partition != partition]
        before, after = (
            Counter(row.key for row in rows if None not in row.key) for rows in (others, [*others, *wanted])
        )
        doubles = after.total() - len(after) > before.total() - len(before)
        handle = TableHandle(self.catalog, ("db", "t"))
        try:
            restore(context_of(handle, self.environment), handle.load(), partition, snapshot.snapshot_id)
        except UnsupportedTable:
            raise Skip from None  # partitions have changed since
        except TableError as error:
            if "several rows" not in str(error):
                raise
            assert doubles, "refused, and no key gets a second row"
            return
        assert not doubles or "icesize.upsert" not in table.properties, "a key has two rows after a restore"
        self.model.set([*others, *wanted])
        self.changed_lineage.update(wanted)

    def rekey(self) -> None:
        """The order has another column at its end, or one less there, or it begins with another one."""
        table = self.table
        if not self.shape.order_ids or "icesize.upsert" not in table.properties:
            raise Skip
        rule = self.chance.choice([each for each in RULES if each != self.model.rule])
        remembers = TOMBSTONE_BRANCH in table.metadata.refs
        context = context_of(TableHandle(self.catalog, ("db", "t")), self.environment)
        notes = rekey(context, self.shape.rule_of(table, rule)).notes
        forgets = self.model.change_rule(rule)
        assert any("forgotten" in note for note in notes) == (remembers and forgets), str(notes)
        assert (TOMBSTONE_BRANCH in self.table.metadata.refs) == (remembers and not forgets)

    def cluster(self) -> None:
        """Rows in the order of other columns."""
        table = self.table
        ids = {self.shape.version_id, self.shape.key_ids[0], self.shape.part_id}
        ids -= {each.source_id for each in table.spec().fields if isinstance(each.transform, IdentityTransform)}
        names = [table.schema().find_field(each).name for each in sorted(ids)]
        self._opened().cluster(self.chance.sample(names, self.chance.randrange(1, 3)))

    def tag(self) -> None:
        """A tag of an older snapshot, with or without an age."""
        table = self.table
        if not table.metadata.snapshots:
            raise Skip
        snapshot = self.chance.choice(table.metadata.snapshots)
        name, age_ms = f"tag{len(table.metadata.refs)}", self.chance.choice([None, 1, HOUR_MS * 99])
        if name in table.metadata.refs:
            raise Skip
        table.manage_snapshots().create_tag(snapshot.snapshot_id, name, age_ms).commit()

    def expire_oddly(self) -> None:
        """Expiry by icesize with the properties of Iceberg that decide it."""
        with self.table.transaction() as change:
            change.set_properties(
                {
                    "history.expire.max-ref-age-ms": str(self.chance.choice([1, HOUR_MS * 99])),
                    "history.expire.min-snapshots-to-keep": str(self.chance.choice([1, 2, 5])),
                    "history.expire.max-snapshot-age-ms": str(self.chance.choice([1, HOUR_MS * 99])),
                }
            )
        environment, remembers = self.environment, TOMBSTONE_BRANCH in self.table.metadata.refs
        later = replace(environment, now_ms=lambda: environment.now_ms() + HOUR_MS)
        icesize.open(None, "db.t", catalog=self.catalog, environment=later).expire_snapshots()
        assert (TOMBSTONE_BRANCH in self.table.metadata.refs) == remembers, "deletes are forgotten"

    def add_column(self) -> None:
        table = self.table
        name = f"more{len(table.schema().fields)}"
        table.update_schema().add_column(name, IntegerType()).commit()

    def rename(self) -> None:
        """Rename a column of the key or of the order, or another one."""
        table = self.table
        name = table.schema().find_field(self.chance.choice(self.shape.ids)).name
        table.update_schema().rename_column(name, f"{name}x" if len(name) < 8 else name.rstrip("x")).commit()

    def promote(self) -> None:
        """A wider type for a column of the key or of the order."""
        table, wider = self.table, dict[str, Any]()
        for field_id in (*self.shape.key_ids, *self.shape.order_ids):
            field: NestedField = table.schema().find_field(field_id)
            if isinstance(field.field_type, IntegerType):
                wider[field.name] = LongType()
            elif isinstance(field.field_type, DecimalType) and field.field_type.precision < 30:
                wider[field.name] = DecimalType(field.field_type.precision + 5, field.field_type.scale)
        sources = {table.schema().find_field(each.source_id).name for each in table.spec().fields}
        wider = {name: kind for name, kind in wider.items() if name not in sources}
        if not wider:
            raise Skip
        name = self.chance.choice(sorted(wider))
        table.update_schema().update_column(name, wider[name]).commit()

    def add_field(self) -> None:
        table = self.table
        known = {(each.source_id, str(each.transform)) for each in table.spec().fields}
        fields: list[tuple[int, Any]] = [(1, BucketTransform(2)), (self.shape.part_id, IdentityTransform())]
        fields = [(source, transform) for source, transform in fields if (source, str(transform)) not in known]
        if not fields:
            raise Skip
        source, transform = self.chance.choice(fields)
        name = table.schema().find_field(source).name
        table.update_spec().add_field(name, transform, f"part{len(table.specs())}").commit()

    def remove_field(self) -> None:
        table = self.table
        if not table.spec().fields:
            raise Skip
        table.update_spec().remove_field(self.chance.choice(table.spec().fields).name).commit()

    def upgrade(self) -> None:
        if self.table.metadata.format_version == 3:
            raise Skip
        as_v3(self.catalog)


OF_FILES: Mapping[str, int] = {
    "append": 4, "append-others": 3, "delete": 6, "delete-copying": 3, "delete-equal": 3, "roll-back": 1, "move-key": 2,
    "compact": 5, "compact-all": 3, "upsert-stream": 4, "rewrite-deletes": 2, "remove-dangling-deletes": 1,
    "rewrite-manifests": 1, "expire": 2, "expire-files": 2, "deduplicate": 2, "restore": 3, "cluster": 2, "tag": 1,
    "expire-oddly": 2, "send-again": 2, "rekey": 2,
}  # fmt: skip
CHANGE_ROWS = frozenset(
    {"append", "append-others", "delete", "delete-copying", "delete-equal", "roll-back", "restore", "rekey", "move-key"}
)
"""Writers that make the rows others than those of the events by one rule."""
OF_METADATA: Mapping[str, int] = {
    "add-column": 1, "rename": 2, "promote": 3, "add-field": 2, "remove-field": 2, "upgrade": 1,
}  # fmt: skip


def chosen(chance: random.Random, metadata_share: float) -> str:
    """A writer, by chance."""
    weights = OF_METADATA if chance.random() < metadata_share else OF_FILES
    return chance.choices(list(weights), list(weights.values()))[0]
