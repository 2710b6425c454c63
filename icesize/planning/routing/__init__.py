"""How the bytes of a batch are divided over tasks: pure.

- `bin_packing`: files that need care in placing, on tasks: a bin packing whose items may be cut
- `expected_rows`: how many rows each partition will get in the next batch, learned from what the last batches wrote
- `parallelism`: how many tasks write a batch, and how many merge beside them, so that both end at one time
- `range_bounds`: ranges of a sort column: where the rows of a split partition are cut, so that each task gets its
  share of them
- `router`: which tasks write which partitions of a batch, and how much of each
- `row_sizes`: bytes of files from their rows: size = files x overhead + rows x bytes per row, learned from what
  batches wrote
"""
