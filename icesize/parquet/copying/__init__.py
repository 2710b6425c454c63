"""Row groups copied as whole bytes.

- `assembly`: A Parquet file that is put together from row groups made elsewhere
- `compatibility`: which files and column chunks may be copied, and which files may lie in one
- `row_groups`: row groups copied whole: their bytes as they are, and every offset moved to where the bytes lie now
"""
