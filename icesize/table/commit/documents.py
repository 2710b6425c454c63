"""Metadata files of format v3 for catalogs in which PyIceberg writes them: the loaded JSON document with the changes.

PyIceberg's models do not keep fields that they do not know, and PyIceberg 0.12 refuses to write a model of format v3.
Therefore the new document is a three-way merge: what an update changed between two models is changed in the document
that the first model was read from, and everything else stays unchanged.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.exceptions import CommitFailedException, ValidationError
from pyiceberg.io import FileIO
from pyiceberg.table import StagedTable, Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.update import AddSnapshotUpdate, TableRequirement, TableUpdate
from pyiceberg.typedef import IcebergBaseModel, Identifier

from icesize.parquet.files.lineage_fields import FIRST_WITH_LINEAGE
from icesize.table.catalog.access_errors import brief
from icesize.table.catalog.metadata_files import read_metadata_file
from icesize.table.catalog.pyiceberg_internals import staged_by, with_own_writer
from icesize.table.commit.protocol import CommitRefused

_ABSENT = object()
_NAME, _COMPRESSED_NAME = ".metadata.json", ".gz.metadata.json"

_IDS = {
    "snapshots": "snapshot-id", "schemas": "schema-id", "partition-specs": "spec-id", "sort-orders": "order-id",
    "statistics": "snapshot-id", "partition-statistics": "snapshot-id", "fields": "id",
}  # fmt: skip
"""Lists of a document by name, with the key by which their elements are the same in two versions (table spec, v3).

`fields` of schemas have ids. Elements of other lists are the same if they are equal: logs, fields of specs and orders.
"""


def merged(base: Any, updated: Any, document: Any, name: str = "") -> Any:
    """Return a part of a document with the differences between two dumps of models. The arguments stay unchanged.

    Args:
        base: The dump of the model that was read from the document.
        updated: The dump of the model after the updates.
        document: The loaded JSON value.
        name: The key of these values in the object around them.
    """
    if updated == base:
        return document
    if all(isinstance(value, dict) for value in (base, updated, document)):
        return _merged_object(base, updated, document)
    if all(isinstance(value, list) for value in (base, updated, document)) and len(base) == len(document):
        return _merged_list(base, updated, document, name)
    return updated


def _merged_object(base: dict[str, Any], updated: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    result = {key: value for key, value in document.items() if key in updated or key not in base}
    for key, value in updated.items():
        before = base.get(key, _ABSENT)
        if key in document:
            result[key] = merged(before, value, document[key], key)
        elif value != before:  # an unchanged value that the document lacks is a default of the model
            result[key] = value
    return result


def _merged_list(base: list[Any], updated: list[Any], document: list[Any], name: str) -> list[Any]:
    known = {_identity(pair[0], name): pair for pair in zip(base, document, strict=True)}
    # a new schema is a change of the last one: fields that both have keep what the models do not know
    other = (base[-1], document[-1]) if name == "schemas" and base else None
    pairs = ((value, known.get(_identity(value, name), other)) for value in updated)
    return [value if pair is None else merged(pair[0], value, pair[1]) for value, pair in pairs]


def _identity(value: Any, name: str) -> Hashable:
    known = value.get(_IDS.get(name, "")) if isinstance(value, dict) else None
    return json.dumps(value, sort_keys=True) if known is None else known


def dumped(metadata: TableMetadata) -> dict[str, Any]:
    """Return what PyIceberg's writer would write of a model, as a JSON object. It refuses to write one of format v3."""
    return dict(json.loads(IcebergBaseModel.model_dump_json(metadata)))


