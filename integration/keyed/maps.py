"""The maps of keys of a history, and what happens to their files: that may cost time only."""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass
from pathlib import Path

from icesize.table.upserts.index_files import MapSettings


@dataclass
class Maps:
    """A directory of maps with room for `most_bytes`; None for no maps."""

    folder: Path
    most_bytes: int | None
    number: int = 0

    @property
    def directory(self) -> Path:
        return self.folder / f"maps{self.number}"

    @property
    def settings(self) -> MapSettings | None:
        """The argument of jobs."""
        if self.most_bytes is None:
            return None
        self.directory.mkdir(exist_ok=True)
        return MapSettings(str(self.directory), self.most_bytes)

    def move(self, chance: random.Random) -> None:
        """Another process goes on: with the files of the one before, which holds their lock, or without."""
        before = self.directory
        self.number += 1
        if self.most_bytes is not None and before.exists() and chance.random() < 0.7:
            shutil.copytree(before, self.directory)

    def spoil(self, chance: random.Random) -> None:
        """Delete, cut, change or exchange some files."""
        files = sorted(path for path in self.directory.rglob("*.arrays") if path.is_file())
        for path in files:
            match chance.randrange(8):
                case 0:
                    path.unlink()
                case 1:
                    path.write_bytes(path.read_bytes()[: chance.randrange(1 + path.stat().st_size)])
                case 2:
                    content = bytearray(path.read_bytes())
                    if content:
                        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
                    path.write_bytes(content)
                case 3:
                    path.write_bytes(chance.choice([each for each in files if each.exists()]).read_bytes())
