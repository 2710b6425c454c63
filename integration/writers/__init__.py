"""Files by many Parquet writers, merged in pairs and mixed by every path, and read back by every reader.

- `cases`: a seed -> the input files of one merge, its deletes and its path; seeds aim at all cells of the table in turn
- `rows`: rows of one schema that holds every type and nesting
- `pool`: files of each writer, made once for a run by the program that has it, and the files that are checked in
- `write_files`: the program that each of those Pythons runs; it imports nothing of this project
- `go`: the same for iceberg-go, built when it is missing
- `ways`: how the bytes of a file may move into a merged one, and how they did
- `merging`: runs one case and compares the rows
- `in_spark`: parquet-mr as a writer, and Spark as a reader of many merged files in one session
- `__main__`: `python -m integration.writers --seconds 60 [--first-seed S] [--writers pyarrow,duckdb] [--table]`
"""
