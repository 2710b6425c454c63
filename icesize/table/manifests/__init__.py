"""Manifests and their entries, read and written.

- `avro_container`: Avro container files: a header, then blocks of encoded records
- `avro_decode`: Avro values by the schema that they were written with: one function per schema, made once
- `avro_encode`: Avro values into bytes: one function per schema, made once; the counterpart of `avro_decode`
- `delete_index`: which data files have deletes pending: position deletes, equality deletes and deletion vectors of a
  snapshot
- `entries`: manifest entries, read lean: what planning and conflict checks need, plus the encoded bytes to copy
- `lists`: manifest lists, read whole by PyIceberg, or here for what is not known yet
- `packing`: many small manifests into few: which ones are worth it, and their entries in the order of their
  partitions
- `partition_records`: entries whose partition values were encoded before a column was promoted, brought to how they
  are encoded today
- `repeated_files`: files that a table lists more than once: none of them may go while another listing of it stays
- `write`: manifests and manifest lists, written without decoding what is only kept
- `writer`: one stream of data manifests: entries of one encoding in, files and their descriptions out
"""
