"""Groups of rows that belong together, and the files that are worth clustering. No I/O.

- `depth`: how many files of a table a query on one column opens, exactly, from the bounds that readers see
- `planner`: layout + files with bounds + ClusterBy -> Plan: which files are clustered now, and why the others are not
- `sets`: the files of one partition as sets: what is in order already, what is new, and whether it is worth to join
  them
"""
