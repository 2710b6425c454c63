"""An overview of a table: facts that can be written as a page or as an image."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from icesize.presentation.facts import Facts


@dataclass(frozen=True)
class Overview(Facts):
    """A page about one table.

    Methods that draw raise EngineUnavailable without matplotlib, a package of the extra `report`.
    """

    def to_html(self) -> str:
        """Return the page: one document that needs no network and runs no script, with charts as SVG."""
        from icesize.presentation.page import page

        return page(self)

    def to_png(self) -> bytes:
        """Return the charts alone, as a PNG image."""
        from icesize.presentation.charts import png

        return png(self)

    def write(self, path: str | Path) -> None:
        """Write the page, or the image if the name ends in `.png`; raise OSError if that fails."""
        target = Path(path)
        if target.suffix.lower() == ".png":
            target.write_bytes(self.to_png())
        else:
            target.write_text(self.to_html(), encoding="utf-8")
