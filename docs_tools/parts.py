"""The generated parts of pages, between `<!-- begin: NAME -->` and `<!-- end: NAME -->`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path

from docs_tools import command_reference, drawings, fault_pages
from docs_tools import rooms as house
from docs_tools.blocks import ROOT, pages
from icesize.policy import DOCUMENTED, SizePolicy
from icesize.storage.store_settings import AZURE, GCS, S3

_PART = re.compile(r"(<!-- begin: ([a-z-]+) -->\n).*?(<!-- end: \2 -->)", re.DOTALL)


def pages_with_parts() -> list[Path]:
    """Return all pages that may have parts."""
    return [*pages(), ROOT / "icesize" / "README.md"]


def rewritten(page: Path) -> str:
    """Return the text of a page with parts made from the current code."""
    text = page.read_text(encoding="utf-8")
    return _PART.sub(lambda part: f"{part[1]}\n{PARTS[part[2]]().strip()}\n\n{part[3]}", text)


def write() -> None:
    """Update the parts of all pages."""
    for page in pages_with_parts():
        page.write_text(rewritten(page), encoding="utf-8")


def policy_keys() -> str:
    """Return a row for each key of the policy; its meaning is in the docstring of `SizePolicy`."""
    meanings = dict(re.findall(r"^(\w+) {2,}(.+)$", inspect.cleandoc(SizePolicy.__doc__ or ""), re.MULTILINE))
    rows = (f"| `{key}` | {meanings[key.replace('-', '_')]} | {default} |" for key, default, _ in DOCUMENTED)
    return "\n".join(["| key | meaning | default |", "|---|---|---|", *rows])


def rooms() -> str:
    """Return a row for each layer with the layers that it imports from, and a row for each package."""
    arrows = house.arrows()
    layers = [
        f"| `{floor}` | {', '.join(f'`{used}`' for other, used in arrows if other == floor)} |"
        for floor in dict.fromkeys(floor for floor, _ in arrows)
    ]
    rows = [f"| `{name.removeprefix('icesize.')}` | {words} |" for name, words in house.rooms()]
    heads = ("| layer | imports from this layer and from those below it |", "| package | purpose |")
    return "\n".join([heads[0], "|---|---|", *layers, "", heads[1], "|---|---|", *rows])


def store_properties() -> str:
    """Return a row for the properties of each store that the client uses, and for each other effect of properties."""
    stores = {"settings for S3": S3, "settings for GCS": GCS, "settings for ADLS": AZURE}
    found = {effect: list[str]() for effect in stores}
    for settings, names in stores.items():
        for key, name in names.items():
            effect = name.strip("()") if name.startswith("(") else settings
            found.setdefault(effect, []).append(f"`{key}`")
    rows = (f"| {', '.join(keys)} | {effect} |" for effect, keys in found.items())
    return "\n".join(["| property | effect |", "|---|---|", *rows])


PARTS: dict[str, Callable[[], str]] = {
    "policy-keys": policy_keys,
    "policy-table": drawings.table,
    "fault-summary": fault_pages.summary,
    "commands": command_reference.page,
    "rooms": rooms,
    "store-properties": store_properties,
}
