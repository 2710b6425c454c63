"""The batches of streams that a branch has, by the ledger and by the snapshots of the branch.

A batch counts on a branch whose history contains the snapshot that carried it, or a copy of that snapshot (a
cherry-pick). So it counts on `main` once it is published, and nowhere once its branch is thrown away. If the history
that would show it has expired, it counts on the branch that it was committed to.

On `main`, its own batches stay committed after a rollback, which reports mention.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from functools import cached_property

from pyiceberg.table.metadata import TableMetadata

from icesize.errors import BatchOutOfOrder
from icesize.planning.files import MAIN
from icesize.table.catalog.history import age_of, known_ancestors, summary_of
from icesize.table.records.ledger import MOST_EARLIER, PREFIX, Carried, LedgerEntry, is_done, parse, stream_hash

SOURCE_ID = "source-snapshot-id"
"""Summary key of a cherry-picked snapshot: the id of the one that it is a copy of."""


def is_committed(metadata: TableMetadata, branch: str, entry: LedgerEntry, accept_new_checkpoint: bool = False) -> bool:
    """Return True if a batch is in a branch already, False if it is next.

    Raises what `ledger.is_done` raises, and BatchOutOfOrder if batches between the branch's newest one and this one
    were thrown away, or if the table does not show any more whether it has this batch. With `accept_new_checkpoint`,
    such a batch is next.
    """
    streams = _Streams(metadata, branch, entry.stream_id)
    last = streams.newest
    if is_done(last, entry, accept_new_checkpoint):
        return True
    if not accept_new_checkpoint and (why := streams.why_not_next(entry, last)):
        forget = f"icesize streams TABLE --forget {shlex.quote(entry.stream_id)}"
        raise BatchOutOfOrder(
            f"Cannot commit batch {entry.batch_id} of stream '{entry.stream_id}' to branch '{branch}': {why}. To "
            "deliver these rows, start from an older checkpoint. To go on without them, use sink(..., "
            f"accept_new_checkpoint=True) for one batch, or `{forget}`",
            stream_id=entry.stream_id,
            last=last,
        )
    return False


def noted(metadata: TableMetadata, branch: str, entry: LedgerEntry, carried: Carried) -> LedgerEntry:
    """Return the entry to store with a batch that a snapshot carries to a branch."""
    new = LedgerEntry(entry.stream_id, entry.query_id, entry.batch_id, branch=branch, carried=carried)
    streams = _Streams(metadata, branch, entry.stream_id)
    return new.after(streams.own or streams.newest)


class _Streams:
    """The entries of one stream, and what a branch has of them."""

    def __init__(self, metadata: TableMetadata, branch: str, stream_id: str) -> None:
        self._metadata, self._branch = metadata, branch
        # entries of other streams may be those of a later release
        prefix = PREFIX + stream_hash(stream_id)
        self._entries = [parse(value) for key, value in metadata.properties.items() if key.startswith(prefix)]
        self.own = next((each for each in self._entries if each.branch == branch), None)

    @property
    def newest(self) -> LedgerEntry | None:
        """The newest batch that counts on the branch; None without one."""
        own, shown = self.own, self._shown
        if own is not None and own.branch == MAIN:
            is_older = shown is not None and shown.branch != MAIN and shown.carried[1] >= own.carried[1]
            return shown if is_older else own
        if shown is not None or own is None:
            return shown
        return next((each for each in reversed(own.batches) if not self._is_out(each)), None)

    def why_not_next(self, entry: LedgerEntry, last: LedgerEntry | None) -> str:
        """Return why a batch must not follow the newest one that counts; empty if it may."""
        newest = last.batch_id if last and last.query_id == entry.query_id else -1
        others = [each for each in self._batches if each.query_id == entry.query_id and each.batch_id > newest]
        lost = sorted(each.batch_id for each in others if each.batch_id < entry.batch_id and self._is_out(each))
        if lost:
            return (
                f"its history lacks batches {lost[0]} to {lost[-1]}, which the checkpoint is past: they were committed "
                "to a branch that was dropped or rolled back, or that is not published"
            )
        later = [each for each in others if each.batch_id >= entry.batch_id]
        is_cut = self.own is not None and len(self.own.earlier) == MOST_EARLIER
        forgotten = is_cut and not any(each.batch_id == entry.batch_id for each in later)
        if any(not self._is_out(each) for each in later) or (later and forgotten):
            return f"later batches, up to {later[-1].batch_id}, are known, and not whether the branch has this one"
        return ""

    @property
    def _batches(self) -> Sequence[LedgerEntry]:
        return [batch for each in self._entries for batch in each.batches]

    @cached_property
    def _shown(self) -> LedgerEntry | None:
        """The newest batch that the known history of the branch has."""
        carried = {each.carried[0]: each for each in self._batches}
        return next((carried[number] for number in self._line() if number in carried), None) if carried else None

    def _line(self) -> Iterator[int]:
        for snapshot in known_ancestors(self._metadata, self._branch):
            yield snapshot.snapshot_id
            source = summary_of(snapshot, SOURCE_ID) or ""
            yield from [int(source)] if source.isdigit() else []

    @cached_property
    def _known(self) -> tuple[set[int], tuple[int, int]]:
        """The known history of the branch, and the age of its oldest snapshot."""
        ages = [age_of(snapshot) for snapshot in known_ancestors(self._metadata, self._branch)]
        return set(self._line()), min(ages, default=(0, 0))

    def _is_out(self, batch: LedgerEntry) -> bool:
        """Return True if the branch certainly lacks the snapshot that carried a batch."""
        number, sequence_number = batch.carried
        line, oldest = self._known
        known = self._metadata.snapshot_by_id(number)
        age = age_of(known) if known else (sequence_number, 0)
        return number not in line and age > oldest
