"""`icesize demo`: a table that fills with small files, their cost, and how icesize removes them.

- `accounts`: changes of accounts for the story of upserts, and the rows that they leave
- `driver`: runs the driver of the stream as a process of its own, which can be killed and leaves no process behind
- `events`: events for the demo: each batch has a newest hour, and late rows for the hours before it
- `lake`: the lake of the demo: an embedded SQLite catalog with a warehouse beside it
- `run`: the demo from start to end, one step after the other
- `story`: the options of the demo, and how its steps and figures are printed
- `stream`: the process of that driver: a streaming query through icesize
- `upserts`: the story of upserts: changes of accounts, without Spark
"""
