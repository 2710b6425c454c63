"""Writers of data files of the target size.

- `encoding`: the encoding of a file's columns, and the bytes that rows need with it, judged from rows in memory
- `file_writer`: one Parquet file while it is being written
- `filling`: assigns rows of a partition to its files, and holds rows until their number is known; closes remote files
  several at a time
- `row_writer`: rows of one task, divided by partition -> Parquet files of the target size
- `sorted_files`: ordered rows, cut into files of about equal size
- `spill`: rows that wait on local disk for the rest of their partition
"""
