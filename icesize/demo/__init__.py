"""`icesize demo`: a stream with and without icesize, next to each other.

- `children`: runs the demo's streaming drivers as child processes, shows their batches, and leaves none behind
- `compare`: the two sides of the demo, next to each other, and the commands to go on with
- `events`: events for the demo: each batch has a newest hour, and rows that come late for the hours before it
- `lake`: the lake of the demo: an embedded SQLite catalog, a warehouse beside it, and what its tables came to
- `run`: the demo from start to end: make events, stream or append them, compare, and say what to try next
- `stream`: the driver of one streaming query of the demo, a process of its own so that it can be killed
"""
