"""Division of a batch's bytes among write tasks. No I/O.

- `router`: how many tasks write a batch beside its merges, which of them which partitions, and how much of each
- `row_sizes`: bytes of files from their rows: size = files x overhead + rows x bytes per row, learned from what
  batches wrote
- `traffic`: how many rows each partition will get in the next batch, learned from what recent batches wrote
"""

from icesize.planning.routing.router import route

__all__ = ["route"]