def document_of(base: TableMetadata, updated: TableMetadata, document: Mapping[str, Any], name: str) -> str:
    """Return the text of the next metadata file of a table of format v3.

    Args:
        base: The metadata that was read from the document.
        updated: The metadata after the updates.
        document: The JSON object of the current metadata file.
        name: The name of the table, for errors.

    Raises:
        CommitRefused: The table is encrypted, or a reader of the text would not read the updated metadata.
    """
    if document.get("encryption-keys"):
        raise CommitRefused(f"Cannot commit to '{name}': the table is encrypted (its metadata has 'encryption-keys')")
    wanted = dumped(updated)
    text = json.dumps(merged(dumped(base), wanted, document))
    if wrong := _wrong_keys(text, wanted):
        raise CommitRefused(
            f"Cannot commit to '{name}': the new metadata would be read with other values ({', '.join(wrong)}); "
            "nothing was committed; please report this with the table's metadata file"
        )
    return text


def _wrong_keys(text: str, wanted: Mapping[str, Any]) -> list[str]:
    """Return the keys of a document that PyIceberg would not read as wanted. Java requires `next-row-id` on v3."""
    try:
        read = dumped(TableMetadataUtil.parse_raw(text))
    except ValidationError as error:
        return [brief(error)]
    keys = {*read, *wanted, "next-row-id"}
    return sorted(key for key in keys if read.get(key) != wanted.get(key) or (key == "next-row-id" and key not in read))


def is_compressed(metadata: TableMetadata) -> bool:
    """Return True if the table's metadata files are to be compressed, which PyIceberg 0.12 does not do."""
    return metadata.properties.get("write.metadata.compression-codec", "").lower() == "gzip"


def lossless(catalog: Catalog) -> Catalog:
    """Return a catalog for one commit, which compresses the metadata file if the table wants that.

    In format v3, it writes the next document of the current one. It shares everything with the given catalog. REST
    catalogs are returned unchanged: their servers write metadata.
    """
    if not isinstance(catalog, MetastoreCatalog):
        return catalog
    commit = _Commit(catalog)
    return with_own_writer(catalog, commit.stage, commit.write)


@dataclass(eq=False)
class _Commit:
    """The parts of PyIceberg's `commit_table` between loading the current state and its compare-and-swap."""

    catalog: MetastoreCatalog
    current: Table | None = None

    def stage(
        self,
        current_table: Table | None,
        table_identifier: Identifier,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> StagedTable:
        self.current = current_table
        if current_table is not None:
            _check_order(current_table.metadata, updates)
        staged = staged_by(self.catalog, current_table, table_identifier, requirements, updates)
        if is_compressed(staged.metadata):
            staged.metadata_location = staged.metadata_location.removesuffix(_NAME) + _COMPRESSED_NAME
        return staged

    def write(self, metadata: TableMetadata, io: FileIO, metadata_path: str, overwrite: bool = False) -> None:
        data = self._document(metadata).encode()
        with io.new_output(metadata_path).create(overwrite=overwrite) as stream:
            stream.write(gzip.compress(data) if metadata_path.endswith(_COMPRESSED_NAME) else data)

    def _document(self, metadata: TableMetadata) -> str:
        base = self.current
        if metadata.format_version < FIRST_WITH_LINEAGE:
            return IcebergBaseModel.model_dump_json(metadata)
        document = None if base is None else read_metadata_file(base.io, base.metadata_location)
        if base is None or document is None:
            raise CommitFailedException("the table or its metadata file was removed by another commit")
        return document_of(base.metadata, metadata, document, ".".join(base.name()))


def _check_order(metadata: TableMetadata, updates: tuple[TableUpdate, ...]) -> None:
    """Raise CommitFailedException for a snapshot whose numbers another commit, to any branch, has taken.

    PyIceberg 0.12 compares sequence numbers on format v2 only, and reports a row id that was taken as a ValueError.
    """
    snapshot = next((update.snapshot for update in updates if isinstance(update, AddSnapshotUpdate)), None)
    if snapshot is None or metadata.format_version < FIRST_WITH_LINEAGE:
        return
    if (snapshot.sequence_number or 0) <= getattr(metadata, "last_sequence_number", 0):
        raise CommitFailedException(f"the sequence number {snapshot.sequence_number} was taken by another commit")
    if (snapshot.first_row_id or 0) < (getattr(metadata, "next_row_id", None) or 0):
        raise CommitFailedException(f"the first row id {snapshot.first_row_id} was taken by another commit")
