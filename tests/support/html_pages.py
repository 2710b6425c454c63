"""An HTML page taken apart: well nested, its texts, tables, ids and everything that it points at."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

_VOID = frozenset({"area", "base", "br", "col", "hr", "img", "input", "link", "meta", "source", "wbr"})
_POINTING = frozenset({"href", "xlink:href", "src", "srcset", "action", "data", "poster"})


@dataclass
class Page:
    """What a page holds. `texts` are those outside of tables and pictures, `drawn` those in pictures, by the id of the
    figure; `tables` are rows of cells; `pointed_at` is every address; `names` are those of all elements."""

    texts: list[str] = field(default_factory=list)
    drawn: dict[str, list[str]] = field(default_factory=dict)
    tables: list[list[list[str]]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    pointed_at: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    attributes: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All words outside of tables and pictures."""
        return " ".join(" ".join(self.texts).split())


def taken_apart(html: str) -> Page:
    """Fails for elements that are not closed in their order."""
    parser = _Parser()
    parser.feed(html)
    parser.close()
    assert parser.open == [], parser.open
    return parser.page


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.page = Page()
        self.open: list[str] = []
        self._figure = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.page.names.append(tag)
        self.page.attributes += given
        self.page.pointed_at += [value or "" for name, value in attrs if name in _POINTING]
        if identity := given.get("id"):
            self.page.ids.append(identity)
            if tag == "figure":
                self._figure = identity
                self.page.drawn[identity] = []
        if tag == "table":
            self.page.tables.append([])
        elif tag == "tr":
            self.page.tables[-1].append([])
        elif tag in ("td", "th"):
            self.page.tables[-1][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1] == tag, f"</{tag}> closes <{self.open[-1]}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if "svg" in self.open:
            if "style" not in self.open and data.strip():
                self.page.drawn[self._figure].append(data.strip())
        elif "table" in self.open:
            if self.page.tables[-1] and self.page.tables[-1][-1] and ("td" in self.open or "th" in self.open):
                self.page.tables[-1][-1][-1] += data
        elif "style" not in self.open:
            self.page.texts.append(data)
