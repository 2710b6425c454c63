"""Upserts: the rows that a batch replaces, in each state of the table that its commit is tried on.

- `settings`: the rule that a table stores
- `conditions`: the condition for deletes, for Arrow and Spark
- `resolver`: the live rows of a batch's keys
- `state_files`: the files of a state: bounds, deletes that apply, deleted rows
- `late_events`: which events of a batch are late
- `changes`: the files of a batch for each state that its commit is tried on
- `deletes`: the delete files among them
- `tombstones`: deletes that are remembered, so that older events do not bring rows back
- `duplicate_rows`: rows whose key another row also has
- `batch`: a batch: fetch the events, resolve them, write, merge
- `arrow_events`: the rows of an Arrow table as events of a batch
- `newest_events`: one event per key
- `lookup`: positions of keys, and values at positions
- `maps`: the same from maps of keys, one for each data file
- `index_files`: the local directory of the maps
"""
