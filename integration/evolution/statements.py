"""What users and other engines do to a table: each kind of statement by its name, applied to both tables of a pair."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import ancestors_of
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
)

from icesize.table.manifests.entries import read_entries
from icesize.table.manifests.manifest_lists import manifests_of
from integration.evolution import values
from integration.evolution.pair import Over, Pair, Side
from integration.evolution.values import Draw, Row, Skip, as_json, ddl, leaves, literal, pool, rows, shown

Statement = Callable[[Pair, Draw], str]
STATEMENTS: dict[str, Statement] = {}
_TYPES = (
    "int", "int", "long", "float", "float", "double", "decimal(9,2)", "string", "string", "date", "timestamp",
    "timestamptz", "binary", "boolean",
)  # fmt: skip
_TRANSFORMS = {
    # by 10 the smallest int is truncated beyond the type, and becomes another number where the column is promoted
    "int": ("identity", "identity", "identity", "bucket[4]", "truncate[2]"),
    "long": ("identity", "bucket[4]", "truncate[10]"),
    "float": ("identity",), "double": ("identity",), "decimal": ("identity", "identity", "bucket[3]", "truncate[50]"),
    "string": ("identity", "bucket[4]", "truncate[1]"), "date": ("identity", "year", "month", "day", "bucket[3]"),
    "timestamp": ("identity", "year", "month", "day", "hour", "bucket[3]"),
    "timestamptz": ("identity", "year", "month", "day", "hour"), "binary": ("identity", "bucket[3]", "truncate[2]"),
    "boolean": ("identity",),
}  # fmt: skip
_MODES = ("copy-on-write", "merge-on-read")
_MODE_OF = ("write.delete.mode", "write.update.mode", "write.merge.mode")
_PROPERTIES = (
    ("write.parquet.compression-codec", ("zstd", "snappy", "gzip", "uncompressed")),
    ("write.metadata.metrics.default", ("full", "truncate(4)", "counts", "none")),
    ("commit.manifest.min-count-to-merge", ("2", "3", "100")),
    *((name, _MODES) for name in _MODE_OF), ("write.delete.granularity", ("partition", "file")),
    ("write.object-storage.enabled", ("true", "false")), ("write.metadata.compression-codec", ("gzip", "none")),
    ("write.metadata.previous-versions-max", ("1", "3")), ("write.metadata.delete-after-commit.enabled", ("true",)),
    ("write.target-file-size-bytes", ("6000", "20000", "536870912")), ("write.distribution-mode", ("none", "hash")),
    ("history.expire.max-snapshot-age-ms", ("1", "432000000")), ("history.expire.min-snapshots-to-keep", ("1", "3")),
    ("write.parquet.page-row-limit", ("2",)), ("write.parquet.dict-size-bytes", ("100",)),
)  # fmt: skip


def statement(name: str) -> Callable[[Statement], Statement]:
    """Register a statement under the name that programs call it by."""

    def register(made: Statement) -> Statement:
        STATEMENTS[name] = made
        return made

    return register


@statement("create")
def create(pair: Pair, draw: Draw) -> str:
    schema = _new_schema(draw)
    fields = _new_spec(schema, draw)
    version = "3" if draw.maybe(0.5) else draw.chance.choice("1222")
    properties = {"format-version": version, "write.distribution-mode": "none"}
    for name, choices in _PROPERTIES:
        if draw.maybe(0.12):
            properties[name] = draw.chance.choice(choices)
    elsewhere = draw.maybe(0.1)
    if draw.maybe(0.4):
        properties |= dict.fromkeys(_MODE_OF, "merge-on-read")

    def make(side: Side) -> None:
        made = side.engine.iceberg("SchemaParser").fromJson(schema.model_dump_json())
        told = json.dumps({"spec-id": 0, "fields": fields})
        spec = side.engine.iceberg("PartitionSpecParser").fromJson(made, told)
        build = side.engine.java.buildTable(side.engine.identifier(side.name), made).withPartitionSpec(spec)
        for name, value in properties.items():
            build = build.withProperty(name, value)
        if elsewhere:
            build = build.withProperty("write.data.path", f"file://{side.engine.folder}/elsewhere/{side.name}")
        build.create()

    pair.both(make)
    by = ", ".join(f"{f['transform']}({schema.find_column_name(f['source-id'])})" for f in fields)
    where = " data elsewhere" if elsewhere else ""
    return f"CREATE TABLE ({_told(schema)}) PARTITIONED BY ({by}) {properties}{where}"


def _new_schema(draw: Draw) -> Schema:
    columns = [NestedField(1, "id", LongType(), required=False)]
    for i in range(draw.few(2, 4)):
        kind = draw.chance.choice(_TYPES)
        columns.append(NestedField(2 + i, f"c{i}", _type(kind), required=draw.maybe(0.08)))
    if draw.maybe(0.35):
        a, b = NestedField(20, "a", IntegerType(), required=False), NestedField(21, "b", StringType(), required=False)
        columns.append(NestedField(19, "s", StructType(a, b), required=False))
    if draw.maybe(0.15):
        columns.append(NestedField(30, "l", ListType(31, IntegerType(), element_required=False), required=False))
    return Schema(*columns)


def _type(text: str) -> IcebergType:
    return IcebergType.model_validate(text)


def _new_spec(schema: Schema, draw: Draw) -> list[dict[str, Any]]:
    columns = [f for f in schema.fields if isinstance(f.field_type, PrimitiveType) and f.name != "id"]
    count = draw.chance.choices((0, 1, 2), (2, 6, 2))[0]
    fields = []
    for i, column in enumerate(draw.chance.sample(columns, min(count, len(columns)))):
        transform = draw.chance.choice(_transforms(column.field_type))
        name = column.name if transform == "identity" else f"{column.name}_{transform.split('[')[0]}"
        fields.append({"name": name, "transform": transform, "source-id": column.field_id, "field-id": 1000 + i})
    return fields


def _transforms(kind: IcebergType) -> Sequence[str]:
    return _TRANSFORMS["decimal" if isinstance(kind, DecimalType) else str(kind)]


def _told(schema: Schema) -> str:
    return ", ".join(f"{f.name} {ddl(f.field_type)}{' NOT NULL' * f.required}" for f in schema.fields)


@statement("replace-table")
def replace_table(pair: Pair, draw: Draw) -> str:
    schema = _new_schema(draw)
    fields = _new_spec(schema, draw)

    def replace(side: Side) -> None:
        made = side.engine.iceberg("SchemaParser").fromJson(schema.model_dump_json())
        told = json.dumps({"spec-id": 0, "fields": fields})
        spec = side.engine.iceberg("PartitionSpecParser").fromJson(made, told)
        build = side.engine.java.buildTable(side.engine.identifier(side.name), made).withPartitionSpec(spec)
        build.createOrReplaceTransaction().commitTransaction()

    pair.both(replace)
    # Iceberg reads them by the new columns and partitions from now on
    pair.before_replacing |= {s.snapshot_id for s in pair.kept.table.metadata.snapshots}
    by = ", ".join(f"{f['transform']}({schema.find_column_name(f['source-id'])})" for f in fields)
    return f"CREATE OR REPLACE TABLE ({_told(schema)}) PARTITIONED BY ({by})"


def _append(how: str, branch: str | None = None) -> Statement:
    def statement(pair: Pair, draw: Draw) -> str:
        schema, way = pair.schema, "fast" if how == "append" and draw.maybe(0.4) else how
        found = rows(schema, draw)
        pair.both(lambda side: side.engine.probe.append(side.java, as_json(schema, found), way, branch))
        return f"append ({way}) {shown(found)}"

    return statement


STATEMENTS["append"] = _append("append")
STATEMENTS["replace-partitions"] = _append("replace-partitions")


@statement("stage")
def stage(pair: Pair, draw: Draw) -> str:
    before = [_snapshots(side) for side in (pair.kept, pair.twin)]
    told = _append("stage")(pair, draw)
    [ours], [theirs] = (_snapshots(s) - known for s, known in zip((pair.kept, pair.twin), before, strict=True))
    pair.staged.append((ours, theirs))
    return told


def _snapshots(side: Side) -> set[int]:
    return {s.snapshot_id for s in side.table.metadata.snapshots}


@statement("append-spark")
def append_spark(pair: Pair, draw: Draw) -> str:
    schema = pair.schema
    found = rows(schema, draw)
    pair.both(lambda side: side.frame(schema, found).writeTo(side.full_name).append())
    return f"INSERT {shown(found)}"


def _sql(text: str) -> Callable[[Pair, Draw], str]:
    def statement(pair: Pair, draw: Draw) -> str:
        made = text.format(t="{t}", n="{n}", m=draw.few(2, 4), r=draw.few(0, 1), **{"from": draw.few(0, 30)})
        pair.both(lambda side: side.sql(made))
        return made

    return statement


STATEMENTS["merge"] = _sql(
    "MERGE INTO {t} USING (SELECT id + {from} AS id FROM range(4)) s ON {t}.id = s.id "
    "WHEN MATCHED AND s.id % {m} = {r} THEN DELETE WHEN MATCHED THEN UPDATE SET id = s.id + 100 "
    "WHEN NOT MATCHED THEN INSERT (id) VALUES (s.id)"
)


@statement("overwrite")
def overwrite(pair: Pair, draw: Draw) -> str:
    schema = pair.schema
    found = rows(schema, draw)
    mode = draw.chance.choice(("overwritePartitions", "overwrite"))

    def write(side: Side) -> None:
        from pyspark.sql.functions import lit

        writer = side.frame(schema, found).writeTo(side.full_name)
        writer.overwritePartitions() if mode == "overwritePartitions" else writer.overwrite(lit(True))

    pair.both(write)
    return f"INSERT OVERWRITE ({mode}) {shown(found)}"


@statement("delete")
def delete(pair: Pair, draw: Draw) -> str:
    made = f"DELETE FROM {{t}} WHERE {_condition(pair.schema, draw)}"
    pair.both(lambda side: side.sql(made))
    return made


@statement("update")
def update(pair: Pair, draw: Draw) -> str:
    schema = pair.schema
    column = draw.one([f for f in schema.fields if isinstance(f.field_type, PrimitiveType)], lambda f: f.name)
    value = draw.chance.choice(pool(column.field_type)) if column.name != "id" else draw.few(0, 30)
    condition = _condition(schema, draw)
    made = f"UPDATE {{t}} SET `{column.name}` = {literal(column.field_type, value)} WHERE {condition}"
    pair.both(lambda side: side.sql(made))
    return made


def _condition(schema: Schema, draw: Draw) -> str:
    """On `id`, or on nulls: SQL and Iceberg do not agree on whether -0.0 is 0.0, and which rows are deleted would hang
    on how they lie in files."""
    if draw.maybe(0.3):
        name, _ = draw.one(leaves(schema), lambda leaf: leaf[0])
        return ".".join(f"`{part}`" for part in name.split(".")) + f" IS {'NOT ' * draw.maybe(0.3)}NULL"
    modulus = draw.few(2, 4)
    return f"id % {modulus} = {draw.few(0, modulus - 1)}"


@statement("delete-equal")
def delete_equal(pair: Pair, draw: Draw) -> str:
    return _equal(pair, draw)


def _equal(pair: Pair, draw: Draw, branch: str | None = None) -> str:
    _needs_deletes(pair)
    schema = pair.schema
    leaf = draw.one([name for name, _ in leaves(schema)])
    names = draw.chance.choice((["id"], ["id"], ["id", leaf], [leaf]))
    narrow = schema.select(*names)
    # of another column each value stands in many rows
    found = [_key(narrow, draw) for _ in range(draw.few(2, 10) if "id" in names else draw.few(1, 2))]
    files = draw.chance.choice((1, 1, 2, 4))
    told = as_json(narrow, found)
    pair.both(lambda side: side.engine.probe.deleteEqual(side.java, names, told, files, branch))
    return f"equality deletes ({files} files) of {shown(found)}"


def _needs_deletes(pair: Pair) -> None:
    if pair.twin.table.metadata.format_version < 2:
        raise Skip("delete files need version 2")


def _key(schema: Schema, draw: Draw) -> Row:
    """Values of columns by which rows are deleted."""

    def one(field: NestedField) -> object:
        if isinstance(field.field_type, StructType):
            # whether a null struct's field is null, Iceberg's readers do not agree
            return {f.name: values.value(f.field_type, draw, required=True) for f in field.field_type.fields}
        return draw.few(0, 30) if field.name == "id" else values.value(field.field_type, draw, field.required)

    return {field.name: one(field) for field in schema.fields}


@statement("upsert")
def upsert(pair: Pair, draw: Draw, branch: str | None = None) -> str:
    _needs_deletes(pair)
    schema = pair.schema
    columns = [f.name for f in schema.fields if isinstance(f.field_type, PrimitiveType) and f.name != "id"]
    names = ["id", draw.one(columns)] if columns and draw.maybe(0.3) else ["id"]
    found = rows(schema, draw, most=6)
    # keys that come again in the commit: the last row stays
    again = [row for row in found if draw.maybe(0.4)]
    found += [{**draw.chance.choice(found), **{name: row[name] for name in names}} for row in again]
    told = as_json(schema, found)
    pair.both(lambda side: side.engine.probe.upsert(side.java, names, told, "[]", True, branch))
    return f"upsert by {names} {shown(found)}"


def _positions(pair: Pair, draw: Draw, branch: str | None = None) -> str:
    _needs_deletes(pair)
    ids = sorted(draw.chance.sample(range(31), draw.few(8, 18)))
    by_partition = draw.maybe(0.5)
    pair.both(lambda side: side.engine.probe.deletePositions(side.java, list(map(str, ids)), by_partition, branch))
    return f"position deletes by {'partition' if by_partition else 'file'} of id in {ids}"


@statement("delete-positions")
def delete_positions(pair: Pair, draw: Draw) -> str:
    return _positions(pair, draw)


def _alter(pair: Pair, change: Callable[[Any, Any], Any]) -> None:
    """Change the schema: `change` gets the Java update and the class of Iceberg's types."""
    types = pair.engine.iceberg("types.Types")
    pair.both(lambda side: change(side.java.updateSchema(), types).commit())


