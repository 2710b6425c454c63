"""Row groups built from pages of other row groups. Pages are copied, or their columns are encoded again.

- `column_plan`: the choice for each column of a row group: made of pages of older ones, or encoded again
- `page_lineage`: the columns of the row lineage of a new row group: stored pages are copied, missing values are made
- `page_copy`: large row groups made of the stored pages of small ones
- `reencode`: columns whose pages cannot be copied, encoded again by pyarrow; the caller sets pyarrow's memory pool
"""
