"""An overview as people call it: facts of a table that can be written down as a page or as an image."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from icesize.presentation.facts import Facts


@dataclass(frozen=True)
class Overview:
    """One table on one page; `facts` are what it says.

    What draws raises EngineUnavailable without matplotlib (`pip install 'icesize[report]'`).
    """

    facts: Facts

    def to_html(self) -> str:
        """The page: one document that needs no network and runs no script, with pictures as SVG."""
        from icesize.presentation.page import page

        return page(self.facts)

    def to_png(self) -> bytes:
        """The pictures alone, as a PNG image."""
        from icesize.presentation.charts import png

        return png(self.facts)

    def write(self, path: str | Path) -> None:
        """Write the page, or the image where the name ends in `.png`; raises OSError where that cannot be."""
        target = Path(path)
        if target.suffix.lower() == ".png":
            target.write_bytes(self.to_png())
        else:
            target.write_text(self.to_html(), encoding="utf-8")

    def to_dict(self) -> dict[str, Any]:
        """What the page says: stable keys, JSON-ready values; later releases may add keys, never rename them."""
        return self.facts.to_dict()

    def __str__(self) -> str:
        return str(self.facts)
