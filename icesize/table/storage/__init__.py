"""Files in storage: listing, deletion, and the tables that refer to them.

- `bulk_delete`: deletes many files, a few at a time; counts each failure and continues, and loads the table again
  before each group: files that it needs by then stay
- `identity`: detects local files that are the same under several names, by links or mounts
- `inventory`: listings that a storage service wrote to files, such as those of S3 Inventory
- `listing`: lists the files below a table's location, and reads the clock of their storage
- `reachable`: collects the files that a state of the table refers to, through every snapshot
- `shared_location`: checks in storage that a location belongs to one table only
"""
