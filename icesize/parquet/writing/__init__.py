"""Rows into data files of the wanted size.

- `encoding`: how the columns of a file are encoded, and how many bytes rows take then, judged from rows in hand
- `file_writer`: one Parquet file while it is being written
- `filling`: which rows of a partition go into which of its files, and which wait until it is known how many there are;
  how files are closed: where that takes round trips, several at a time
- `row_writer`: rows of one task, divided by partition -> Parquet files of the target size
- `sorted_files`: rows that are in order already, cut into files of about equal size
- `spill`: rows that wait on local disk until the rest of their partition is there
"""
