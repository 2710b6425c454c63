"""Manifests and their entries, read and written.

- `avro_container`: Avro container files: a header, then blocks of encoded records
- `avro_values`: Avro values out of bytes and into bytes: one function per schema, made once
- `delete_index`: which data files have deletes pending: position deletes, equality deletes and deletion vectors of a
  snapshot
- `entries`: manifest entries as bytes that another manifest can take over, with what decides where they go
- `facts`: facts of the files that one manifest lists, as columns: read for planning, conflict checks and cleanup
- `lists`: manifest lists: which manifests a snapshot has
- `packing`: many small manifests into few: which ones are worth it, and their entries in the order of their
  partitions
- `partition_values`: values of partition fields: as manifests store them, as Iceberg prints them, and as callers name
  them
- `repeated_files`: files that a table lists more than once: none of them may go while another listing of it stays
- `store`: what manifests say, each read once, in bounded memory, for all readers of a table
- `writer`: manifests and manifest lists, written without decoding what is only kept; partition values that were encoded
  before a column was promoted are brought to how they are encoded today
"""
