"""Row groups built from pages of other row groups. Pages are copied, cut, renumbered or encoded again.

- `column_plan`: a cost-based choice: the columns of a row group that can consist of pages of older ones, and the
  columns that are encoded again
- `dictionaries`: one dictionary with the entries of several, for chunks that each have one of their own
- `lineage`: the columns of the row lineage of a new row group: stored pages are copied, missing values are made
- `page_changes`: the columns of a row group that change: pages get indices into another dictionary or lose deleted
  rows, or the column is encoded again
- `page_copy`: large row groups made of the stored pages of small ones: only columns whose dictionaries differ and
  cannot be united are decoded
- `ramps`: pages of integers that rise evenly, or not at all, written without the values themselves
- `reencode`: columns whose pages cannot be copied, encoded again by pyarrow; the caller sets pyarrow's memory pool
"""
