"""Layouts made entry by entry, without a store and without columns: what `LayoutReader` has to find."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from pyiceberg.table import Table

from icesize.planning.files import FileFact, Layout, PartitionKey, SkipReason
from icesize.storage.locations import normalised
from icesize.table.catalog.history import known_ancestors
from icesize.table.manifests.delete_index import DeleteIndex, is_unpartitioned
from icesize.table.manifests.entries import Entry, read_entries
from icesize.table.manifests.file_columns import read_facts
from icesize.table.manifests.manifest_lists import manifests_of
from icesize.table.state.commit_ages import CommitAges
from icesize.table.state.live_files import Obstacles, unfit_specs
from icesize.table.state.naming import Labels

Plain = list[tuple[Any, ...]]


def plain(layout: Layout) -> Plain:
    """Return a layout as values that compare, with partitions of NaN and all facts of each file, ordered by key."""
    rows = [
        (
            *(
                repr(facts.key),
                facts.label,
                facts.files,
                facts.size_bytes,
                facts.rows,
                layout.commits_since(facts.newest),
            ),
            *([_plain_file(file) for file in files] for files in (facts.small, facts.large)),
        )
        for facts in layout.partitions.values()
    ]
    return sorted(rows, key=lambda row: row[0])


def _plain_file(file: FileFact) -> tuple[Any, ...]:
    return tuple(repr(getattr(file, each.name)) for each in dataclasses.fields(FileFact))


def layout_by_entries(table: Table, limit_bytes: int, apply_deletes: bool = True) -> Plain:
    """The layout of the table's newest snapshot, as `plain` has it."""
    metadata, labels = table.metadata, Labels(table.metadata)
    ages, times = CommitAges(metadata), {s.snapshot_id: s.timestamp_ms for s in known_ancestors(metadata)}
    index, unfit = _deletes_of(table), unfit_specs(metadata)
    keys: dict[PartitionKey, list[tuple[Entry, FileFact]]] = {}
    for manifest in manifests_of(metadata.current_snapshot(), table.io, table.metadata.specs()).data:
        own: dict[tuple[object, ...], PartitionKey] = {}
        for entry in read_entries(table.io, manifest):
            values = PartitionKey.of(manifest.partition_spec_id, entry.values).values
            key = own.setdefault(values, PartitionKey(manifest.partition_spec_id, values))
            keys.setdefault(key, []).append((entry, _fact(entry, key, manifest.manifest_path)))
    small = {key: [f for _, f in pairs if f.size_bytes < limit_bytes] for key, pairs in keys.items()}
    large = {
        key: [f for _, f in pairs if f.size_bytes >= limit_bytes]
        for key, pairs in keys.items()
        if index and (key.spec_id in unfit or index.concerns(key))
    }
    twice = _twice([fact for _, fact in pairs] for pairs in keys.values())
    obstacles = Obstacles(unfit, index, twice, apply_deletes)
    found: Plain = []
    for key, pairs in keys.items():
        entries = [entry for entry, _ in pairs]
        numbered = metadata.format_version > 1
        stamps = (e.sequence_number or 0 if numbered else times.get(e.snapshot_id or 0, 0) for e in entries)
        hit = [f for f in obstacles.noted(large.get(key, []), key) if f.delete_files]
        found.append(
            (
                *(repr(key), labels.of(key), len(entries), sum(e.size_bytes for e in entries)),
                *(sum(e.rows for e in entries), ages.since(max(stamps))),
                [_plain_file(file) for file in obstacles.noted(small[key], key)],
                [_plain_file(file) for file in hit],
            )
        )
    return sorted(found, key=lambda row: row[0])


def _twice(files: Iterable[list[FileFact]]) -> frozenset[str]:
    times = Counter(normalised(file.path) for some in files for file in some)
    return frozenset(path for path, count in times.items() if count > 1)


def _fact(entry: Entry, key: PartitionKey, manifest_path: str) -> FileFact:
    reason = None if entry.file_format == "PARQUET" else SkipReason.NOT_PARQUET
    return FileFact(
        entry.path, entry.size_bytes, entry.rows, key, entry.sequence_number or 0,
        SkipReason.ENCRYPTED if entry.encrypted else reason, manifest_path,
        file_sequence_number=entry.file_sequence_number or 0,
    )  # fmt: skip


def _deletes_of(table: Table) -> DeleteIndex:
    by_partition, everywhere = defaultdict(list), []
    for manifest in manifests_of(table.metadata.current_snapshot(), table.io, table.metadata.specs()).deletes:
        is_global = is_unpartitioned(table.metadata.specs()[manifest.partition_spec_id])
        for delete in read_facts(table.io, manifest).deletes():
            (everywhere if is_global and delete.equality_ids else by_partition[delete.partition]).append(delete)
    return DeleteIndex(dict(by_partition), everywhere)