def _java_type(types: Any, kind: str) -> Any:
    return types.fromPrimitiveString(kind)


@statement("add-column")
def add_column(pair: Pair, draw: Draw) -> str:
    name, kind = _free_name(pair.schema, draw), draw.chance.choice(_TYPES)
    _alter(pair, lambda update, types: update.addColumn(name, _java_type(types, kind)))
    return f"ADD COLUMN {name} {kind}"


def _free_name(schema: Schema, draw: Draw) -> str:
    return draw.one({f"c{i}" for i in range(8)} - {f.name for f in schema.fields})


def _column(schema: Schema, draw: Draw) -> NestedField:
    return draw.one([f for f in schema.fields if f.name != "id"], lambda f: f.name)


@statement("drop-column")
def drop_column(pair: Pair, draw: Draw) -> str:
    name = _column(pair.schema, draw).name
    _alter(pair, lambda update, types: update.deleteColumn(name))
    return f"DROP COLUMN {name}"


@statement("rename-column")
def rename_column(pair: Pair, draw: Draw) -> str:
    old, new = _column(pair.schema, draw).name, _free_name(pair.schema, draw)
    _alter(pair, lambda update, types: update.renameColumn(old, new))
    return f"RENAME COLUMN {old} TO {new}"


@statement("move-column")
def move_column(pair: Pair, draw: Draw) -> str:
    name = _column(pair.schema, draw).name
    _alter(pair, lambda update, types: update.moveFirst(name))
    return f"ALTER COLUMN {name} FIRST"


