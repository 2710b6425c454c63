"""Row groups copied as whole bytes.

- `assembly`: a Parquet file assembled from row groups made elsewhere
- `compatibility`: conditions for copying files and column chunks, and for joining files into one
- `footer_lineage`: the columns of the row lineage beside those of the table: set apart in footers, and added to new
  files
- `row_groups`: row groups copied whole: unchanged bytes, with every offset moved to the new position
"""
