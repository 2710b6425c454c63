"""Delete files for the outputs of merges: rows that others deleted in the inputs after these were read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pyroaring import BitMap

from icesize.parquet.files.data_file import NewDataFile, NewDeleteFile
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.new_files import NewFiles
from icesize.parquet.files.settings import WriteSettings
from icesize.planning.files import FileFact


@dataclass(eq=False)
class CarriedDeletes:
    """Writes the deletes of the outputs of one group for states of the table. Files with the same rows are used again.

    Attributes:
        settings: Returns the settings of the table's files.
        names: The names of the files.
        written: All files that were written, for any state.
    """

    settings: Callable[[], WriteSettings]
    names: FileNames
    written: dict[str, NewDeleteFile] = field(default_factory=dict)
    _known: dict[frozenset[tuple[str, bytes]], tuple[NewDeleteFile, ...]] = field(default_factory=dict)

    def of(self, outputs: tuple[NewDataFile, ...], dead: Mapping[str, BitMap]) -> tuple[NewDeleteFile, ...]:
        """Return the deletes of these rows of outputs of one partition, with the number of their snapshot.

        They are one vector for each output from format v3 on, and one position delete file before.
        """
        rows = {FileFact(f.path, f.size_bytes, f.rows, f.partition): dead[f.path] for f in outputs if f.path in dead}
        content = frozenset((file.path, some.serialize()) for file, some in rows.items())
        if content not in self._known:
            # few commits write deletes, and the writers of files take time to load
            from icesize.parquet.deletes.position_files import write_one_each

            partition = next(iter(rows)).partition
            new_files = NewFiles(self.settings().of_spec(partition.spec_id), self.names)
            with new_files.all_or_none():
                files = write_one_each(new_files, partition, rows)
            self._known[content] = files
            self.written |= {file.path: file for file in files}
        return self._known[content]
