"""Lossless access to the Parquet file format.

- `fields`: the structs of parquet.thrift that icesize reads or writes: field ids by name, and field types if a struct
  has offsets
- `footer`: a Parquet footer that icesize can write again: fields with offsets are parsed, all other bytes are kept
- `levels`: the repetition and definition levels of data pages, and a check of them against the footer
- `page_index`: page indexes: positions of a column chunk's pages and bounds of their values, moved and joined
- `pages`: the pages of a column chunk, found by their headers and checked without being decoded
- `refusals`: reasons why bytes of a file are decoded instead of copied, one code per reason
- `schema`: the schema in a Parquet footer: elements that compare equal if they mean the same, and the columns they form
- `sources`: sources of the bytes of older files: a file on this machine, or bytes in memory
- `statistics`: statistics of a column chunk that consists of pages of several chunks, from their statistics, never from
  values
- `thrift`: Thrift's compact protocol, read and written without loss: structs, and values of single fields
"""
