"""Output of which nothing is left: a dry run counts what it would write, and needs no right to write."""

from __future__ import annotations

from io import BytesIO
from typing import cast

from pyiceberg.io import FileIO, InputFile, OutputFile, OutputStream


class NoOutput(FileIO):
    """A FileIO whose files are forgotten as soon as they are closed."""

    def new_input(self, location: str) -> InputFile:
        """Raise FileNotFoundError: there are no files."""
        raise FileNotFoundError(location)

    def new_output(self, location: str) -> OutputFile:
        return cast(OutputFile, _Forgotten())

    def delete(self, location: str | InputFile | OutputFile) -> None:
        pass


class _Forgotten:
    """The part of an OutputFile that writers of manifests use."""

    def create(self, overwrite: bool = False) -> OutputStream:
        return BytesIO()
