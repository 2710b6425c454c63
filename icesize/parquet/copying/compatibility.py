"""Which files may be copied, and which of them may lie in one file."""

from __future__ import annotations

import re
from collections.abc import Sequence

from icesize.parquet.format.fields import ColumnOrder, FileMetaData
from icesize.parquet.format.footer import Footer
from icesize.parquet.format.refusals import CopyRefused, Refusal
from icesize.parquet.format.schema import INT96
from icesize.parquet.format.thrift import list_header, struct_field, write_struct

MOST_ROW_GROUPS = 4_096
"""Row groups of one file; their ordinals have 16 bits."""

_TRUSTED = {
    "parquet-mr": (1, 10, 0),
    "parquet-cpp-arrow": (4, 0, 0),
    "parquet-rs": (4, 0, 0),
    "DuckDB": (1, 0, 0),
    "icesize": (0, 0, 0),
}
"""Writers and the versions from which on readers trust their statistics: a copied file may carry another name, under
which statistics of an older version would be believed (PARQUET-251, PARQUET-246, PARQUET-816)."""
_VERSION = re.compile(r"(\S{1,99}) version v?(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?", re.ASCII)
"""Bounded: the name comes from a file, and numbers of thousands of digits are an error."""

_LINEAGE_IDS = frozenset({2147483540, 2147483539})
"""Field ids of `_row_id` and `_last_updated_sequence_number` (Iceberg specification, reserved field ids)."""
_LEGACY_PREFIX = b"org.apache.spark.legacy"
_DELETE_KEYS = (b"delete-type", b"delete-field-ids")
_SPARK_VERSION = b"org.apache.spark.version"
_SPARK_3 = re.compile(rb"([3-9]|[1-9]\d+)\.")
"""This version and all later ones."""


def check_file(footer: Footer) -> None:
    """Raise `CopyRefused` where values of this file may mean something else in a file that others began."""
    if any(element.type == INT96 for element in footer.schema):
        raise CopyRefused(Refusal.INT96)
    if any(element.field_id in _LINEAGE_IDS for element in footer.schema):
        raise CopyRefused(Refusal.ROW_LINEAGE)
    if column_orders(footer) not in (b"", _by_type(len(footer.columns))):
        raise CopyRefused(Refusal.COLUMN_ORDERS)
    if not is_trusted(footer.created_by):
        raise CopyRefused(Refusal.CREATED_BY, footer.created_by)
    for key, value in footer.keys.items():
        if key.startswith(_LEGACY_PREFIX) or key in _DELETE_KEYS or (key == _SPARK_VERSION and _is_old(value)):
            raise CopyRefused(Refusal.LEGACY_VALUES, key.decode("utf-8", "replace"))


def check_together(footers: Sequence[Footer]) -> None:
    """Raise `CopyRefused` unless row groups of all these files may lie in one."""
    first = footers[0]
    for footer in footers:
        if footer.meaning != first.meaning:
            raise CopyRefused(Refusal.SCHEMA_DIFFERS, _difference(footer, first))
        if column_orders(footer) != column_orders(first):
            raise CopyRefused(Refusal.COLUMN_ORDERS)


def column_orders(footer: Footer) -> bytes:
    """How bounds of each column are ordered, as the footer has it; empty when it does not say."""
    return bytes(footer.fields.get(FileMetaData.COLUMN_ORDERS, (0, b""))[1])


def _by_type(columns: int) -> bytes:
    """All columns ordered as their types say: the only order of which statistics can be merged."""
    return list_header(columns) + write_struct({ColumnOrder.TYPE_ORDER: struct_field({})}) * columns


def is_trusted(created_by: str) -> bool:
    """Whether readers believe the statistics of this writer's files."""
    found = _VERSION.match(created_by)
    if found is None or found[1] not in _TRUSTED:
        return False
    return tuple(int(part or 0) for part in found.groups()[1:]) >= _TRUSTED[found[1]]


def _is_old(value: bytes | None) -> bool:
    """Spark before 3.0, which wrote dates of the Julian calendar without saying so."""
    return _SPARK_3.match(value or b"") is None


def _difference(footer: Footer, first: Footer) -> str:
    for one, other in zip(footer.schema[1:], first.schema[1:], strict=False):
        if one.meaning != other.meaning:
            return f"{one} is not {other}"
    return f"{len(footer.schema)} elements are not {len(first.schema)}"
