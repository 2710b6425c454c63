"""Lossless access to the Parquet file format.

- `fields`: the structs of parquet.thrift that icesize reads or writes: field ids by name, types where offsets are
- `footer`: A Parquet footer, read so that it can be written again: what holds offsets is parsed, all else kept as it
  is
- `hybrid`: indices into a dictionary and levels as pages hold them, in runs and bit-packed, and indices counted anew
- `levels`: what the levels of a column in lists or maps say, held against the footer: of rows, and of values at each
  level
- `page_body`: the body of a data page taken apart, levels from values, and put together again with others
- `page_index`: page indexes: where the pages of a column chunk lie and between which bounds their values are, moved
  and joined
- `page_values`: the values of one page where some of them go: those that stay, as they are stored, and how far the
  others reach
- `pages`: the pages of a column chunk, found by their headers and checked without being decoded
- `refusals`: why bytes of a file are not copied but decoded, one code per reason
- `schema`: the schema in a Parquet footer: elements that compare equal when they mean the same, and the columns they
  make
- `sources`: where bytes of older files are read from: a file on this machine, or bytes in memory
- `statistics`: statistics of a column chunk that is made of the pages of several: from theirs, never from the values
- `thrift`: Thrift's compact protocol, read and written without loss: structs, and values of single fields
"""
