"""The newest committed micro-batch of each stream: one small entry per stream and branch, kept as a table property.

A property survives snapshot expiry. An entry names the snapshots that carried the newest batches, so that they count on
each branch that has the snapshot (`icesize.table.state.committed_batches`). It changes only together with a snapshot,
in the same commit. Snapshot summaries hold the same entry for users. Spark replays only the newest batch of a
checkpoint, so the rule can be exact. An equal batch id is done, and a greater one is next (empty batches leave gaps). A
smaller one means that the checkpoint was lost or replaced; it is refused, not skipped silently.

If another query has taken over a stream, the one before it is retired. The entry records retired queries, so that two
programs that may both take over cannot alternate: each would forget the progress of the other.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from icesize.errors import BatchError, BatchOutOfOrder, StreamMismatch
from icesize.planning.files import MAIN

PREFIX = "icesize.stream."
VERSION = 1
MOST_RETIRED = 100
"""Most retired queries of one stream that an entry records.

Some catalogs keep at most 4,000 characters in a property, and this number needs less than half.
"""
MOST_EARLIER = 30
"""Most batches before the newest one that an entry records, in a third of these characters."""

Carried = tuple[int, int]
"""The snapshot that carried a batch: its id and its sequence number, 0 in format v1."""
UNKNOWN: Carried = (0, 0)
"""In entries of snapshot summaries. Such a batch counts on `main`."""


@dataclass(frozen=True)
class LedgerEntry:
    """The newest batch of one stream.

    Attributes:
        stream_id: The id of the stream.
        query_id: The id of the query, which Spark keeps in its checkpoint.
        batch_id: The number of the newest committed batch.
        retired: Short hashes of queries that wrote the stream before, newest last.
        branch: The branch that the batch was committed to.
        carried: The snapshot that carried the batch.
        earlier: Earlier batches of the query on this branch, newest last: number, snapshot, sequence number.
    """

    stream_id: str
    query_id: str
    batch_id: int
    retired: tuple[str, ...] = ()
    branch: str = MAIN
    carried: Carried = UNKNOWN
    earlier: tuple[tuple[int, int, int], ...] = ()

    KEYS: ClassVar[Mapping[str, str | None]] = {"carried": None, "earlier": None}

    def __str__(self) -> str:
        where = "" if self.branch == MAIN else f", on branch '{self.branch}'"
        return f"stream '{self.stream_id}', batch {self.batch_id}, of query {self.query_id}{where}"

    @property
    def key(self) -> str:
        """The table property that holds this stream's entry of its branch."""
        of_branch = "" if self.branch == MAIN else f".{stream_hash(self.branch)}"
        return PREFIX + stream_hash(self.stream_id) + of_branch

    def to_json(self) -> str:
        """Return the property's value; `version` lets later releases change the format."""
        retired = {"retired": self.retired} if self.retired else {}
        facts = {"version": VERSION, "stream-id": self.stream_id, "query-id": self.query_id, "batch-id": self.batch_id}
        where = {} if self.branch == MAIN else {"branch": self.branch}
        carried = {} if self.carried == UNKNOWN else {"snapshot": self.carried}
        earlier = {"earlier": self.earlier} if self.earlier else {}
        return json.dumps({**facts, **where, **carried, **earlier, **retired})

    @property
    def alone(self) -> LedgerEntry:
        """The entry without retired queries and snapshots, as in snapshot summaries."""
        return LedgerEntry(self.stream_id, self.query_id, self.batch_id)

    @property
    def batches(self) -> tuple[LedgerEntry, ...]:
        """The entry at each batch that it records, oldest first, and itself as the last one."""
        earlier = (replace(self, batch_id=batch, carried=(s, n), earlier=()) for batch, s, n in self.earlier)
        return (*earlier, self)

    def after(self, last: LedgerEntry | None) -> LedgerEntry:
        """Return the stream's entry once the batch is committed, if `last` is its entry now."""
        if last is None:
            return self
        if last.query_id != self.query_id:
            return replace(self, retired=(*last.retired, stream_hash(last.query_id))[-MOST_RETIRED:])
        newest = last.batch_id, *last.carried
        return replace(self, retired=last.retired, earlier=(*last.earlier, newest)[-MOST_EARLIER:])


def check_names(stream_id: object, batch_id: object) -> None:
    """Raise BatchError for names of a stream or batch that later batches could not be compared with."""
    if not isinstance(stream_id, str) or not stream_id:
        raise BatchError(f"Cannot commit a batch of stream {stream_id!r}: a stream id is text, and not empty")
    if not isinstance(batch_id, int) or isinstance(batch_id, bool) or batch_id < 0:
        raise BatchError(f"Cannot commit batch {batch_id!r}: a batch id is a number from 0 on")


