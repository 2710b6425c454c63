"""Rules for delete files: what they apply to, which are due, which apply to nothing. No I/O.

- `dangling_rule`: the delete files that apply to no data file after a commit
- `delete_plan`: the data files that stay and get fewer delete files instead
- `delete_reach`: the data files that each delete file applies to, and the sequence number of a merged file
"""
