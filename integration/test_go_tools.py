"""Programs in Go are built once, and one that cannot be built says why; here Go is a script."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.go_tools import GoToolUnavailableError, program, toxiproxy


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty place for programs, and no Go."""
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    (tmp_path / "bin").mkdir()
    return tmp_path / "kept"


def script(kept: Path, *lines: str) -> None:
    go = kept.parent / "bin" / "go"
    go.write_text("\n".join(["#!/bin/sh", *lines]) + "\n")
    go.chmod(0o755)


def test_a_program_is_built_once(kept: Path) -> None:
    """The second call finds what the first one built, under a name with its version; nothing else is left."""
    script(kept, f'echo "$2" >> {kept.parent}/built', 'echo program > "$GOBIN/server"')
    assert toxiproxy(kept) == toxiproxy(kept) == kept / "toxiproxy-v2.5.0"
    assert (kept.parent / "built").read_text() == "github.com/Shopify/toxiproxy/v2/cmd/server@v2.5.0\n"
    assert [path.read_text() for path in kept.iterdir()] == ["program\n"]


def test_another_version_is_built_anew(kept: Path) -> None:
    """What is kept of one version is not taken for another."""
    script(kept, 'echo "$2" > "$GOBIN/server"')
    toxiproxy(kept)
    assert program("toxiproxy", "example.org/cmd/server", "v9", kept).read_text() == "example.org/cmd/server@v9\n"


def test_without_go_the_reason_is_told(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message can be the reason of a skipped test."""
    monkeypatch.setenv("PATH", str(kept))
    with pytest.raises(GoToolUnavailableError, match=r"^Cannot build toxiproxy: 'go' .* is not on PATH\.$"):
        toxiproxy(kept)


def test_a_failed_build_tells_the_last_line(kept: Path) -> None:
    """Go's own words are passed on; nothing is kept, so that the next run tries again."""
    script(kept, "echo 'go: downloading' >&2", "echo 'dial tcp: no such host' >&2", "exit 1")
    with pytest.raises(GoToolUnavailableError, match=r"'go install .*@v2\.5\.0' failed: dial tcp: no such host$"):
        toxiproxy(kept)
    assert list(kept.iterdir()) == []
