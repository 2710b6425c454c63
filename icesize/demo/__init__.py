"""`icesize demo`: a stream with and without icesize, next to each other.

- `events`: events for the demo: each batch has a newest hour, and rows that come late for the hours before it
- `lake`: the lake of the demo: an embedded SQLite catalog, a warehouse beside it, and what its tables came to
- `run`: the demo from start to end: make events, stream or append them, compare, and say what to try next
- `stream`: the driver of one streaming query of the demo, a process of its own so that it can be killed
"""
