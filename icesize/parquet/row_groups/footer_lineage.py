"""The columns of the row lineage beside those of the table: set apart in footers, and added to new files.

Files of one table may store both columns, one or none, so their bytes move apart from those of the table's columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from icesize.parquet.format.fields import FileMetaData, SchemaElement
from icesize.parquet.format.fields import RowGroup as Ids
from icesize.parquet.format.footer import Footer, RowGroup, StoredColumn
from icesize.parquet.format.schema import INT64, LAST_UPDATED, LINEAGE_IDS, OPTIONAL, ROW_ID, Column, element_of
from icesize.parquet.format.statistics import column_orders, orders_by_type
from icesize.parquet.format.thrift import LIST, Fields, bytes_field, i32, i64, structs_field, structs_of


def _fields(field_id: int, name: bytes) -> Fields:
    return {
        SchemaElement.TYPE: i32(INT64),
        SchemaElement.REPETITION_TYPE: i32(OPTIONAL),
        SchemaElement.NAME: bytes_field(name),
        SchemaElement.FIELD_ID: i32(field_id),
    }


_ADDED = (_fields(ROW_ID, b"_row_id"), _fields(LAST_UPDATED, b"_last_updated_sequence_number"))
LINEAGE_ELEMENTS = tuple(map(element_of, _ADDED))
LINEAGE_COLUMNS = tuple(Column((element.name.decode(),), element, True, (0, 1)) for element in LINEAGE_ELEMENTS)
"""The columns as icesize writes them, in the order of the file."""


def without_lineage(footer: Footer) -> Footer:
    """Return a footer without the columns of the row lineage, which its row groups have as `RowGroup.lineage`.

    Columns that do not hold one integer per row stay, and `check_file` refuses the file.
    """
    columns = footer.columns
    places = {column.element.field_id: at for at, column in enumerate(columns) if _is_lineage(column)}
    if not places or len(places) != sum(element.field_id in LINEAGE_IDS for element in footer.schema):
        return footer
    kept = [at for at in range(len(columns)) if at not in places.values()]
    found = [places.get(element.field_id) for element in LINEAGE_ELEMENTS]
    groups = [
        replace(
            group,
            fields=_of_chunks(group, kept),
            chunks=[group.chunks[at] for at in kept],
            lineage=tuple(None if at is None else StoredColumn(columns[at], group.chunks[at]) for at in found),
        )
        for group in footer.row_groups
    ]
    both = zip(structs_of(footer.fields, FileMetaData.SCHEMA), footer.schema, strict=True)
    elements = [fields for fields, element in both if element.field_id not in LINEAGE_IDS]
    root, *others = (element for element in footer.schema if element.field_id not in LINEAGE_IDS)
    return replace(
        footer,
        fields=_of_schema(footer, elements, len(kept)),
        row_groups=groups,
        schema=(root._replace(children=root.children - len(places)), *others),
        columns=tuple(columns[at] for at in kept),
    )


def footer_with_lineage(footer: Footer) -> Fields:
    """Return the fields of a footer (FileMetaData) whose row groups end with the columns of the row lineage."""
    elements = [*structs_of(footer.fields, FileMetaData.SCHEMA), *_ADDED]
    return _of_schema(footer, elements, len(footer.columns) + len(_ADDED))


def _is_lineage(column: Column) -> bool:
    element = column.element
    is_integer = element.type == INT64 and element.logical is None
    return element.field_id in LINEAGE_IDS and column.flat and len(column.path) == 1 and is_integer


def _of_chunks(group: RowGroup, kept: Sequence[int]) -> Fields:
    """Return the fields of a row group that keeps only some of its chunks."""
    fields = {**group.fields, Ids.TOTAL_BYTE_SIZE: i64(sum(group.chunks[at].raw_size_bytes for at in kept))}
    if kept != [*range(len(kept))]:
        fields.pop(Ids.SORTING_COLUMNS, None)  # they are numbers of columns
    return fields


def _of_schema(footer: Footer, elements: Sequence[Fields], columns: int) -> Fields:
    """Return the fields of a footer with these elements of a schema, which has `columns` leaf columns."""
    more = columns - len(footer.columns)
    root = {**elements[0], SchemaElement.NUM_CHILDREN: i32(footer.schema[0].children + more)}
    fields = {**footer.fields, FileMetaData.SCHEMA: structs_field([root, *elements[1:]])}
    if column_orders(footer) == orders_by_type(len(footer.columns)):
        fields[FileMetaData.COLUMN_ORDERS] = LIST, orders_by_type(columns)
    return fields
