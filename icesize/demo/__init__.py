"""`icesize demo`: a table with small files, their cost, and what icesize does about them.

- `driver`: runs the driver of a stream as a process of its own, which can be killed, and leaves none behind
- `events`: events for the demo: each batch has a newest hour, and rows that come late for the hours before it
- `explore`: what to try next: commands for the tables that stay, and a Python shell with everything set
- `lake`: the lake of the demo: an embedded SQLite catalog, a warehouse beside it, and what its tables came to
- `queries`: what a query pays for a table's files, measured by real readers
- `run`: the demo from start to end, one step after the other
- `stream`: what that process runs: a streaming query through icesize, or a race with Iceberg's own writer
"""
