"""The story of upserts: changes of accounts into a table with one row per account, without Spark."""

from __future__ import annotations

import time

from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from icesize.demo.accounts import Accounts
from icesize.demo.story import Story
from icesize.units import format_count

ACCOUNTS = "accounts"
SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True), NestedField(2, "change", LongType()),
    NestedField(3, "balance", LongType()), NestedField(4, "owner", StringType()),
)  # fmt: skip


def show_upserts(story: Story) -> bool:
    """Upsert batches of changes; return True if each account is there once, with its newest change."""
    wishes, accounts = story.wishes, Accounts(story.wishes.rows)
    first = accounts.first()
    story.title(
        "A table with one row per account",
        f"icesize upserts {first.num_rows:,} accounts, in this process, without Spark. The table stores the rule:",
        "key 'id', order 'change', and a delete if op = 'd'.",
    )
    story.lake.create(ACCOUNTS, SCHEMA, by="", properties={})
    table = story.table(ACCOUNTS)
    table.upsert(first, key="id", order_by="change", delete_when="op = 'd'", except_columns="op")
    story.title(
        "Changes arrive",
        f"{wishes.streamed} batches of {format_count(wishes.rows, 'event')}: updates, new accounts, deletes, and late",
        "events that are older than the row. Each batch is one commit, with the merges that it makes due.",
    )
    for number, events in enumerate(accounts.batches(wishes.streamed), 1):
        began = time.monotonic()
        counts = table.upsert(events, except_columns="op", stream_id="demo", batch_id=number).upsert or {}
        words = ", ".join(f"{counts[word]:,} {word}" for word in ("updated", "deleted", "late"))
        story.say(f"  batch {number:>2}  {time.monotonic() - began:4.2f} s  {words}")
    story.title("Is every account right?", "Each account must be there once, with its newest change.")
    rows = story.lake.load(ACCOUNTS).scan(selected_fields=("id", "change")).to_arrow()
    found = sorted(zip(rows["id"].to_pylist(), rows["change"].to_pylist(), strict=True))
    is_exact = found == sorted(accounts.newest.items())
    return story.counted(f"accounts, of {len(accounts.newest):,}", len(found), is_exact)
