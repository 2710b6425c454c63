"""What a data file of a table is: its settings, its name, its partition, its metrics.

- `carried_over_metrics`: Iceberg metrics of a file that was made by copying bytes: what is known of the older files
  holds for it as well
- `data_file`: A data file that was written and is not yet visible: what an Iceberg manifest entry needs to know of it
- `metrics`: Iceberg column metrics of a finished Parquet file, from its footer and the rows written
- `merge_result`: what became of files that were to be merged: new ones, or why there are none
- `names`: what data files are called and where they lie
- `partitioning`: rows -> partitions, with every transform computed as Iceberg computes it
- `properties`: what a table asks of its files: `write.parquet.*`, parsed once into what pyarrow's writer takes; tables
  that our Parquet files cannot serve are refused by name before anything is written
- `settings`: everything a worker needs to write files of a table, as plain values that pickle; with the sizes from
  which on files are handled in another way
- `storage`: files as the table's FileIO sees them, with a short cut for local paths
- `uncommitted`: files that no snapshot lists yet do not outlive the work that wrote them
"""
