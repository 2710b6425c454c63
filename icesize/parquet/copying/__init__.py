"""Row groups copied as whole bytes.

- `assembly`: a Parquet file assembled from row groups made elsewhere
- `compatibility`: conditions for copying files and column chunks, and for joining files into one
- `row_groups`: row groups copied whole: unchanged bytes, with every offset moved to the new position
"""
