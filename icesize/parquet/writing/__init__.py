"""Rows into data files of the wanted size.

- `buffer`: rows that a task holds in memory, divided by partition
- `encoding`: how the columns of a file are encoded, judged from rows in hand
- `file_writer`: one Parquet file while it is being written
- `filling`: which rows of a partition go into which of its files, and which wait until it is known how many there are
- `open_files`: the files that one writer has open, at most one for each partition, and how they are closed: where that
  takes round trips, several at a time
- `row_writer`: rows of one task -> Parquet files of the target size, one partition per file
- `size_estimates`: how many bytes rows take when encoded
- `sorted_files`: rows that are in order already, cut into files of about equal size
- `spill`: rows that wait on local disk until the rest of their partition is there
"""
