"""The demo of upserts: changes of accounts into a table with one row per account, and the same changes by `MERGE`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyiceberg.exceptions import TableAlreadyExistsError
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from icesize.demo.accounts import Accounts, write_file
from icesize.demo.driver import log_of, run_driver
from icesize.demo.lake import ACCOUNTS, NAMESPACE, Lake, written_bytes
from icesize.demo.story import Story, show_columns
from icesize.errors import TableError
from icesize.units import format_bytes, format_count

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True), NestedField(2, "change", LongType()),
    NestedField(3, "balance", LongType()), NestedField(4, "owner", StringType()),
)  # fmt: skip


def show_upserts(story: Story) -> bool:
    """Upsert batches of changes, and `MERGE` them if there is Iceberg's jar; return True if all rows are right."""
    accounts, wishes = Accounts(story.wishes.rows), story.wishes
    first = accounts.first()
    story.title(
        "A table with one row per account",
        f"icesize upserts {first.num_rows:,} accounts, in this process, without Spark. The table stores the rule:",
        "key 'id', order 'change', and a delete if op = 'd'.",
    )
    _create(story.lake)
    table = story.table(ACCOUNTS)
    table.upsert(first, key="id", order_by="change", delete_when="op = 'd'", except_columns="op")
    write_file(story.lake.changes, 0, first)
    story.title(
        "Changes arrive",
        f"{wishes.streamed} batches of {format_count(wishes.rows, 'event')}: updates, new accounts, deletes, and late",
        "events that are older than the row. Each batch is one commit, with the merges that it makes due.",
    )
    seconds = list[float]()
    for number, events in enumerate(accounts.batches(wishes.streamed), 1):
        began = time.monotonic()
        counts = table.upsert(events, except_columns="op", stream_id="demo", batch_id=number).upsert or {}
        seconds.append(time.monotonic() - began)
        write_file(story.lake.changes, number, events)
        story.say(
            f"  batch {number:>2}  {seconds[-1]:4.2f} s  {counts['updated']:,} updated, {counts['deleted']:,} deleted, "
            f"{counts['late']:,} late"
        )
    _compare(story, seconds, _merged(story) if wishes.iceberg_jar else ())
    return _is_exact(story, accounts)


def _create(lake: Lake) -> None:
    lake.prepare()
    catalog = lake.catalog()
    catalog.create_namespace_if_not_exists(NAMESPACE)
    try:
        catalog.create_table(f"{NAMESPACE}.{ACCOUNTS}", SCHEMA)
    except TableAlreadyExistsError as error:
        raise TableError(
            f"Cannot run the demo in '{lake.directory}': it holds the tables of a demo already; choose another "
            "directory (--path)"
        ) from error


def _merged(story: Story) -> Sequence[Mapping[str, Any]]:
    """Run the same changes through `MERGE INTO` in Spark; return what its driver printed."""
    story.title("The same changes by MERGE INTO", "Spark writes the accounts, then runs one MERGE per batch.")
    story.say(f"starting Spark (log: {log_of(story.lake, 'merge')})", "dim")
    batches = list[Mapping[str, Any]]()

    def show(batch: Mapping[str, Any]) -> None:
        batches.append(batch)
        story.say(f"  batch {batch['batch']:>2}  {batch['seconds']:4.2f} s")

    run_driver(story.lake, "merge", show, story.wishes.iceberg_jar or "")
    return batches


def _compare(story: Story, seconds: Sequence[float], merged: Sequence[Mapping[str, Any]]) -> None:
    table = story.lake.load(ACCOUNTS)
    files = table.inspect.files().column("content").to_pylist()
    last = merged[-1] if merged else {}
    story.title("What the changes cost")
    columns = {
        "": ["icesize", "MERGE INTO"],
        "median of a batch": [f"{statistics.median(each):.2f} s" for each in (seconds, _seconds(merged)) if each],
        "bytes written": [format_bytes(each) for each in (written_bytes(table), last.get("bytes")) if each],
        "data files": [f"{files.count(0):,}", f"{last.get('files', 0):,}"],
        "delete files": [f"{len(files) - files.count(0):,}", f"{last.get('delete_files', 0):,}"],
    }
    sides = 2 if merged else 1
    show_columns(story, {name: row[:sides] for name, row in columns.items()})
    if not merged:
        story.say("icesize demo --upserts --iceberg-jar JAR: the same changes by MERGE INTO, too", "dim")


def _seconds(merged: Sequence[Mapping[str, Any]]) -> list[float]:
    return [batch["seconds"] for batch in merged]


def _is_exact(story: Story, accounts: Accounts) -> bool:
    story.title("Is every account right?", "Each account must be there once, with its newest change.")
    rows: pa.Table = story.lake.load(ACCOUNTS).scan(selected_fields=("id", "change")).to_arrow()
    found = sorted(zip(rows["id"].to_pylist(), rows["change"].to_pylist(), strict=True))
    exact = found == sorted(accounts.newest.items())
    verdict = ("exact", "green") if exact else ("NOT EXACT", "bold red")
    story.say(f"accounts, of {len(accounts.newest):,}   {len(found):,} ({verdict[0]})", verdict[1])
    return exact
