"""Files as such: listed, deleted, and whether something refers to them.

- `bulk_delete`: deletes many files at once: a few at a time, each failure counted, the others going on
- `identity`: local files that are one and the same under several names, by links or mounts
- `listing`: what lies in storage below a table's location, as the table's own FileIO reaches it, unfinished uploads
  too
- `ownership`: whether a location belongs to one table alone, as far as storage can tell
- `reachable`: which files a state of the table refers to: through every snapshot, not only the newest
"""