@statement("promote")
def promote(pair: Pair, draw: Draw) -> str:
    schema, meta = pair.schema, pair.twin.table.metadata
    wider = {name: _wider(kind) for name, kind in leaves(schema) if _wider(kind)}
    sources = {schema.find_column_name(f.source_id) for f in meta.spec().fields}
    if any(int(s.summary["total-equality-deletes"] or 0) for s in meta.snapshots if s.summary):
        # afterwards Iceberg applies no equality delete of such a partition to an older snapshot (seen with 1.11)
        floats = {name for name, kind in leaves(schema) if isinstance(kind, FloatType)}
        wider = {name: kind for name, kind in wider.items() if name not in sources & floats}
    preferred = [name for name in wider if name in sources]
    name = draw.one(preferred if preferred and draw.maybe(0.7) else wider)
    _alter(pair, lambda update, types: update.updateColumn(name, _java_type(types, wider[name])))
    return f"ALTER COLUMN {name} TYPE {wider[name]}"


def _wider(kind: IcebergType) -> str | None:
    if isinstance(kind, DecimalType) and kind.precision < 38:
        return f"decimal({min(38, kind.precision * 2)}, {kind.scale})"
    return {str(IntegerType()): str(LongType()), str(FloatType()): str(DoubleType())}.get(str(kind))


