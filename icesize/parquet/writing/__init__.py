"""Writers of data files of the target size.

The calls for rows of one partition:

    row_writer.write_rows
      row_writer.write  # the columns of the table, in its order
      conservation.add_new  # counts rows and NULLs
      row_writer.close
        partitioning.arrange_by_partition
        encoding.dictionary_columns
        filling.complete  # the number of files, and the bytes of each
          new_files.create  # an uncommitted file
          file_writer.append
          filling.finish
            file_writer.finish
              new_files.finished
              metrics.describe  # the entry of the file, from its footer
      conservation.check  # the files have all rows and NULLs

- `encoding`: the encoding of a file's columns, and the bytes that rows need with it, judged from rows in memory
- `file_writer`: one Parquet file while it is being written
- `filling`: assigns rows of a partition to its files, and holds rows until their number is known; closes remote files
  several at a time
- `row_writer`: rows of one task, divided by partition -> Parquet files of the target size
- `sorted_files`: ordered rows, cut into files of about equal size
- `spill`: rows that wait on local disk for the rest of their partition
"""
