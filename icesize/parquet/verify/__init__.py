"""Compares the metadata of Parquet files with their contents; `python -m icesize.parquet.verify FILE...`.

- `entry`: compares the manifest entry of a Parquet file with the values in the file
- `file`: reads a Parquet file completely and compares its metadata with its contents: its footer, and each column
  chunk's metadata, statistics, page indexes and bloom filter
- `values`: the stored values of a Parquet file, read by pyarrow without their logical types
"""
