"""Row groups made of the pages of others: copied, cut, renumbered or encoded again.

- `changed_columns`: what is made of the columns of a row group that do not stay as they are, before they are written
- `column_plan`: which columns of a row group can be made of the pages of older ones, and which have to be encoded
  again
- `costs`: what merging row groups costs, by how each column moves
- `dictionaries`: one dictionary with the entries of several, for chunks that each have one of their own
- `page_changes`: the pages of a chunk that change without being decoded as a column: indices under another dictionary,
  and pages of which rows are deleted
- `page_copy`: large row groups made of the pages of small ones, as they are stored: nothing is decoded but columns
  whose dictionaries differ and cannot be united
- `reencode`: columns whose pages cannot be copied, encoded again by pyarrow; the caller sets pyarrow's memory pool
"""
