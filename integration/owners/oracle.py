"""Which files each name of each catalog needs, and how many rows it has; read by PyIceberg, from metadata alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFileContent
from pyiceberg.table import Table


@dataclass(frozen=True)
class Owned:
    """What one name of a catalog needs.

    Attributes:
        files: Paths of files that one of its snapshots needs, that are statistics, or that are its metadata.
        rows: Rows of its newest snapshot; a file that is listed twice counts once, as `repair` lists it once.
    """

    files: frozenset[str]
    rows: int

    @property
    def missing(self) -> frozenset[str]:
        """The files that are not in storage."""
        return frozenset(path for path in self.files if not Path(path).exists())


def path_of(location: str) -> str:
    """Return the path of a local file by plain text, as no parser of URLs would."""
    return location.removeprefix("file://")


@dataclass(frozen=True)
class Known:
    """Files that were read, which never change.

    Attributes:
        manifests: Paths of files with the rows of data files, by manifest.
        states: What a state of a table needs, by its metadata file.
    """

    manifests: dict[str, tuple[tuple[str, int], ...]] = field(default_factory=dict)
    states: dict[str, Owned] = field(default_factory=dict)


def owned_in(catalogs: Iterable[Catalog], known: Known) -> dict[str, Owned]:
    """Return what each name of the catalogs needs."""
    return {
        ".".join((catalog.name, *name)): _owned(catalog.load_table(name), known)
        for catalog in catalogs
        for namespace in catalog.list_namespaces()
        for name in catalog.list_tables(namespace)
    }


def _owned(table: Table, known: Known) -> Owned:
    if table.metadata_location in known.states:
        return known.states[table.metadata_location]
    metadata, files, rows = table.metadata, {table.metadata_location}, dict[str, int]()
    files |= {statistics.statistics_path for statistics in (*metadata.statistics, *metadata.partition_statistics)}
    for snapshot in metadata.snapshots:
        files.add(snapshot.manifest_list)
        is_head = snapshot.snapshot_id == metadata.current_snapshot_id
        for manifest in snapshot.manifests(table.io):
            path = manifest.manifest_path
            if path not in known.manifests:
                known.manifests[path] = tuple(
                    (file.file_path, file.record_count * (file.content == DataFileContent.DATA))
                    for file in (entry.data_file for entry in manifest.fetch_manifest_entry(table.io))
                )
            files |= {path, *(file for file, _ in known.manifests[path])}
            rows |= dict(known.manifests[path] if is_head else ())
    owned = known.states[table.metadata_location] = Owned(frozenset(map(path_of, files)), sum(rows.values()))
    return owned