@statement("make-optional")
def make_optional(pair: Pair, draw: Draw) -> str:
    name = draw.one([f.name for f in pair.schema.fields if f.required])
    _alter(pair, lambda update, types: update.makeColumnOptional(name))
    return f"ALTER COLUMN {name} DROP NOT NULL"


@statement("nested")
def nested(pair: Pair, draw: Draw) -> str:
    parent = draw.one([f for f in pair.schema.fields if isinstance(f.field_type, StructType)], lambda f: f.name)
    inner = {f.name for f in parent.field_type.fields}
    what = draw.chance.choice(("add", "drop", "rename"))
    if what == "add":
        new, kind = draw.one({f"n{i}" for i in range(4)} - inner), draw.chance.choice(_TYPES)
        _alter(pair, lambda update, types: update.addColumn(parent.name, new, _java_type(types, kind)))
        return f"ADD COLUMN {parent.name}.{new} {kind}"
    name = draw.one(inner)
    if what == "drop":
        _alter(pair, lambda update, types: update.deleteColumn(f"{parent.name}.{name}"))
        return f"DROP COLUMN {parent.name}.{name}"
    new = draw.one({f"n{i}" for i in range(4)} - inner)
    _alter(pair, lambda update, types: update.renameColumn(f"{parent.name}.{name}", new))
    return f"RENAME COLUMN {parent.name}.{name} TO {new}"


