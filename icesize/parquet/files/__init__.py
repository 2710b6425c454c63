"""The data files of a table: their settings, names, partitions, metrics.

- `data_file`: data files that were written and are not yet visible: what an Iceberg manifest entry needs to know of
  each, and which older files those of a merge take the place of
- `metrics`: Iceberg column metrics of a finished Parquet file, from its footer and the rows written, or from those of
  the older files whose bytes it has
- `names`: what data files are called and where they lie
- `new_files`: the files of one writer, in whatever process: they are closed and removed when the work on them fails
- `partitioning`: rows -> partitions, with every transform computed as Iceberg computes it
- `properties`: what a table asks of its files: `write.parquet.*`, parsed once into what pyarrow's writer takes; tables
  that our Parquet files cannot serve are refused by name before anything is written
- `settings`: everything a worker needs to write files of a table, as plain values that pickle; with the sizes from
  which on files are handled in another way
- `storage`: files as the table's FileIO sees them, with a short cut for local paths
- `uncommitted`: the owner of a run's files that no snapshot lists yet: when the run is over, those that are not in
  the table go
"""
