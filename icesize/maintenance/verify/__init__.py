"""Verification: what metadata, storage and files must agree on, and the repair of what does not.

- `verification`: verifies that the metadata of a table agree with each other and with the storage
- `rules`: what a finding of a rule means, what to do about it, and which repair concerns it
- `metadata_rules`: rules that the metadata of the newest snapshot keep
- `data_files`: whether files hold what the manifests and their own footers say of them; row ids of live rows
- `storage`: whether every file that a snapshot names is in storage with its size: from one listing
- `v3_rules`: rules for tables of format v3: row ids, deletion vectors, no new position delete files
- `repair`: repairs what a verification finds and what is certain, one commit of metadata for each kind
- `checkup`: checks whether icesize can work on a table: whether it can load it, and read, write and delete files
"""