def stream_hash(stream_id: str) -> str:
    """Return twelve hexadecimal digits that identify a stream id in property keys and file names."""
    # an id may contain half a surrogate pair, which strict UTF-8 cannot encode
    return hashlib.sha256(stream_id.encode(errors="surrogatepass")).hexdigest()[:12]


def parse(value: str) -> LedgerEntry:
    """Return the entry of a property value. Raises BatchError for one that this release cannot read."""
    try:
        data = json.loads(value)
        if data["version"] != VERSION:
            raise ValueError(f"version {data['version']}")
        retired = tuple(map(str, data.get("retired", ())))
        names = str(data["stream-id"]), str(data["query-id"]), int(data["batch-id"])
        snapshot, number = map(int, data.get("snapshot", UNKNOWN))
        earlier = tuple((int(b), int(s), int(n)) for b, s, n in data.get("earlier", ()))
        return LedgerEntry(*names, retired, str(data.get("branch", MAIN)), (snapshot, number), earlier)
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise BatchError(
            f"Cannot read the ledger entry {value!r}: {error}; a newer icesize may have written it, "
            "or it was edited by hand (`icesize streams TABLE` shows it)"
        ) from error


def file_prefix(run_id: str, entry: LedgerEntry | None = None) -> str:
    """Return the beginning of the names of files that a run writes: stream and number of its batch, if it has one."""
    return f"{stream_hash(entry.stream_id)}-{entry.batch_id}" if entry else f"{stream_hash(run_id)}-0"


def entries(properties: Mapping[str, str]) -> list[LedgerEntry]:
    """Return the entries of all streams that have committed to a table, by stream id and branch."""
    found = (parse(value) for key, value in properties.items() if key.startswith(PREFIX))
    return sorted(found, key=lambda each: (each.stream_id, each.branch))


def is_done(last: LedgerEntry | None, entry: LedgerEntry, accept_new_checkpoint: bool = False) -> bool:
    """Return True if this batch is committed already, False if it is next. `last` is the stream's newest batch.

    Raises BatchOutOfOrder for a smaller batch id, and StreamMismatch for another query under the same stream id. With
    `accept_new_checkpoint`, the new query may start its own count, once. A query whose id was unknown, so that the
    stream id is in its place, may continue its count under an id, once. A query that has been retired is refused
    anyway.
    """
    if last is None:
        return False
    if last.query_id != entry.query_id:
        if stream_hash(entry.query_id) in last.retired:
            raise _retired(entry, last)
        # sinks without a query id stored the stream id on Spark Connect; a new checkpoint begins with batch 0
        has_no_id = last.query_id == last.stream_id and entry.batch_id > last.batch_id
        if accept_new_checkpoint or has_no_id:
            return False
        raise StreamMismatch(
            f"Cannot commit batch {entry.batch_id} of stream '{entry.stream_id}': query {last.query_id} wrote batch "
            f"{last.batch_id} under this stream id, but this is query {entry.query_id}. {_same_checkpoint(last)}If two "
            "queries share the stream id, give each its own. If the checkpoint is new, its first batches may contain "
            "rows that are already in the table: check the starting offset, then use sink(..., "
            f"accept_new_checkpoint=True) or `icesize streams TABLE --forget {shlex.quote(entry.stream_id)}`",
            stream_id=entry.stream_id,
            last=last,
        )
    if entry.batch_id < last.batch_id:
        raise BatchOutOfOrder(
            f"Cannot commit batch {entry.batch_id} of stream '{entry.stream_id}': batch {last.batch_id} is committed "
            "already. Spark replays only the newest batch, so this is not a replay: the checkpoint was restored from "
            "an older copy or is shared. Start from the newest checkpoint, or from a new one with "
            "accept_new_checkpoint=True",
            stream_id=entry.stream_id,
            last=last,
        )
    return entry.batch_id == last.batch_id


def _same_checkpoint(last: LedgerEntry) -> str:
    """Return how a checkpoint continues that has written without a query id; empty if the last query had one."""
    if last.query_id != last.stream_id:
        return ""
    return f"If this checkpoint wrote batch {last.batch_id} without 'query_id', set query_id='{last.stream_id}'. "


def _retired(entry: LedgerEntry, last: LedgerEntry) -> StreamMismatch:
    return StreamMismatch(
        f"Cannot commit batch {entry.batch_id} of stream '{entry.stream_id}': query {last.query_id} replaced this "
        f"query ({entry.query_id}); running both could commit batches twice. Stop one, or give it its own stream id. "
        "Set accept_new_checkpoint=True in one program only, for its first batch. To continue with this query, first "
        f"run `icesize streams TABLE --forget {shlex.quote(entry.stream_id)}`, which removes the progress of both",
        stream_id=entry.stream_id,
        last=last,
    )
