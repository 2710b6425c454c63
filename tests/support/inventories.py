"""Inventories, as a storage service writes them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from icesize.storage.stores import Listed


def inventory_file(folder: Path, listed: Iterable[Listed], kind: str = "parquet") -> Path:
    """What a storage service writes about these files."""
    listed = list(listed)
    names, sizes = [each.location for each in listed], [each.size_bytes for each in listed]
    times = [each.modified_ms for each in listed]
    if kind == "parquet":
        path = folder / "inventory.parquet"
        stamps = pa.array(times, pa.timestamp("ms", "UTC"))
        pq.write_table(pa.table({"path": names, "size": sizes, "last_modified": stamps, "etag": names}), path)
        return path
    path = folder / "inventory.csv"
    lines = [f"{name},{size},{time}" for name, size, time in zip(names, sizes, times, strict=True)]
    path.write_text("\n".join(["path,size,time", *lines]) + "\n")
    return path
