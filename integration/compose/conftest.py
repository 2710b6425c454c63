"""A Docker engine for the tests of this folder."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.servers import running

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A Docker engine: the one that runs, or one of our own, which keeps its images for the next run."""
    if not _code("docker", "info"):
        yield
        return
    if shutil.which("dockerd") is None or os.geteuid() != 0:
        pytest.skip("no Docker engine: as root, apt-get install docker.io debootstrap iptables")

    def ask() -> None:
        if _code("docker", "info"):
            raise ConnectionError("the engine does not answer yet")

    log = tmp_path_factory.mktemp("docker") / "dockerd.log"
    with running(["dockerd", "--data-root", str(ROOT / ".cache" / "docker")], log, ask):
        yield


def _code(*command: str) -> int:
    if shutil.which(command[0]) is None:
        return 127
    return subprocess.run(command, capture_output=True, check=False).returncode
