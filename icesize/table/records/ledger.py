"""The newest committed micro-batch of each stream: one small entry per stream, kept as a table property.

A property survives snapshot expiry. It changes only together with a snapshot, in the same commit. Snapshot summaries
hold the same entry for users. Spark replays only the newest batch of a checkpoint, so the rule can be exact. An equal
batch id is done, and a greater one is next (empty batches leave gaps). A smaller one means that the checkpoint was lost
or replaced; it is refused, not skipped silently.

If another query has taken over a stream, the one before it is retired. The entry records retired queries, so that two
programs that may both take over cannot alternate: each would forget the progress of the other.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace

from icesize.errors import BatchError, BatchOutOfOrder, StreamMismatch

PREFIX = "icesize.stream."
VERSION = 1
MOST_RETIRED = 100
"""Most retired queries of one stream that an entry records.

Some catalogs keep at most 4,000 characters in a property, and this number needs less than half.
"""


@dataclass(frozen=True)
class LedgerEntry:
    """The newest batch of one stream.

    Attributes:
        stream_id: The id of the stream.
        query_id: The id of the query, which Spark keeps in its checkpoint.
        batch_id: The number of the newest committed batch.
        retired: Short hashes of queries that wrote the stream before, newest last.
    """

    stream_id: str
    query_id: str
    batch_id: int
    retired: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"stream '{self.stream_id}', batch {self.batch_id}, of query {self.query_id}"

    @property
    def key(self) -> str:
        """The table property that holds this stream's entry."""
        return PREFIX + stream_hash(self.stream_id)

    def to_json(self) -> str:
        """Return the property's value; `version` lets later releases change the format."""
        retired = {"retired": self.retired} if self.retired else {}
        facts = {"version": VERSION, "stream-id": self.stream_id, "query-id": self.query_id, "batch-id": self.batch_id}
        return json.dumps({**facts, **retired})

    @property
    def alone(self) -> LedgerEntry:
        """The entry without retired queries, as in snapshot summaries."""
        return replace(self, retired=())

    def after(self, properties: Mapping[str, str]) -> LedgerEntry:
        """Return this stream's entry in a table of these properties once the batch is committed."""
        value = properties.get(self.key)
        if value is None:
            return self
        last = parse(value)
        gone = last.retired if last.query_id == self.query_id else (*last.retired, stream_hash(last.query_id))
        return replace(self, retired=gone[-MOST_RETIRED:])


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
        return LedgerEntry(str(data["stream-id"]), str(data["query-id"]), int(data["batch-id"]), retired)
    except (ValueError, KeyError, TypeError) as error:
        raise BatchError(
            f"Cannot read the ledger entry {value!r}: {error}; a newer icesize may have written it, "
            "or it was edited by hand (`icesize streams TABLE` shows it)"
        ) from error


def file_prefix(run_id: str, entry: LedgerEntry | None = None) -> str:
    """Return the beginning of the names of files that a run writes: stream and number of its batch, if it has one."""
    return f"{stream_hash(entry.stream_id)}-{entry.batch_id}" if entry else f"{stream_hash(run_id)}-0"


def entries(properties: Mapping[str, str]) -> list[LedgerEntry]:
    """Return the entries of all streams that have committed to a table, by stream id."""
    return sorted((parse(v) for k, v in properties.items() if k.startswith(PREFIX)), key=lambda e: e.stream_id)


def is_done(properties: Mapping[str, str], entry: LedgerEntry, accept_new_checkpoint: bool = False) -> bool:
    """Return True if this batch is committed already, False if it is next.

    Raises BatchOutOfOrder for a smaller batch id, and StreamMismatch for another query under the same stream id. With
    `accept_new_checkpoint`, the new query may start its own count, once. A query whose id was unknown, so that the
    stream id is in its place, may continue its count under an id, once. A query that has been retired is refused
    anyway.
    """
    value = properties.get(entry.key)
    if value is None:
        return False
    last = parse(value)
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
