"""The data files of a table: their settings, names, partitions and metrics.

- `data_file`: facts of data files that are written but not yet visible: the values of an Iceberg manifest entry, and
  the older files that a merge replaces
- `defaults`: default values of columns, for rows that were written without a column
- `metrics`: Iceberg column metrics of a finished Parquet file, from its footer and the rows written, or from the older
  files whose bytes it contains
- `names`: names and locations of data files
- `new_files`: the files of one writer, in any process: they are closed and removed when their work fails
- `partitioning`: rows -> partitions, with the results of Iceberg's transforms
- `properties`: the table properties for Parquet files, `write.parquet.*`, as arguments of pyarrow's writer; tables that
  icesize's Parquet files cannot serve are refused by name before anything is written
- `lineage_fields`: the columns in which a file of format v3 stores the lineage of its rows
- `row_map`: the places of a merge's rows, from input files to new ones
- `settings`: everything that a worker needs to write files of a table, as plain values that pickle; with the sizes at
  which the handling of files changes
- `uncommitted`: the owner of a run's files that no snapshot lists yet: files that are not in the table at the end of
  the run are removed
"""
