"""Compares Parquet files with everything that they say about themselves; `python -m icesize.parquet.verify FILE...`.

- `file`: reads a Parquet file completely and compares what it says about itself with what it has: its footer, and each
  column chunk's metadata, statistics, page indexes and bloom filter
- `values`: the values of a Parquet file as they are stored, read by pyarrow without what they mean
"""
