"""The one way to the bytes of a table: local files, object stores, and PyIceberg's FileIO for every other storage.

- `credentials`: credentials of object stores, which are renewed before they expire
- `file_io_store`: other storage and other settings through PyIceberg's FileIO, with the filesystem behind it
- `kept_files`: the newest metadata files that this process has read from object stores, or written there
- `local_store`: files on local disks
- `locations`: locations of files as strings: one spelling for comparisons, and tests for nested locations
- `object_store`: S3, Google Cloud Storage and Azure through `obstore`
- `store_errors`: errors of object stores in one sentence, with the setting to change
- `store_settings`: the settings of an object store's client, from PyIceberg's properties
- `stores`: the verbs by which icesize reaches a store
- `table_storage`: the storage of a table, which is a FileIO for PyIceberg as well
"""
