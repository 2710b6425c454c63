"""Compares Parquet files with everything that they say about themselves; `python -m icesize.parquet.verify FILE...`.

- `chunk`: one column chunk, read and compared with everything that its file says about it: metadata, statistics, page
  indexes, bloom filter
- `file`: reads a Parquet file completely and compares what it says about itself with what it has
- `values`: the values of a Parquet file as they are stored, read by pyarrow without what they mean
"""
