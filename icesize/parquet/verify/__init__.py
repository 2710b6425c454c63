"""Compares Parquet files with everything that they say about themselves; `python -m icesize.parquet.verify FILE...`.

- `bloom`: whether a column chunk's bloom filter can be read and has all values
- `bounds`: whether bounds and counts that a file gives for some of its values are true of them
- `chunk`: one column chunk, read and compared with everything that its file says about it
- `file`: reads a Parquet file completely and compares what it says about itself with what it has
- `pages`: whether a column chunk's metadata and page indexes are true of its pages
- `values`: the values of a Parquet file as they are stored, read by pyarrow without what they mean
"""
