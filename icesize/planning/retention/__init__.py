"""Selection of snapshots that expire, and of versions that stay readable. No I/O.

- `ancestry`: snapshots and refs of a table as plain values, and the part of its history that `main` went through
- `planner`: snapshots + refs + rules -> Retention: which snapshots stay, each with its reasons, and which may expire
- `version_cover`: the fewest snapshots in which every version of a partition that is due can be read
"""
