"""Row groups built from pages of other row groups. Pages are copied or cut, or their columns are encoded again.

- `column_plan`: a cost-based choice: the columns of a row group that can consist of pages of older ones, and the
  columns that are encoded again
- `lineage`: the columns of the row lineage of a new row group: stored pages are copied, missing values are made
- `page_changes`: the columns of a row group that change: pages lose deleted rows, or the column is encoded again
- `page_copy`: large row groups made of the stored pages of small ones: only columns whose dictionaries differ are
  decoded
- `ramps`: pages of integers that rise evenly, or not at all, written without the values themselves
- `reencode`: columns whose pages cannot be copied, encoded again by pyarrow; the caller sets pyarrow's memory pool
"""
