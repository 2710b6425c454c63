"""The Go programs that the integration tests run against: servers of S3 and Google Cloud Storage, and a bad proxy.

Each is built once, from the version named here, by `go install`. The result is kept under `target/go-bin` under a name
with that version, so another version is built anew and the same one costs nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

KEPT = Path(__file__).resolve().parent / "target" / "go-bin"
_VERSITYGW = "github.com/versity/versitygw/cmd/versitygw", "v1.8.0"
_TOXIPROXY = "github.com/Shopify/toxiproxy/v2/cmd/server", "v2.5.0"
_FAKE_GCS_SERVER = "github.com/fsouza/fake-gcs-server", "v1.56.1"
_BUILD_TIMEOUT_S = 1_800


class GoToolUnavailableError(RuntimeError):
    """The program is neither kept here nor to be built; the message says why in one sentence."""


def versitygw(kept_in: Path = KEPT) -> Path:
    """An S3 server that keeps objects as files; building it takes 2.5 minutes of a core.

    Raises `GoToolUnavailableError`, as all do, when it has to be built and cannot be.
    """
    return program("versitygw", *_VERSITYGW, kept_in)


def toxiproxy(kept_in: Path = KEPT) -> Path:
    """The server of Toxiproxy, a TCP proxy whose connections are slowed, reset or cut by its HTTP API."""
    return program("toxiproxy", *_TOXIPROXY, kept_in)


def fake_gcs_server(kept_in: Path = KEPT) -> Path:
    """An emulator of Google Cloud Storage; building it takes 2 minutes of a core."""
    return program("fake-gcs-server", *_FAKE_GCS_SERVER, kept_in)


def program(name: str, package: str, version: str, kept_in: Path) -> Path:
    """Return the kept program of this version, built if there is none."""
    kept = kept_in / f"{name}-{version}"
    if not kept.is_file():
        kept_in.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept_in) as folder:
            _build(name, f"{package}@{version}", folder)
            # moved as one step, at the end: a build that was interrupted, or runs twice, leaves nothing half done
            (Path(folder) / package.rsplit("/", 1)[1]).replace(kept)
    return kept


def _build(name: str, package: str, folder: str) -> None:
    go = shutil.which("go")
    if go is None:
        raise GoToolUnavailableError(f"Cannot build {name}: 'go' (the Go toolchain) is not on PATH.")
    environment = os.environ | {"GOBIN": folder}
    try:
        done = subprocess.run(
            [go, "install", package], env=environment, capture_output=True, text=True, timeout=_BUILD_TIMEOUT_S
        )
    except subprocess.TimeoutExpired as slow:
        raise GoToolUnavailableError(f"Cannot build {name}: it took over {_BUILD_TIMEOUT_S} s.") from slow
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        reason = lines[-1].strip() if lines else f"exit code {done.returncode}"
        raise GoToolUnavailableError(f"Cannot build {name}: 'go install {package}' failed: {reason}")
