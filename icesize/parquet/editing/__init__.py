"""Row groups made of the pages of others: copied, cut, renumbered or encoded again.

- `column_plan`: which columns of a row group can be made of the pages of older ones, by what that costs; others are
  encoded again
- `dictionaries`: one dictionary with the entries of several, for chunks that each have one of their own
- `page_changes`: the columns of a row group that change: pages get indices under another dictionary or lose deleted
  rows, or the column is encoded again
- `page_copy`: large row groups made of the pages of small ones, as they are stored: nothing is decoded but columns
  whose dictionaries differ and cannot be united
- `reencode`: columns whose pages cannot be copied, encoded again by pyarrow; the caller sets pyarrow's memory pool
"""