_BY_POSITION = "Iceberg's generic reader, which reads the rows, takes the columns of files without ids by position"


@statement("drop-and-add")
def drop_and_add(pair: Pair, draw: Draw) -> str:
    if "schema.name-mapping.default" in pair.twin.table.properties:
        raise Skip(_BY_POSITION)
    column = _column(pair.schema, draw)
    kind = draw.chance.choice(_TYPES)
    if draw.maybe(0.5) and str(column.field_type) in _TYPES:
        kind = str(column.field_type)

    def change(side: Side) -> None:
        types = side.engine.iceberg("types.Types")
        side.java.updateSchema().deleteColumn(column.name).commit()
        side.java.updateSchema().addColumn(column.name, _java_type(types, kind)).commit()

    pair.both(change)
    return f"DROP COLUMN {column.name}, ADD COLUMN {column.name} {kind}"


def _term(side: Side, column: str, transform: str) -> Any:
    made = side.engine.iceberg("expressions.Expressions")
    name, _, width = transform.rstrip("]").partition("[")
    if width:
        return getattr(made, name)(column, int(width))
    return made.ref(column) if name == "identity" else getattr(made, name)(column)


def _new_field(pair: Pair, draw: Draw) -> tuple[str, str]:
    column = draw.one([f for f in pair.schema.fields if isinstance(f.field_type, PrimitiveType)], lambda f: f.name)
    return column.name, draw.chance.choice(_transforms(column.field_type))


