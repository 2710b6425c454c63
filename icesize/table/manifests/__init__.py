"""Manifests and their entries, read and written.

- `avro_container`: Avro container files: a header, then blocks of encoded records
- `avro_values`: functions that decode and encode Avro values, one per schema, built once
- `delete_index`: the delete files of a snapshot, by the partitions whose data files they may apply to
- `entries`: manifest entries as bytes that can be copied into another manifest, with the fields that planning needs
- `file_columns`: facts of the files that one manifest lists, as columns: read for planning, conflict checks and cleanup
- `live_arrays`: the live files of manifests by partition, as arrays, and the difference of two sets of manifests
- `manifest_lists`: manifest lists: the manifests of a snapshot, read and written
- `packing`: packing of entries into manifests: of those that a commit writes, and of those of small manifests
- `repeated_files`: files that a table lists more than once: icesize removes none of them while another listing stays
- `spill`: columns of manifests on the local disk, so that another process need not read the manifests again
- `store`: cache of manifest facts for all readers of a table, in bounded memory; each manifest is read once
- `writer`: manifests, written without decoding kept entries; partition values from before a
  promotion of their column are encoded again in its current type
"""
