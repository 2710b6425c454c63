"""Delete files of many batches: their rows are the deleted ones, and few of them apply to a data file."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from pyroaring import BitMap

from icesize.parquet.deletes.deleted_rows import deleted_rows
from icesize.parquet.files.data_file import NewDeleteFile
from icesize.parquet.files.names import FileNames
from icesize.planning.deletes.delete_reach import only_path
from icesize.planning.files import DeleteFile, FileFact, PartitionKey
from icesize.table.manifests.delete_index import DeleteIndex
from icesize.table.manifests.store import ManifestStore
from icesize.table.upserts.deletes import MOST_SINGLE_DELETES, Dying, planned_deletes, write_deletes
from icesize.table.upserts.lookup import TableFiles
from icesize.table.upserts.state_files import FilesWithBounds
from tests.support.examples import examples
from tests.support.parquet_files import settings_of

FILES, ROWS = MOST_SINGLE_DELETES + 4, 60
PARTITION = PartitionKey(0)
SCHEMA = Schema(NestedField(1, "id", LongType()))

batches = st.lists(
    st.tuples(st.integers(1, FILES), st.integers(0, 2**32 - 1), st.floats(0.01, 0.2)), min_size=1, max_size=25
)
"""Of each batch: how many data files it deletes rows of, which ones by a seed, and the share of their rows."""


@dataclass
class Lake:
    """Data files of one partition, whose delete files are real. `deleted` is what must be deleted of each."""

    folder: Path
    version: int
    most: int
    deletes: list[DeleteFile] = field(default_factory=list)
    deleted: dict[str, BitMap] = field(default_factory=dict)
    number: int = 1

    def __post_init__(self) -> None:
        settings = settings_of(self.folder.as_uri(), SCHEMA)
        self.settings = replace(settings, format_version=self.version)
        self.deleted = {f"{self.folder}/d{at:02}.parquet": BitMap() for at in range(FILES)}

    @property
    def index(self) -> DeleteIndex:
        return DeleteIndex({PARTITION: list(self.deletes)})

    def files(self) -> list[FileFact]:
        """The data files with the delete files that apply to them."""
        plain = [FileFact(path, 1000, ROWS, PARTITION, 1) for path in self.deleted]
        found = self.index.of_partition(PARTITION)
        return [replace(file, deletes=tuple(found.applying(file))) for file in plain]

    def commit(self, wanted: dict[str, BitMap]) -> list[NewDeleteFile]:
        """One batch that deletes these rows, of which none is deleted yet."""
        files = {file.path: file for file in self.files()}
        dying = [Dying(files[path], self.deleted[path].copy(), rows) for path, rows in wanted.items()]
        plain = [replace(file, deletes=()) for file in files.values()]
        state = FilesWithBounds([], {PARTITION: plain}, self.index, ManifestStore())
        planned = planned_deletes(dying, state, self.settings.storage, self.version, self.most)
        names, files_of = FileNames("test", self.number, 0), TableFiles(self.settings)
        made, self.number = write_deletes(files_of, names, planned), self.number + 1
        gone = {delete.id for each in planned for delete in each.replaced}
        self.deletes = [each for each in self.deletes if each.id not in gone] + [self._entry(each) for each in made]
        for path, rows in wanted.items():
            self.deleted[path] |= rows
        return made

    def _entry(self, file: NewDeleteFile) -> DeleteFile:
        kind = "PARQUET" if file.content_offset is None else "PUFFIN"
        return DeleteFile(
            file.path, file.size_bytes, file.rows, PARTITION, self.number, kind, referenced_path=file.deletes_of,
            content_offset=file.content_offset, content_size_bytes=file.content_size_bytes,
        )  # fmt: skip

    def check(self) -> None:
        """The delete files delete what they must, and not too many apply to a data file."""
        files = self.files()
        found = deleted_rows([file for file in files if file.deletes], self.settings, PARTITION).positions
        assert {path: rows for path, rows in found.items() if rows} == {
            p: rows for p, rows in self.deleted.items() if rows
        }
        for file in files:
            vectors = [each for each in file.deletes if each.content_offset is not None]
            assert len(vectors) == (self.version == 3 and bool(self.deleted[file.path]))
            assert len(file.deletes) <= (1 if self.version == 3 else max(3, self.most))
            assert sum(only_path(each) is not None for each in file.deletes) <= 1


@pytest.mark.parametrize(("version", "most"), [(2, 3), (2, 10), (3, 10)])
@given(plan=batches)
@examples(40)
def test_delete_files_of_many_batches(version: int, most: int, plan: list[tuple[int, int, float]]) -> None:
    """Each row stays deleted, none comes on top, and a batch writes one file for each data file, or one for all."""
    with TemporaryDirectory() as folder:
        lake = Lake(Path(folder), version, most)
        for count, seed, share in plan:
            chance = np.random.default_rng(seed)
            chosen = chance.choice(sorted(lake.deleted), count, replace=False)
            wanted = {str(path): BitMap(np.flatnonzero(chance.random(ROWS) < share)) for path in chosen}
            wanted = {path: rows - lake.deleted[path] for path, rows in wanted.items() if rows - lake.deleted[path]}
            if not wanted:
                continue
            made = lake.commit(wanted)
            assert len({each.path for each in made}) <= (1 if version == 3 else MOST_SINGLE_DELETES)
            lake.check()


@pytest.mark.parametrize("partitions", [MOST_SINGLE_DELETES, MOST_SINGLE_DELETES + 1])
def test_the_only_file_of_a_partition_has_one_delete_file(partitions: int) -> None:
    """A batch into any number of partitions replaces the delete file of each data file, so that few rows are due."""
    keys = [PartitionKey(0, (each,)) for each in range(partitions)]
    older = {k: DeleteFile(f"/del{k.values}", 100, 1, k, 2, referenced_path=f"/{k.values}") for k in keys}
    files = [FileFact(f"/{key.values}", 1000, ROWS, key, 1, deletes=(older[key],)) for key in keys]
    dying = [Dying(file, BitMap([3]), BitMap([5])) for file in files]
    live = {file.partition: [replace(file, deletes=())] for file in files}
    state = FilesWithBounds([], live, DeleteIndex({key: [delete] for key, delete in older.items()}), ManifestStore())
    planned = planned_deletes(dying, state, settings_of("/lake", SCHEMA).storage, 2, 10)
    assert [(dict(each.rows), each.replaced) for each in planned] == [
        ({file: BitMap([3, 5])}, file.deletes) for file in files
    ]