@statement("add-partition")
def add_partition(pair: Pair, draw: Draw) -> str:
    column, transform = _new_field(pair, draw)
    pair.both(lambda side: side.java.updateSpec().addField(_term(side, column, transform)).commit())
    return f"ADD PARTITION FIELD {transform}({column})"


@statement("drop-partition")
def drop_partition(pair: Pair, draw: Draw) -> str:
    name = draw.one([f.name for f in pair.twin.table.metadata.spec().fields])
    pair.both(lambda side: side.java.updateSpec().removeField(name).commit())
    return f"DROP PARTITION FIELD {name}"


@statement("swap-partition")
def swap_partition(pair: Pair, draw: Draw) -> str:
    name = draw.one([f.name for f in pair.twin.table.metadata.spec().fields])
    column, transform = _new_field(pair, draw)
    pair.both(lambda side: side.java.updateSpec().removeField(name).addField(_term(side, column, transform)).commit())
    return f"REPLACE PARTITION FIELD {name} WITH {transform}({column})"


@statement("order")
def order(pair: Pair, draw: Draw) -> str:
    name = draw.one([name for name, _ in leaves(pair.schema)])

    def sort(side: Side) -> None:
        first = side.engine.iceberg("NullOrder").NULLS_FIRST
        # the shorter call is not found by Py4J
        side.java.replaceSortOrder().asc(_term(side, name, "identity"), first).commit()

    pair.both(sort)
    return f"WRITE ORDERED BY {name}"


@statement("property")
def set_property(pair: Pair, draw: Draw) -> str:
    name, choices = draw.chance.choice(_PROPERTIES)
    value = draw.chance.choice(choices)
    pair.both(lambda side: side.java.updateProperties().set(name, value).commit())
    return f"SET TBLPROPERTIES ({name} = {value})"


@statement("upgrade")
def upgrade(pair: Pair, draw: Draw) -> str:
    version = pair.twin.table.metadata.format_version
    if version == 3 or (version == 2 and draw.maybe(0.5)):
        raise Skip(f"it is version {version}")
    pair.both(lambda side: side.java.updateProperties().set("format-version", str(version + 1)).commit())
    return f"SET TBLPROPERTIES (format-version = {version + 1})"


def _refs(table: Table, kind: str) -> list[str]:
    return [name for name, ref in table.metadata.refs.items() if ref.snapshot_ref_type == kind and name != "main"]


@statement("branch")
def branch(pair: Pair, draw: Draw) -> str:
    name = draw.one({"audit", "b1", "b2"} - set(pair.twin.table.metadata.refs))
    _both_at_head(pair, lambda manage, head: manage.createBranch(name, head))
    return f"CREATE BRANCH {name}"


@statement("tag")
def tag(pair: Pair, draw: Draw) -> str:
    name = draw.one({"v1", "v2"} - set(pair.twin.table.metadata.refs))
    _both_at_head(pair, lambda manage, head: manage.createTag(name, head))
    return f"CREATE TAG {name}"


def _both_at_head(pair: Pair, change: Callable[[Any, int], Any]) -> None:
    if pair.twin.head is None:
        raise Skip("there is no snapshot")
    pair.both(lambda side: change(side.java.manageSnapshots(), side.head).commit())


