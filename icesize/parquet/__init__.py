"""Parquet files: their format, the data files of a table, and how they are read, written, copied and verified."""
