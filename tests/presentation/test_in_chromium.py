"""The page in a real browser: nothing is logged, nothing runs, and it can be read on a phone, in the dark, on paper."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

import pytest
from matplotlib.image import imread

import icesize
from icesize.planning.files import PartitionKey
from icesize.planning.partition_labels import label_of
from icesize.presentation.page import catalog_page
from icesize.table.catalog.tables import NotLoaded
from icesize.table.records.ledger import LedgerEntry
from icesize.table.records.summary import SECONDS
from tests.support.row_deletes import delete_rows
from tests.support.tables import append, arrow, compact, make_table, request_on, run, small_files, sqlite_catalog, write

pytestmark = pytest.mark.engine

PHONE = 390
SMALLEST_LETTERS = 7.5
"""In pixels of the page, of names in pictures on a phone."""
HOSTILE = "<script>document.title='run'</script><img src=x onerror=\"document.title='run'\">"
REQUIRED = "REQUIRE_CHROMIUM"
"""Set where a browser that is missing is a failure, as in `.ci/run`."""


@dataclass(frozen=True)
class Chromium:
    """A browser without a window; every call is a process with a profile of its own."""

    program: str
    folder: Path

    def run(self, page: Path, *options: str) -> subprocess.CompletedProcess[str]:
        """Show a page, without any host to be reached."""
        profile = self.folder / f"profile-{len(list(self.folder.iterdir()))}"
        command = [
            self.program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
            "--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr", "--v=0", "--virtual-time-budget=4000",
            f"--user-data-dir={profile}", *options, page.as_uri(),
        ]  # fmt: skip
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)

    def dom(self, page: Path) -> tuple[str, list[str]]:
        """The document after everything ran, and what its console said."""
        done = self.run(page, "--dump-dom")
        return done.stdout, [line for line in done.stderr.splitlines() if ":CONSOLE" in line]

    def screenshot(self, page: Path, width: int, height: int, *options: str) -> Path:
        """A picture of the page's top."""
        target = self.folder / f"shot-{len(list(self.folder.iterdir()))}.png"
        self.run(page, f"--screenshot={target}", f"--window-size={width},{height}", *options)
        return target


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Chromium:
    """The browser of this machine."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        missing = "no Chromium on this machine: apt-get install chromium"
        assert not os.environ.get(REQUIRED), missing
        pytest.skip(missing)
    return Chromium(found, tmp_path_factory.mktemp("chromium"))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a table that has everything: batches with seconds, deletes, a merge, 1,000 partitions, bad names."""
    folder = tmp_path_factory.mktemp("page")
    lake = sqlite_catalog(folder)
    make_table(lake)
    for number in range(12):
        table = lake.load_table("db.t")
        files = [write(table, [10 * number], "a"), write(table, [10 * number + 1], HOSTILE)]
        entry, told = LedgerEntry(HOSTILE if number == 9 else "clicks", "q", number), {SECONDS: str(1 + number % 5)}
        run(lake, request_on(table, files, batch=entry, summary=told, accept_new_checkpoint=True), table)
        if number in (5, 8):
            delete_rows(lake, small_files(lake.load_table("db.t"), "a")[0])
        if number == 7:
            compact(lake)
    table = append(lake, [999], "b")
    many = [write(table, [5000 + n], "c") for n in range(2)]
    copies = [
        replace(many[0], path=f"{many[0].path}-{n}", partition=PartitionKey(0, (f"{n:04}",))) for n in range(1_000)
    ]
    run(lake, request_on(table, [*many, *copies]), table)
    target = folder / "page.html"
    icesize.open(None, "lake.db.t", catalog=lake).report().write(target)
    return target


def test_what_a_page_logs_is_seen(chromium: Chromium, tmp_path: Path) -> None:
    """The tests below could fail: errors of scripts and policies are found in what the browser writes."""
    bad = tmp_path / "bad.html"
    bad.write_text("<title>t</title><script>document.title = 'run'; console.error('told'); nothing()</script>")
    dom, logged = chromium.dom(bad)
    assert "<title>run</title>" in dom
    assert len(logged) == 2
    assert "told" in logged[0]
    refused = tmp_path / "refused.html"
    refused.write_text(
        "<meta http-equiv=Content-Security-Policy content=\"default-src 'none'\"><title>t</title>"
        "<script>document.title = 'run'</script>"
    )
    dom, logged = chromium.dom(refused)
    assert "<title>t</title>" in dom
    assert logged


def test_nothing_is_logged_and_all_texts_are_there(chromium: Chromium, page: Path) -> None:
    """No error, no refusal, no request; names that look like scripts are words; 1,000 partitions are told."""
    dom, logged = chromium.dom(page)
    assert logged == []
    assert "<title>lake.db.t: files of the table</title>" in dom
    assert "<script" not in dom
    assert "<img" not in dom
    for words in (
        "What to do", "icesize compact lake.db.t", "Data files by size", "Small files per partition",
        "Delete files per partition", "Seconds per batch", "1,000 partitions in numbers", "kind=0007",
        escape(label_of({"kind": HOSTILE}), quote=False), escape(f"{HOSTILE} batch 9", quote=False),
    ):  # fmt: skip
        assert words in dom


