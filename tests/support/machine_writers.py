"""Others at the table of the model-based test: each tells the model what it does to the rows."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence

from pyiceberg.table import Table
from pyiceberg.table.snapshots import ancestors_of
from pyiceberg.table.update import AddSnapshotUpdate, AssertRefSnapshotId, UpgradeFormatVersionUpdate
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import IntegerType, LongType

from icesize.planning.files import FileFact, FileId, PartitionKey
from icesize.table.commit.snapshot_builder import SnapshotBuilder, move_ref
from icesize.table.commit.steps.append import Append
from tests.support.machine import ModelledTable, Row, now_ms
from tests.support.puffin import exchange_vectors
from tests.support.row_deletes import delete_ids, delete_rows
from tests.support.tables import merged, replaced, request_on, run, small_files, theirs
from tests.support.v3_tables import as_v3


class Rival:
    """Others at the same table: each method is one commit of theirs, and says in the model what it does to the rows.

    `pick` chooses among what there is to choose from: any whole number will do.
    """

    DELETES = "delete_position", "delete_equality"
    OF_FILES = (
        "append", *DELETES, "compact_as_icesize", "compact_as_another", "expire",
        "move_main",
    )  # fmt: skip
    ACTS = (
        *OF_FILES, "tag", "branch", "append_to_branch", "untag", "add_column", "widen_column", "rename_column",
        "add_field", "remove_field", "roll_back", "upgrade",
    )  # fmt: skip

    def __init__(self, modelled: ModelledTable) -> None:
        self.modelled = modelled

    def act(self, name: str, pick: int) -> None:
        """One of ACTS."""
        getattr(self, name)(pick)

    @property
    def table(self) -> Table:
        return theirs(self.modelled.other_catalog.load_table("db.t"))

    def append(self, pick: int) -> None:
        table = self.table
        files = self.modelled.write(table, self.modelled.new_ids(1), "ab"[pick % 2])
        run(self.modelled.other_catalog, request_on(table, files), table, now_ms=now_ms())
        self.modelled.rows += self.modelled.rows_of(files)

    def delete_position(self, pick: int) -> None:
        """A row of a file; on format v3 of two files, whose vectors lie in one Puffin file."""
        live, files = self._live(), small_files(self.table)
        files = [file for file in files if file.path in live]
        if not files or self.modelled.version == "1":
            return
        chosen = files[pick % len(files) :][: 2 if self.modelled.version == "3" else 1]
        taken = {file: live[file.path][pick % len(live[file.path])] for file in chosen}
        for file, (_, row) in taken.items():
            self._delete(file.partition, row)
        if self.modelled.version == "2":
            for file, (position, _) in taken.items():
                delete_rows(self.modelled.other_catalog, file, [position])
            return
        stay = {file: {at for at, _ in live[file.path]} - {position} for file, (position, _) in taken.items()}
        gone = {file: [at for at in range(file.rows) if at not in some] for file, some in stay.items()}
        exchange_vectors(self.modelled.other_catalog, gone, self._vectors_of({file.path for file in chosen}))

    def _vectors_of(self, paths: Collection[str]) -> list[FileId]:
        """The vectors that data files of main have; icesize does not look for those of old partition specs."""
        table = self.table
        head = table.metadata.current_snapshot()
        entries = self.modelled.reader.entries(head, table.io) if head else []
        return [(e.path, e.offset) for e in entries if e.offset is not None and e.referenced in paths]

    def delete_equality(self, pick: int) -> None:
        rows = sorted(self.modelled.rows, key=repr)
        if rows and self.modelled.version != "1":
            partition, row = rows[pick % len(rows)]
            self._delete(partition, row)
            self.modelled.equality_deletes = True
            delete_ids(self.modelled.other_catalog, FileFact("", 0, 0, partition), [row[0]])

    def _live(self) -> dict[str, list[tuple[int, Row]]]:
        """The rows of main that a reader sees, with their positions, by path."""
        table, live = self.table, defaultdict[str, list[tuple[int, Row]]](list)
        if head := table.metadata.current_snapshot():
            for data, position, row in self.modelled.reader.live(head, table.io):
                live[data.path].append((position, row))
        return live

    def _delete(self, partition: PartitionKey, row: Row) -> None:
        self.modelled.rows -= Counter({(partition, row): 1})
        self.modelled.deletes = True

    def compact_as_icesize(self, pick: int) -> None:
        table = self.table
        if groups := self._chosen(table, pick):
            wanted = request_on(table, groups=[merged(table, groups)])
            run(self.modelled.other_catalog, wanted, table, now_ms=now_ms())

    def compact_as_another(self, pick: int) -> None:
        """A replace without anything of ours in its summary."""
        table = self.table
        if inputs := self._chosen(table, pick):
            with SnapshotBuilder(table, now_ms()) as builder:
                snapshot = replaced(builder, inputs, merged(table, inputs).files, {"engine-name": "other"})
            base = AssertRefSnapshotId(ref="main", snapshot_id=table.metadata.current_snapshot_id)
            updates = AddSnapshotUpdate(snapshot=snapshot), move_ref(table.metadata, "main", snapshot.snapshot_id)
            table.catalog.commit_table(table, (base,), updates)

    def _chosen(self, table: Table, pick: int) -> Sequence[FileFact]:
        groups = list(self.modelled.mergeable(table).values())
        return groups[pick % len(groups)] if groups else ()

    def expire(self, pick: int) -> None:
        """By PyIceberg: all but the newest of main, and what branches and tags name; no file is deleted."""
        table = self.table
        kept = {ref.snapshot_id for ref in table.metadata.refs.values()}
        if ids := [s.snapshot_id for s in table.metadata.snapshots if s.snapshot_id not in kept]:
            table.maintenance.expire_snapshots().by_ids(ids[pick % 2 :] or ids).commit()

    def tag(self, pick: int) -> None:
        self._name(pick, lambda table, number, name: table.manage_snapshots().create_tag(number, name).commit())

    def branch(self, pick: int) -> None:
        self._name(pick, lambda table, number, name: table.manage_snapshots().create_branch(number, name).commit())

    def _name(self, pick: int, create: Callable[[Table, int, str], object]) -> None:
        table, name = self.table, f"of-{self.modelled.next_id}-{len(self.modelled.refs)}"
        ids = [s.snapshot_id for s in table.metadata.snapshots]
        if ids and len(self.modelled.refs) < 3 and name not in self.modelled.refs:
            create(table, number := ids[pick % len(ids)], name)
            self.modelled.refs[name] = number

    def append_to_branch(self, pick: int) -> None:
        """Not a row of main, but the next sequence number. PyIceberg's own, which writes no manifests of format v3."""
        is_v3 = self.modelled.version == "3"
        if not is_v3 and any(isinstance(f.transform, BucketTransform) for f in self.table.spec().fields):
            return  # PyIceberg cannot tell partitions
        branches = [n for n in sorted(self.modelled.refs) if self.table.metadata.refs[n].snapshot_ref_type == "branch"]
        if branches:
            table, name = self.table, branches[pick % len(branches)]
            ids = self.modelled.new_ids(1)
            if is_v3:
                builder = SnapshotBuilder(table, now_ms(), ref=name)
                Append(tuple(self.modelled.write(table, ids, "a"))).stage(builder, {})
                table.catalog.commit_table(table, tuple(builder.requirements), tuple(builder.made_visible()))
            else:
                table.append(self.modelled.arrow(table, ids, "a"), branch=name)
            self.modelled.refs[name] = self.table.metadata.refs[name].snapshot_id

    def upgrade(self, pick: int) -> None:
        """Of format v1 to v2 or v3, of v2 to v3."""
        table, catalog = self.table, self.modelled.other_catalog
        version = "2" if self.modelled.version == "1" and pick % 2 else "3"
        if version == "2":
            catalog.commit_table(table, (), (UpgradeFormatVersionUpdate(format_version=2),))
        elif self.modelled.version != "3":
            as_v3(catalog)
        self.modelled.version = version

    def untag(self, pick: int) -> None:
        if self.modelled.refs:
            name = sorted(self.modelled.refs)[pick % len(self.modelled.refs)]
            is_tag = self.table.metadata.refs[name].snapshot_ref_type == "tag"
            manage = self.table.manage_snapshots()
            (manage.remove_tag(name) if is_tag else manage.remove_branch(name)).commit()
            del self.modelled.refs[name]

    def add_column(self, pick: int) -> None:
        table = self.table
        if table.schema().find_column_name(4) is None:
            table.update_schema().add_column("number", IntegerType()).commit()

    def widen_column(self, pick: int) -> None:
        table = self.table
        name = table.schema().find_column_name(4)
        if name is not None and isinstance(table.schema().find_type(4), IntegerType):
            table.update_schema().update_column(name, LongType()).commit()

    def rename_column(self, pick: int) -> None:
        table = self.table
        name = table.schema().find_field(3).name
        table.update_schema().rename_column(name, "at" if name == "ts" else "ts").commit()

    def add_field(self, pick: int) -> None:
        table = self.table
        if len(table.spec().fields) < 2:
            table.update_spec().add_field("id", BucketTransform(2), f"bucket_{len(table.specs())}").commit()
            self.modelled.specs_changed = True

    def remove_field(self, pick: int) -> None:
        table = self.table
        fields = [f for f in table.spec().fields if isinstance(f.transform, BucketTransform)]
        if fields:
            table.update_spec().remove_field(fields[0].name).commit()
            self.modelled.specs_changed = True

    def roll_back(self, pick: int) -> None:
        """Main is an older snapshot again; what came after it is on no branch any more."""
        table = self.table
        known = [s.snapshot_id for s in table.metadata.snapshots if s.snapshot_id in self.modelled.history]
        line = {s.snapshot_id for s in ancestors_of(table.metadata.current_snapshot(), table.metadata)}
        if ids := [i for i in known if i in line]:
            number = ids[max(0, len(ids) - 1 - pick % 3)]
            table.manage_snapshots().rollback_to_snapshot(number).commit()
            self.modelled.rows = Counter(self.modelled.history[number])

    def move_main(self, pick: int) -> None:
        """Main is any snapshot that the table knows, also one that it has left or that others made beside it."""
        table = self.table
        if ids := [s.snapshot_id for s in table.metadata.snapshots if s.snapshot_id in self.modelled.history]:
            number = ids[-1 - pick % len(ids)]
            table.manage_snapshots().set_current_snapshot(number).commit()
            self.modelled.rows = Counter(self.modelled.history[number])
