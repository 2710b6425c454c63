"""Types of Avro values that manifests have, with strategies for their values."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

_LONGS = st.integers(-(2**63), 2**63 - 1)
INT_MAP = {
    "type": "array",
    "logicalType": "map",
    "items": {
        "type": "record",
        "name": "pair",
        "fields": [{"name": "key", "type": "int"}, {"name": "value", "type": "long"}],
    },
}
BYTES_MAP = {
    "type": "array",
    "logicalType": "map",
    "items": {
        "type": "record",
        "name": "pair",
        "fields": [{"name": "key", "type": "int"}, {"name": "value", "type": "bytes"}],
    },
}
DECIMAL = {"type": "fixed", "name": "d", "size": 4, "logicalType": "decimal", "precision": 9, "scale": 2}
AVRO_VALUES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    ("null", st.none()),
    ("boolean", st.booleans()),
    ("int", st.integers(-(2**31), 2**31 - 1)),
    ("long", _LONGS),
    ("float", st.floats(width=32, allow_nan=False)),
    ("double", st.floats(allow_nan=False)),
    ("bytes", st.binary(max_size=300)),
    ("string", st.text(max_size=100)),
    ({"type": "int", "logicalType": "date"}, st.integers(-(2**31), 2**31 - 1)),
    ({"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": True}, _LONGS),
    ({"type": "fixed", "name": "f", "size": 3}, st.binary(min_size=3, max_size=3)),
    ({"type": "fixed", "name": "u", "size": 16, "logicalType": "uuid"}, st.uuids()),
    ({"type": "string", "logicalType": "uuid"}, st.uuids()),
    (DECIMAL, st.decimals(-9999999, 9999999, places=2)),
    ({**DECIMAL, "type": "bytes"}, st.decimals(-9999999, 9999999, places=2)),
    (["null", "long"], st.none() | _LONGS),
    (["string", "null"], st.none() | st.text(max_size=9)),
    ({"type": "array", "items": "long"}, st.lists(_LONGS, max_size=9)),
    ({"type": "array", "items": "string"}, st.lists(st.text(max_size=9), max_size=9)),
    (INT_MAP, st.dictionaries(st.integers(0, 2**31 - 1), _LONGS, max_size=9)),
    (BYTES_MAP, st.dictionaries(st.integers(0, 2**31 - 1), st.binary(max_size=9), max_size=9)),
]
