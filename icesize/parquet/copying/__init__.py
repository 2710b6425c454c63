"""Merging by moving compressed bytes, without decoding them.

- `assembly`: A Parquet file that is put together from row groups made elsewhere
- `changed_columns`: what is made of the columns of a row group that do not stay as they are, before they are written
- `column_plan`: which columns of a row group can be made of the pages of older ones, and which have to be encoded
  again
- `compatibility`: which files and column chunks may be copied, and which files may lie in one
- `copy_merge`: merging by moving compressed bytes, wherever that is possible and pays
- `costs`: what merging row groups costs, by how each column moves
- `decoded_rows`: rows of input files that cannot be copied, encoded so that they can be copied into a file with the
  others
- `dictionaries`: one dictionary with the entries of several, for chunks that each have one of their own
- `output_file`: one output of a merge that copies: row groups of older files, whole or of their pages, and rows that
  were decoded; and its Iceberg counts and sizes
- `page_changes`: the pages of a chunk that change without being decoded as a column: indices under another dictionary,
  and pages of which rows are deleted
- `page_copy`: large row groups made of the pages of small ones, as they are stored: nothing is decoded but columns
  whose dictionaries differ and cannot be united
- `reencode`: columns whose pages cannot be copied, encoded again by pyarrow; the caller sets pyarrow's memory pool
- `row_groups`: row groups copied whole: their bytes as they are, and every offset moved to where the bytes lie now
- `strategy`: which way the bytes of each input file go: whole row groups, single pages, or decoded
"""
