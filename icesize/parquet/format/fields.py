"""The structs of parquet.thrift (format 2.12) that icesize reads or writes, with field ids by their names there.

Structs with offsets also list the types of all their fields, because an unknown field could be another offset. A struct
is a dictionary by these ids (`icesize.parquet.format.thrift.Fields`). The ids of a class are in the order of the
specification and begin with 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from icesize.parquet.format.refusals import CopyRefused, DamagedFile, Refusal
from icesize.parquet.format.thrift import BINARY, I16, I32, I64, LIST, STRUCT, Fields, check_widths


def _in_turn(*types: int) -> dict[int, int]:
    return dict(enumerate(types, 1))


class WithOffsets:
    """A struct that holds offsets: `TYPES` are the types of all its fields, because another field may be an offset."""

    TYPES: ClassVar[Mapping[int, int]]

    @classmethod
    def check(cls, fields: Fields) -> None:
        """Raise `CopyRefused` for an unknown field, and `DamagedFile` for another type or a value that is too large."""
        types = cls.TYPES
        for field_id, (kind, _) in fields.items():
            if types.get(field_id) != kind:
                if field_id in types:
                    raise DamagedFile(f"field {field_id} of {cls.__name__} is of type {kind}")
                raise CopyRefused(Refusal.UNKNOWN_FIELD, f"field {field_id} of {cls.__name__}")
        check_widths(fields)


class FileMetaData(WithOffsets):
    TYPES = _in_turn(I32, LIST, I64, LIST, LIST, BINARY, LIST, STRUCT, BINARY)
    VERSION, SCHEMA, NUM_ROWS, ROW_GROUPS, KEY_VALUE_METADATA, CREATED_BY, COLUMN_ORDERS = range(1, 8)
    ENCRYPTION_ALGORITHM, FOOTER_SIGNING_KEY_METADATA = 8, 9


class KeyValue:
    KEY, VALUE = 1, 2


class ColumnOrder:
    """A union: the order of the bounds of one column."""

    TYPE_ORDER = 1


class SchemaElement:
    TYPE, TYPE_LENGTH, REPETITION_TYPE, NAME, NUM_CHILDREN = range(1, 6)
    CONVERTED_TYPE, SCALE, PRECISION, FIELD_ID, LOGICAL_TYPE = range(6, 11)


class LogicalType:
    """A union: the meaning of values beyond their physical type."""

    STRING, MAP, LIST, ENUM, DECIMAL, DATE, TIME, TIMESTAMP = range(1, 9)
    INTEGER, UNKNOWN, JSON, BSON, UUID = range(10, 15)


class DecimalType:
    """Parameters of `LogicalType.DECIMAL`."""

    SCALE, PRECISION = 1, 2


class TimeType:
    """Parameters of `LogicalType.TIME` and `LogicalType.TIMESTAMP`."""

    IS_ADJUSTED_TO_UTC, UNIT = 1, 2


class TimeUnit:
    """A union: the unit of times and timestamps."""

    MILLIS, MICROS, NANOS = 1, 2, 3


class IntType:
    BIT_WIDTH, IS_SIGNED = 1, 2


class RowGroup(WithOffsets):
    TYPES = _in_turn(LIST, I64, I64, LIST, I64, I64, I16)
    COLUMNS, TOTAL_BYTE_SIZE, NUM_ROWS, SORTING_COLUMNS, FILE_OFFSET, TOTAL_COMPRESSED_SIZE, ORDINAL = range(1, 8)


class ColumnChunk(WithOffsets):
    TYPES = _in_turn(BINARY, I64, STRUCT, I64, I32, I64, I32, STRUCT, BINARY)
    FILE_PATH, FILE_OFFSET, META_DATA = 1, 2, 3
    OFFSET_INDEX_OFFSET, OFFSET_INDEX_LENGTH, COLUMN_INDEX_OFFSET, COLUMN_INDEX_LENGTH = range(4, 8)
    CRYPTO_METADATA, ENCRYPTED_COLUMN_METADATA = 8, 9


class ColumnMetaData(WithOffsets):
    TYPES = _in_turn(I32, LIST, LIST, I32, I64, I64, I64, LIST, I64, I64, I64, STRUCT, LIST, I64, I32, STRUCT, STRUCT)
    TYPE, ENCODINGS, PATH_IN_SCHEMA, CODEC, NUM_VALUES = range(1, 6)
    TOTAL_UNCOMPRESSED_SIZE, TOTAL_COMPRESSED_SIZE, KEY_VALUE_METADATA = 6, 7, 8
    DATA_PAGE_OFFSET, INDEX_PAGE_OFFSET, DICTIONARY_PAGE_OFFSET = 9, 10, 11
    STATISTICS, ENCODING_STATS, BLOOM_FILTER_OFFSET, BLOOM_FILTER_LENGTH = range(12, 16)
    SIZE_STATISTICS, GEOSPATIAL_STATISTICS = 16, 17


class Statistics:
    """Bounds and counts of some values; `MAX` and `MIN` are the old bounds, in signed order for every type."""

    MAX, MIN, NULL_COUNT, DISTINCT_COUNT, MAX_VALUE, MIN_VALUE, IS_MAX_VALUE_EXACT, IS_MIN_VALUE_EXACT = range(1, 9)


class SizeStatistics:
    UNENCODED_BYTE_ARRAY_DATA_BYTES, REPETITION_LEVEL_HISTOGRAM, DEFINITION_LEVEL_HISTOGRAM = 1, 2, 3


class PageEncodingStats:
    PAGE_TYPE, ENCODING, COUNT = 1, 2, 3


class OffsetIndex(WithOffsets):
    TYPES = _in_turn(LIST, LIST)
    PAGE_LOCATIONS, UNENCODED_BYTE_ARRAY_DATA_BYTES = 1, 2


class PageLocation(WithOffsets):
    TYPES = _in_turn(I64, I32, I64)
    OFFSET, COMPRESSED_PAGE_SIZE, FIRST_ROW_INDEX = 1, 2, 3


class ColumnIndex:
    NULL_PAGES, MIN_VALUES, MAX_VALUES, BOUNDARY_ORDER, NULL_COUNTS = range(1, 6)
    REPETITION_LEVEL_HISTOGRAMS, DEFINITION_LEVEL_HISTOGRAMS = 6, 7


class PageHeader:
    TYPE, UNCOMPRESSED_PAGE_SIZE, COMPRESSED_PAGE_SIZE, CRC = range(1, 5)
    DATA_PAGE_HEADER, INDEX_PAGE_HEADER, DICTIONARY_PAGE_HEADER, DATA_PAGE_HEADER_V2 = range(5, 9)


class DataPageHeader:
    """The inner header of data pages of version 1; its first two fields are also those of dictionary pages."""

    NUM_VALUES, ENCODING, DEFINITION_LEVEL_ENCODING, REPETITION_LEVEL_ENCODING = range(1, 5)


class DataPageHeaderV2:
    NUM_VALUES, NUM_NULLS, NUM_ROWS, ENCODING = range(1, 5)
    DEFINITION_LEVELS_BYTE_LENGTH, REPETITION_LEVELS_BYTE_LENGTH, IS_COMPRESSED = range(5, 8)
