"""The rows of a batch by its new files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from icesize.parquet.files.data_file import NewDataFile
from icesize.parquet.files.partitioning import arrange_by_partition, source_columns
from icesize.parquet.files.settings import WriteSettings, pruned
from icesize.parquet.keys.codes import Places
from icesize.parquet.reading.projection import ColumnAligner
from icesize.planning.files import PartitionKey

_PLACE = "place"


def places_by_file(
    rows: pa.Table, files: Sequence[NewDataFile], settings: WriteSettings
) -> Iterator[tuple[NewDataFile, Places]]:
    """Yield the places of the rows of each file, in their order in the file, if that is certain.

    It is if the rows of each partition were written in their order, and into one file. The rows of a table with a sort
    order have another order.
    """
    if settings.sort_order_json:
        return
    of_partition = _places_by_partition(rows, settings)
    files_of = Counter(file.partition for file in files)
    for file in files:
        places = of_partition.get(file.partition)
        if places is not None and files_of[file.partition] == 1 and file.rows == len(places):
            yield file, places


def _places_by_partition(rows: pa.Table, settings: WriteSettings) -> dict[PartitionKey, Places]:
    names = source_columns(settings.spec, settings.schema)
    if not names:
        nothing = (None,) * len(settings.spec.fields)
        return {PartitionKey.of(settings.spec_id, nothing): np.arange(rows.num_rows)}
    of_sources = pruned(settings, names)
    aligned = ColumnAligner(of_sources)(rows.select(names)).append_column(_PLACE, pa.array(np.arange(rows.num_rows)))
    arranged, ranges = arrange_by_partition(aligned, of_sources)
    places, found, start = arranged.column(aligned.num_columns - 1).to_numpy(), dict[PartitionKey, Places](), 0
    for key, count in ranges:
        found[key] = places[start : start + count]
        start += count
    return found