@statement("drop-ref")
def drop_ref(pair: Pair, draw: Draw) -> str:
    table = pair.twin.table
    kind, name = draw.one([(k, n) for k in ("branch", "tag") for n in _refs(table, k)])

    def drop(side: Side) -> None:
        manage = side.java.manageSnapshots()
        (manage.removeBranch(name) if kind == "branch" else manage.removeTag(name)).commit()

    pair.both(drop)
    return f"DROP {kind.upper()} {name}"


@statement("branch-append")
def branch_append(pair: Pair, draw: Draw) -> str:
    name = draw.one(_refs(pair.twin.table, "branch"))
    return f"{_append('append', name)(pair, draw)} to branch {name}"


@statement("branch-delete")
def branch_delete(pair: Pair, draw: Draw) -> str:
    name = draw.one(_refs(pair.twin.table, "branch"))
    how = draw.chance.choice((_positions, _positions, _equal, upsert))
    return f"{how(pair, draw, name)} in branch {name}"


def ancestors(table: Table, snapshot_id: int | None) -> set[int]:
    """A snapshot and those it comes from, as far as the table keeps them."""
    start = table.metadata.snapshot_by_id(snapshot_id) if snapshot_id is not None else None
    return {snapshot.snapshot_id for snapshot in ancestors_of(start, table.metadata)} if start else set()


def _main(table: Table) -> int | None:
    return table.metadata.current_snapshot_id


@statement("rollback")
def rollback(pair: Pair, draw: Draw) -> str:
    kept, twin = pair.kept.table, pair.twin.table
    ours, theirs = ancestors(kept, _main(kept)), ancestors(twin, _main(twin))
    behind = [mark for mark in pair.marks_there() if mark[1] in ours and mark[2] in theirs]
    number, *ids = draw.one(behind, lambda mark: str(mark[0]))
    return _move(pair, lambda manage, target: manage.rollbackTo(target), ids, f"rollback to after step {number}")


@statement("set-current")
def set_current(pair: Pair, draw: Draw) -> str:
    kept, twin = pair.kept.table.metadata.refs, pair.twin.table.metadata.refs
    known = [(f"branch {n}", kept[n].snapshot_id, twin[n].snapshot_id) for n in twin if n in kept and n != "main"]
    if not known or draw.maybe(0.5):
        known = [(f"after step {number}", *ids) for number, *ids in pair.marks_there()]
    where, *ids = draw.one(known, lambda target: target[0])
    return _move(pair, lambda manage, target: manage.setCurrentSnapshot(target), ids, f"set_current_snapshot {where}")


def _move(pair: Pair, move: Callable[[Any, int], Any], ids: Sequence[int], told: str) -> str:
    targets = dict(zip((pair.kept.name, pair.twin.name), ids, strict=True))
    pair.both(lambda side: move(side.java.manageSnapshots(), targets[side.name]).commit())
    return told


@statement("fast-forward")
def fast_forward(pair: Pair, draw: Draw) -> str:
    kept, twin = pair.kept.table, pair.twin.table
    shared = [n for n in _refs(twin, "branch") if n in kept.metadata.refs]

    def ahead(table: Table, name: str) -> bool:
        # on the kept table main may have moved on by a merge alone
        return _main(table) in ancestors(table, table.metadata.refs[name].snapshot_id)

    name = draw.one([n for n in shared if ahead(kept, n) and ahead(twin, n)])
    pair.both(lambda side: side.java.manageSnapshots().fastForwardBranch("main", name).commit())
    return f"fast_forward main to {name}"


@statement("cherry-pick")
def cherry_pick(pair: Pair, draw: Draw) -> str:
    ours, theirs = _unpicked(pair.kept.table), _unpicked(pair.twin.table)
    # those alone: the kept table has other snapshots that main was never at, such as an append with its merge after it
    waiting = [(kept, twin) for kept, twin in pair.staged if kept in ours and twin in theirs]
    number = draw.one(range(len(waiting)))
    ids = waiting[number]
    return _move(pair, lambda manage, target: manage.cherrypick(target), ids, f"cherrypick staged append {number}")


