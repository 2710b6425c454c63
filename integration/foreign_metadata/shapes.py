"""Shapes of metadata: the habits of known writers, and combinations of all of them.

Sources: schemas that Java, iceberg-go, iceberg-rust, iceberg-cpp and DuckDB write. Trino, Firehose and S3 Tables write
by Java. BigQuery leaves out statistics.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from tests.support.foreign_metadata import CODECS, Shape

METRICS = frozenset({108, 109, 110, 111, 137, 125, 128})
OPTIONAL = METRICS | {105, 131, 132, 140, 143}
"""Fields of a data file that a writer may leave out; 143 is a hint only."""
OPTIONAL_OF_LISTS = frozenset({504, 505, 506, 512, 513, 514, 507, 519})
_LOOSE = ("metadata-log", "statistics", "partition-statistics", "snapshot-log")
"""Keys of a metadata document that a writer may leave out."""


def by_id(parts: Sequence[Any]) -> Sequence[Any]:
    """The fields in the order of their ids, as a writer has them that keeps them in a map."""
    return sorted(parts, key=lambda part: int(part[0].get("field-id", 0)))


def plain_name(name: str, field_id: int | None) -> str:
    """A name that only has the id."""
    return f"r{field_id}" if field_id is not None else name


def empty_partition(shape: Shape) -> Shape:
    """The shape with a field in the partition of an unpartitioned table, which some libraries need."""
    return replace(shape, more_partitions={**shape.more_partitions, -1: (["null", "int"], None)})


JAVA = Shape()
WRITERS: dict[str, Shape] = {
    "java": JAVA,
    "go": replace(JAVA, header=lambda key: key != "schema-id"),
    "rust": replace(JAVA, codec="null", name=plain_name),
    "cpp": replace(JAVA, lacks=frozenset({111, 105})),
    "duckdb": empty_partition(
        replace(JAVA, codec="deflate", partition_order=by_id, name=plain_name, header=lambda key: False, text=str.lower)
    ),
    "bigquery": replace(JAVA, lacks=OPTIONAL, codec="snappy", unions=lambda kinds: [*reversed(kinds)]),
    "csharp": replace(JAVA, has_text_ids=True, codec="zstandard"),
}


def shuffled(seed: int) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """An order that is the same for each record of a schema."""
    return lambda parts: Random(seed).sample(parts, len(parts))


def any_shape(rng: Random) -> Shape:
    """A combination of habits that no writer is known to have."""
    few = [each for each in sorted(OPTIONAL | OPTIONAL_OF_LISTS) if rng.random() < 0.3]
    return Shape(
        order=shuffled(rng.getrandbits(32)) if rng.random() < 0.7 else list,
        partition_order=rng.choice([shuffled(rng.getrandbits(32)), by_id, lambda parts: [*reversed(parts)]]),
        name=rng.choice([plain_name, lambda name, _: f"{name}_x", lambda name, _: name]),
        lacks=frozenset(few),
        unknown=rng.choice([0, 0, 1, 3]),
        has_unknown_ids=rng.random() < 0.5,
        unions=(lambda kinds: [*reversed(kinds)]) if rng.random() < 0.5 else list,
        codec=rng.choice([*CODECS]),
        block_records=rng.choice([1, 2, 100]),
        header=(lambda key: False) if rng.random() < 0.5 else lambda key: True,
        has_text_ids=rng.random() < 0.2,
        marks_maps=rng.random() < 0.7,
        text=rng.choice([str.lower, str.upper]),
        more_partitions={1900: (["null", "string"], "other")} if rng.random() < 0.3 else {},
    )


def document_change(rng: Random) -> Callable[[dict[str, Any]], None]:
    """A change of a metadata document in place: other order, unknown keys, keys that are not there.

    No parent of a snapshot is null, which Iceberg's Java library refuses ("Cannot parse to a long value").
    """
    without = [key for key in _LOOSE if rng.random() < 0.4]
    unknown, seed = rng.random() < 0.5, rng.getrandbits(32)

    def change(document: dict[str, Any]) -> None:
        for key in without:
            document.pop(key, None)
        if rng.random() < 0.3 and set(document.get("refs", {})) <= {"main"}:
            document.pop("refs", None)
        if unknown:
            document |= {"x-unknown": {"a": [1, None]}, "table-owner": "else"}
            for snapshot in document["snapshots"]:
                snapshot["x-unknown"] = 7
        order = Random(seed).sample(sorted(document), len(document))
        values = json.loads(json.dumps(document))
        document.clear()
        document.update({key: values[key] for key in order})

    return change
