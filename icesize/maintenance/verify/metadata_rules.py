"""Rules that the metadata of a table keep: those of its newest snapshot agree with each other.

Iceberg's specification defines what has to agree (sections "Snapshots", "Manifests", "Sequence Numbers" and "Deletes").
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np
from pyiceberg.conversions import from_bytes
from pyiceberg.io import FileIO
from pyiceberg.manifest import PartitionFieldSummary
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import NestedField, PrimitiveType, UnknownType

from icesize.maintenance.verify import v3_rules
from icesize.maintenance.verify.rules import (
    BACK_OR_AGAIN,
    DANGLING,
    LISTED_TWICE,
    ROW_IDS,
    Found,
    Kind,
    Rule,
    Severity,
)
from icesize.maintenance.verify.storage import attempt
from icesize.parquet.files.lineage_fields import FIRST_WITH_LINEAGE
from icesize.planning.deletes.dangling_rule import DanglingCandidates
from icesize.planning.deletes.delete_reach import only_path, plain_path
from icesize.planning.files import DeleteFile, PartitionKey
from icesize.planning.upsert_rule import PROPERTY
from icesize.policy import SizePolicy
from icesize.storage.locations import normalised
from icesize.table.catalog.history import head_snapshot, summary_of
from icesize.table.manifests.delete_index import DeleteIndex
from icesize.table.manifests.entries import ADDED, DELETED, EXISTING
from icesize.table.manifests.file_columns import MISSING, ManifestFacts, totals_of
from icesize.table.manifests.manifest_lists import manifests_of
from icesize.table.manifests.repeated_files import listed_twice
from icesize.table.manifests.store import ManifestStore

A = TypeVar("A")
B = TypeVar("B")

_STATUSES = {ADDED: "added", EXISTING: "existing", DELETED: "deleted"}


@dataclass(frozen=True)
class Subject:
    """A snapshot with the facts of its data manifests and of its delete manifests, read from storage again.

    `unreadable` are findings: its manifest list and manifests that are missing or damaged.
    """

    metadata: TableMetadata
    snapshot: Snapshot | None
    data: list[ManifestFacts]
    deletes: list[ManifestFacts]
    store: ManifestStore
    io: FileIO
    unreadable: tuple[Found, ...] = ()

    @classmethod
    def read(cls, metadata: TableMetadata, io: FileIO) -> Subject:
        """Read the manifests of the newest snapshot."""
        # a store of its own, so that nothing is taken from memory
        snapshot, store, unreadable = head_snapshot(metadata), ManifestStore(), list[Found]()

        def found(read: Callable[[A], B], path: str, item: A) -> Iterator[B]:
            result = attempt(read, path, item)
            if isinstance(result, Found):
                unreadable.append(result)
            else:
                yield result

        read_list = partial(manifests_of, io=io, specs=metadata.specs())
        data, deletes = list[ManifestFacts](), list[ManifestFacts]()
        for lists in found(read_list, snapshot.manifest_list, snapshot) if snapshot else ():
            for manifests, facts in zip(lists, (data, deletes), strict=True):
                for manifest in manifests:
                    facts += found(partial(store.facts, io), manifest.manifest_path, manifest)
        return cls(metadata, snapshot, data, deletes, store, io, tuple(unreadable))

    @property
    def all(self) -> list[ManifestFacts]:
        """The facts of all manifests."""
        return [*self.data, *self.deletes]

    @cached_property
    def index(self) -> DeleteIndex:
        """The live delete files."""
        manifests = [facts.manifest for facts in self.deletes]
        return DeleteIndex.of(self.store, self.io, manifests, self.metadata.specs())

    @cached_property
    def delete_files(self) -> list[DeleteFile]:
        """All live delete files, each deletion vector on its own."""
        return [file for some in (*self.index.by_partition.values(), self.index.everywhere) for file in some]


def _manifest_counts(subject: Subject) -> Iterator[tuple[str, str]]:
    """A manifest list counts the files and rows of each manifest correctly, by status."""
    for facts in subject.all:
        columns, manifest = facts.columns, facts.manifest
        for status, name in _STATUSES.items():
            chosen = columns.status == status
            for kind, found in (("files", int(chosen.sum())), ("rows", int(columns.rows[chosen].sum()))):
                listed = getattr(manifest, f"{name}_{kind}_count")
                if listed is not None and listed != found:
                    yield facts.path, f"the manifest list has {listed:,} {name} {kind}, the manifest {found:,}"


def _sequence_numbers(subject: Subject) -> Iterator[tuple[str, str]]:
    """No number is larger than that of what contains it, and only added files inherit one."""
    metadata, snapshot = subject.metadata, subject.snapshot
    if metadata.format_version == 1 or snapshot is None:
        return
    head = snapshot.sequence_number or 0
    if head > metadata.last_sequence_number:
        detail = f"its sequence number is {head}, the last one of the table is {metadata.last_sequence_number}"
        yield snapshot.manifest_list, detail
    for facts in subject.all:
        manifest, live = facts.manifest, facts.live
        if manifest.sequence_number > head:
            yield facts.path, f"its sequence number is {manifest.sequence_number}, that of the snapshot {head}"
        without = (facts.columns.sequence_numbers == MISSING) & (facts.columns.status != ADDED)
        is_v1 = manifest.sequence_number == 0  # readers take the missing numbers of format v1 for 0
        if without.any() and not is_v1:
            yield facts.path, f"{int(without.sum()):,} entries that are not new have no sequence number"
        if live.size and (highest := int(facts.sequence_numbers[live].max())) > manifest.sequence_number:
            yield facts.path, f"a file has the number {highest}, its manifest {manifest.sequence_number}"


def _least_numbers(subject: Subject) -> Iterator[tuple[str, str]]:
    """The manifest list has the lowest sequence number of each manifest, or a lower one."""
    for facts in subject.all if subject.metadata.format_version > 1 else ():
        listed, numbers = facts.manifest.min_sequence_number or 0, facts.sequence_numbers[facts.live]
        if numbers.size and numbers.min() < listed:
            yield facts.path, f"a file has the number {numbers.min()}, below the listed minimum {listed}"


def _specs(subject: Subject) -> Iterator[tuple[str, str]]:
    """The table knows the partition spec of each manifest."""
    for facts in subject.all:
        if facts.manifest.partition_spec_id not in subject.metadata.specs():
            yield facts.path, f"its partition spec {facts.manifest.partition_spec_id} is unknown"


def _partition_values(subject: Subject) -> Iterator[tuple[str, str]]:
    """The partition values of a manifest lie within the bounds in the manifest list; readers skip it by these."""
    for facts in subject.all:
        spec = subject.metadata.specs().get(facts.manifest.partition_spec_id)
        if spec is None:
            continue
        fields = spec.partition_type(subject.metadata.schema()).fields
        live = np.unique(facts.columns.partition[facts.live]).tolist()
        for place, (column, summary) in enumerate(zip(fields, facts.manifest.partitions or (), strict=False)):
            values = {facts.keys[at].values[place] for at in live}
            if (why := _outside(values, column, summary)) is not None:
                yield facts.path, f"partition field '{column.name}': {why}"


def _outside(values: Collection[Any], field: NestedField, summary: PartitionFieldSummary) -> str | None:
    """Return the reason why a reader could miss one of the values; None if it could not."""
    if None in values and not summary.contains_null:
        return "by the manifest list, no value is NULL"
    present = [value for value in values if value is not None]
    if summary.contains_nan is False and any(value != value for value in present):
        return "by the manifest list, no value is NaN"
    ordered = [value for value in present if value == value]
    if not ordered or isinstance(field.field_type, UnknownType) or not isinstance(field.field_type, PrimitiveType):
        return None
    lowest, highest = (
        None if bound is None else from_bytes(field.field_type, bound)
        for bound in (summary.lower_bound, summary.upper_bound)
    )
    if lowest is None or highest is None:
        return "the manifest list has no bounds, although there are values"
    if min(ordered) < lowest:
        return f"{min(ordered)!r} is below the lower bound {lowest!r}"
    if max(ordered) > highest:
        return f"{max(ordered)!r} is above the upper bound {highest!r}"
    return None


def _totals(subject: Subject) -> Iterator[tuple[str, str]]:
    """The summary of the snapshot has the totals of its manifests.

    Sizes are left out: no reader uses their total, and Spark's `add_files` commits a wrong one.
    """
    snapshot = subject.snapshot
    if snapshot is None or subject.unreadable:
        return
    for name, number in totals_of(subject.all).items():
        if name == "total-files-size":
            continue
        listed = summary_of(snapshot, name)
        if listed is not None and listed != str(number):
            yield snapshot.manifest_list, f"'{name}' of the snapshot is {listed}, the manifests have {number}"


def _listed_twice(subject: Subject) -> Iterator[tuple[str, str]]:
    """No file is listed more than once, and no deletion vector."""
    manifests = [facts.manifest for facts in subject.data]
    twice = listed_twice(subject.store.listing(subject.io, manifest) for manifest in manifests)
    times = Counter(map(normalised, subject.store.listed(subject.io, manifests, twice)))
    yield from ((path, f"the table lists it {times[path]} times") for path in sorted(twice))
    deletes = Counter((normalised(delete.path), delete.content_offset) for delete in subject.delete_files)
    yield from ((path, f"the table lists it {count} times") for (path, _), count in deletes.items() if count > 1)


def _deletes_of_others(subject: Subject) -> Iterator[tuple[str, str]]:
    """A position delete file that names one data file has its partition."""
    named = defaultdict[str, list[DeleteFile]](list)
    for delete in subject.delete_files:
        if not delete.equality_ids and (path := only_path(delete)) is not None:
            named[plain_path(path)].append(delete)
    for facts in subject.data if named else ():
        for place, path in zip(facts.columns.partition[facts.live].tolist(), facts.paths(), strict=True):
            partition = facts.keys[place]
            for delete in named.get(plain_path(path), ()):
                # ranks, because NaN among the values equals nothing
                if partition.rank != delete.partition.rank:
                    where = f"{delete.partition.label} of spec {delete.partition.spec_id}"
                    others = f"{partition.label} of {partition.spec_id}"
                    yield delete.path, f"it is in partition {where}, its data file in {others}"


def _dangling(subject: Subject) -> Iterator[tuple[str, str]]:
    """Each delete file may apply to a live data file."""
    if subject.unreadable:
        return
    index, least = subject.index, dict[PartitionKey, int]()
    candidates = DanglingCandidates.of(index.by_partition, index.everywhere, index.by_partition.keys(), {}, {})
    manifests = [facts.manifest for facts in subject.data] if candidates else []
    for manifest in manifests:
        for key, number in subject.store.listing(subject.io, manifest).least_numbers():
            least[key] = min(number, least.get(key, number))
    live = [*subject.store.listed(subject.io, manifests, candidates.asked)]
    for delete_id in sorted(candidates.dangling(least, live), key=str):
        yield delete_id if isinstance(delete_id, str) else delete_id[0], "it applies to no live data file"


def _references(subject: Subject) -> Iterator[tuple[str, str]]:
    """Refs name snapshots that are there, and the snapshot a schema that is there."""
    metadata, snapshot = subject.metadata, subject.snapshot
    known = {each.snapshot_id for each in metadata.snapshots}
    for name, ref in metadata.refs.items():
        if ref.snapshot_id not in known:
            yield metadata.location, f"the ref '{name}' names snapshot {ref.snapshot_id}, which is not there"
    schemas = {schema.schema_id for schema in metadata.schemas}
    if snapshot and snapshot.schema_id is not None and snapshot.schema_id not in schemas:
        yield snapshot.manifest_list, f"the snapshot has schema {snapshot.schema_id}, which is not there"


def _named_once(subject: Subject) -> Iterator[tuple[str, str]]:
    """A manifest list names each manifest once."""
    times = Counter(facts.path for facts in subject.all)
    yield from ((path, f"the manifest list names it {count} times") for path, count in times.items() if count > 1)


def _deletes_of_v1(subject: Subject) -> Iterator[tuple[str, str]]:
    """A table of format v1 has no delete manifests."""
    for facts in subject.deletes if subject.metadata.format_version == 1 else ():
        yield facts.path, "a table of format v1 has a deletes manifest"


def _many_deletes(subject: Subject) -> Iterator[tuple[str, str]]:
    """In a table with upserts, few delete files apply to a data file: `max-delete-files`, but at least two.

    Batches of icesize keep to that in format v2, and other writers may not. Vectors have a rule of their own.
    """
    metadata = subject.metadata
    is_concerned = PROPERTY in metadata.properties and metadata.format_version < FIRST_WITH_LINEAGE
    if subject.unreadable or not is_concerned:
        return
    most = max(2, SizePolicy.resolve(metadata.properties)[0].max_delete_files)
    everywhere = len(subject.index.everywhere)
    for partition, deletes in subject.index.by_partition.items():
        named = Counter(path for delete in deletes if (path := only_path(delete)) is not None)
        [(path, own)] = named.most_common(1) or [("", 0)]
        count = everywhere + len(deletes) - named.total() + own
        if count > most:
            where = path or f"partition {partition.label}"
            yield where, f"{count} delete files may apply to a data file, more than {most} ('max-delete-files')"


_REFERENCES = Rule("references", "Drop the ref, or create it again on a snapshot that is there")
_MANIFEST_LIST = Rule("manifest list", "Run `icesize repair`", Kind.ONCE)
_MANIFEST_COUNTS = Rule(
    "manifest counts", "Run `icesize repair`; until then, readers may skip the manifest", Kind.LISTING
)
_SEQUENCE_NUMBERS = Rule(
    "sequence numbers",
    "Run `icesize repair`, which corrects a listed minimum; roll back if another number is wrong",
    Kind.LISTING,
)
_PARTITION_VALUES = Rule(
    "partition values", "Run `icesize repair`; until then, filters by the partition may miss rows", Kind.LISTING
)
_TOTALS = Rule("totals", "Run `icesize repair`; until then, counts without a filter may be wrong", Kind.LISTING)
_OTHER_PARTITION = Rule("deletes of another partition", "Delete the rows again; the delete file has no effect")
_MANY_DELETES = Rule("many deletes", "Run `icesize compact` or `icesize rewrite-deletes`", severity=Severity.WARNING)
_POSITION_DELETES = Rule("position delete files", "Run `icesize rewrite-deletes`, or `icesize compact`")
_VECTORS = Rule("deletion vectors", BACK_OR_AGAIN)

RULES: tuple[tuple[Rule, Callable[[Subject], Iterator[tuple[str, str]]], bool], ...] = (
    (_REFERENCES, _references, True),
    (_MANIFEST_LIST, _named_once, True),
    (_MANIFEST_LIST, _deletes_of_v1, False),
    (_MANIFEST_COUNTS, _manifest_counts, True),
    (_SEQUENCE_NUMBERS, _sequence_numbers, False),
    (_SEQUENCE_NUMBERS, _least_numbers, True),
    (_PARTITION_VALUES, _specs, False),
    (_PARTITION_VALUES, _partition_values, True),
    (_TOTALS, _totals, True),
    (LISTED_TWICE, _listed_twice, True),
    (_OTHER_PARTITION, _deletes_of_others, True),
    (DANGLING, _dangling, True),
    (_MANY_DELETES, _many_deletes, True),
    (ROW_IDS, lambda subject: v3_rules.row_ids(subject.metadata, subject.data), False),
    (ROW_IDS, lambda subject: v3_rules.of_manifests(subject.snapshot, subject.data), True),
    (_POSITION_DELETES, lambda subject: v3_rules.new_position_deletes(subject.metadata, subject.deletes), True),
    (_VECTORS, lambda subject: v3_rules.vectors(subject.io, subject.delete_files), True),
)
"""Each rule, a function that yields the files that break it with what is wrong, and whether that is certain."""
