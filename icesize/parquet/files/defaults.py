"""Default values of columns (Iceberg specification, "Default values").

Rows of files without a column have its initial default; new rows without it receive its write default. Only columns of
primitive types have defaults: PyIceberg opens no table with another one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.types import NestedField

from icesize.parquet.files.settings import WriteSettings, derived

Defaults = Mapping[int, pa.Scalar]
"""Values of the type that files have, by field id, at the top and in structs, lists and maps; never NULL."""


@derived
def initial_defaults(settings: WriteSettings) -> Defaults:
    """Return the value that rows of files without a column have, for each column with such a value."""
    return _defaults(settings, lambda field: field.initial_default)


@derived
def write_defaults(settings: WriteSettings) -> Defaults:
    """Return the value that new rows without a column receive, for each column with such a value."""
    return _defaults(settings, lambda field: field.write_default)


def _defaults(settings: WriteSettings, value: Callable[[NestedField], Any]) -> Defaults:
    fields = (settings.schema.find_field(field_id) for field_id in settings.schema.field_ids)
    return {
        field.field_id: scalar_of(value(field), schema_to_pyarrow(field.field_type))
        for field in fields
        if value(field) is not None
    }


def scalar_of(value: Any, kind: pa.DataType) -> pa.Scalar:
    """Return a value as Arrow's; Arrow before version 24 makes no scalar of a UUID."""
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, pa.array([value.bytes], kind.storage_type))[0]
    return pa.scalar(value, kind)
