"""`icesize demo`: a table that fills with small files, their cost, and how icesize removes them.

- `accounts`: changes of accounts for the demo of upserts, and the rows that they leave
- `driver`: runs the driver of a stream as a process of its own, which can be killed and leaves no process behind
- `events`: events for the demo: each batch has a newest hour, and late rows for the hours before it
- `explore`: next steps: commands for the demo's tables, and a Python shell with everything set
- `lake`: the lake of the demo: an embedded SQLite catalog with a warehouse beside it, and the state of its tables
- `queries`: the cost of a query for a table's files, measured with real readers
- `run`: the demo from start to end, one step after the other
- `story`: the options of the demos, and how they print their steps and figures
- `stream`: the process of that driver: a streaming query through icesize, or a race with Iceberg's own writer
- `upserts`: the demo of upserts: changes of accounts, and the same changes by `MERGE INTO`
"""