def _unpicked(table: Table) -> set[int]:
    """Snapshots that are in no ref and never were main, nor were picked."""
    reached = {s for ref in table.metadata.refs.values() for s in ancestors(table, ref.snapshot_id)}
    logged = {entry.snapshot_id for entry in table.metadata.snapshot_log}
    picked = {s.summary.additional_properties.get("source-snapshot-id") for s in table.metadata.snapshots if s.summary}
    found = {s.snapshot_id for s in table.metadata.snapshots} - reached - logged
    return {snapshot_id for snapshot_id in found if str(snapshot_id) not in picked}


@statement("java-expire")
def java_expire(pair: Pair, draw: Draw) -> str:
    last, cleaned = draw.few(1, 3), draw.maybe(0.3)

    def expire(side: Side) -> None:
        table = side.java
        if table.currentSnapshot() is None:
            raise Skip("there is no snapshot")
        newest = max(s.timestamp_ms for s in side.table.metadata.snapshots)
        table.expireSnapshots().expireOlderThan(newest + 1).retainLast(last).cleanExpiredMetadata(cleaned).commit()

    pair.both(expire)
    if any(_lost_vectors(side.table) for side in pair.sides):
        # a commit of Java lists a Puffin file as deleted when it replaces one of several vectors in it
        raise Over("Iceberg's expiry deleted a Puffin file with live vectors, which a commit of Iceberg's had listed")
    return f"expireSnapshots().expireOlderThan(now).retainLast({last}).cleanExpiredMetadata({cleaned})"


def _lost_vectors(table: Table) -> bool:
    """Whether a live deletion vector lies in a file that is gone."""
    deletes = manifests_of(table.current_snapshot(), table.io, table.metadata.specs()).deletes
    vectors = {e.path for m in deletes for e in read_entries(table.io, m) if e.content_offset is not None}
    return any(not Path("/" + path.removeprefix("file:").lstrip("/")).exists() for path in vectors)


@statement("rewrite-data-files")
def rewrite_data_files(pair: Pair, draw: Draw) -> str:
    # all of them: which files need it differs between the two, and rewritten ones take the current partition spec
    made = "CALL lake.system.rewrite_data_files(table => '{n}', options => map('rewrite-all', 'true'))"
    pair.both(lambda side: side.sql(made))
    return made


@statement("rewrite-deletes")
def rewrite_deletes(pair: Pair, draw: Draw) -> str:
    """Other files with the same deletes, under the sequence numbers of those replaced."""
    made = "CALL lake.system.rewrite_position_delete_files(table => '{n}', options => map('rewrite-all', 'true'))"
    before = pair.twin.rows()
    pair.both(lambda side: side.sql(made))
    if pair.twin.rows() != before:
        # seen in a partition of a time before 1970; a kept table whose deletes were merged before does not show it
        raise Over("Iceberg's rewrite of position deletes brought deleted rows of the twin back")
    return made


@statement("rewrite-manifests")
def rewrite_manifests(pair: Pair, draw: Draw) -> str:
    made = "CALL lake.system.rewrite_manifests('{n}', false)"
    pair.both(lambda side: side.sql(made))
    return made


@statement("add-files")
def add_files(pair: Pair, draw: Draw) -> str:
    schema = pair.schema
    if pair.twin.table.metadata.spec().fields:
        raise Skip("files of a partitioned table would have to lie in folders named so")
    if [field.field_id for field in schema.fields] != list(range(1, len(schema.fields) + 1)):
        raise Skip(_BY_POSITION)
    found, number = rows(schema, draw), len(pair.log)

    def add(side: Side) -> None:
        folder = side.engine.folder / "lake" / "db" / side.name / "data" / f"foreign{number}"
        side.frame(schema, found).write.mode("overwrite").parquet(str(folder))
        side.sql(f"CALL lake.system.add_files(table => '{{n}}', source_table => '`parquet`.`{folder}`')")

    pair.both(add)
    return f"add_files {shown(found)}"
