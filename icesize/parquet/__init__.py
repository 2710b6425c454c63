"""Parquet files: the format, the data files of a table, and how icesize reads, writes, copies and verifies them."""