MEASURE = """
<body><iframe style="border:0;width:{width}px;height:3000px" srcdoc="{page}"></iframe><pre id="seen"></pre><script>
document.querySelector("iframe").onload = (event) => {{
  const page = event.target.contentDocument, told = [];
  for (const one of page.querySelectorAll("details")) one.open = true;
  told.push("scroll " + page.documentElement.scrollWidth);
  for (const one of page.querySelectorAll("main *, header *")) {{
    if (one.closest("svg, .table, pre")) continue;
    if (one.getBoundingClientRect().right > {width} + 0.5) told.push("beyond " + one.outerHTML.slice(0, 80));
  }}
  for (const text of page.querySelectorAll("svg text")) {{
    const box = text.ownerSVGElement.getScreenCTM().a * parseFloat(getComputedStyle(text).fontSize);
    told.push("letters " + box.toFixed(2));
  }}
  document.getElementById("seen").textContent = told.join("\\n");
}};
</script></body>
"""


def measured(chromium: Chromium, page: Path, folder: Path, width: int) -> list[str]:
    """What the browser measures of a page that is so wide; nothing reaches beyond it."""
    target = folder / "measured.html"
    target.write_text(MEASURE.format(width=width, page=escape(page.read_text(encoding="utf-8"))), encoding="utf-8")
    dom, _ = chromium.dom(target)
    seen = re.search(r'<pre id="seen">(.*?)</pre>', dom, re.DOTALL)
    assert seen is not None
    lines = seen[1].splitlines()
    assert lines[0] == f"scroll {width}"
    assert [line for line in lines if line.startswith("beyond")] == []
    return lines


@pytest.mark.parametrize("width", [PHONE, 320, 768, 1280])
def test_nothing_is_wider_than_the_screen(chromium: Chromium, page: Path, tmp_path: Path, width: int) -> None:
    """The page never scrolls sideways, tables and commands do within themselves; letters in pictures can be read."""
    lines = measured(chromium, page, tmp_path, width)
    letters = [float(line.split()[1]) for line in lines if line.startswith("letters")]
    assert len(letters) > 30
    assert width < PHONE or min(letters) >= SMALLEST_LETTERS


@pytest.mark.parametrize("width", [PHONE, 1280])
def test_the_page_of_a_catalog(chromium: Chromium, tmp_path: Path, width: int) -> None:
    """Nothing is logged or wider than the screen, whatever tables are called; a name leads to the page of its table."""
    lake, page = sqlite_catalog(tmp_path), tmp_path / "lake.html"
    for name in (HOSTILE, "t", "x" * 200):
        make_table(lake, name=("db", name)).append(arrow([1]))  # type: ignore[arg-type]
    found = icesize.scan("lake", catalog=lake)
    skipped = NotLoaded(("db", HOSTILE), "unreadable", f"{HOSTILE} {'no ' * 100}")
    found = replace(found, skipped=(skipped,), doubts=(f"the namespace '{'y' * 200}' is not found",))
    page.write_text(catalog_page(found, {"lake.db.t": "lake.01.html"}, 0), encoding="utf-8")
    dom, logged = chromium.dom(page)
    assert logged == []
    assert "<script" not in dom
    assert '<a href="lake.01.html">lake.db.t</a>' in dom
    measured(chromium, page, tmp_path, width)


def test_it_follows_light_and_dark(chromium: Chromium, page: Path) -> None:
    """The background is the page's own in both, and so are the colours of pictures."""
    light = imread(chromium.screenshot(page, 1200, 1600, "--blink-settings=preferredColorScheme=1"))
    dark = imread(chromium.screenshot(page, 1200, 1600, "--blink-settings=preferredColorScheme=0"))
    assert light[0, 0, :3].min() > 0.99
    assert dark[0, 0, :3].max() < 0.15
    for picture in (light, dark):
        assert len({tuple(pixel) for pixel in (picture[::4, ::4, :3] * 255).astype(int).reshape(-1, 3)}) > 50


def test_it_prints(chromium: Chromium, page: Path) -> None:
    """A few sheets, also of a long table."""
    target = chromium.folder / "page.pdf"
    chromium.run(page, "--no-pdf-header-footer", f"--print-to-pdf={target}")
    written = target.read_bytes()
    assert written.startswith(b"%PDF")
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", written)) <= 6


def test_the_picture_of_the_readme_is_one(chromium: Chromium) -> None:
    """A document of its own, which logs nothing and has its texts."""
    dom, logged = chromium.dom(Path(__file__).parents[2] / "docs" / "images" / "before-after.svg")
    assert logged == []
    assert "after icesize compact: " in dom
