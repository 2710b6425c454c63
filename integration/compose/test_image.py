"""Docker builds the image of `Dockerfile`; its commands work on a table without root's rights and without Spark."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from integration.compose import images

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
IMAGE = "icesize-of-the-tests"
MOST_BYTES = 450 * 10**6
"""Most that icesize and its packages may add to the image of Python."""


@pytest.fixture(scope="module")
def image(engine: None) -> str:
    """The image, built from this state of the code."""
    images.ensure(images.names_in(ROOT / "Dockerfile"))
    _docker("build", "--tag", IMAGE, ".")
    return IMAGE


def _docker(*arguments: str) -> str:
    done = subprocess.run(("docker", *arguments), cwd=ROOT, capture_output=True, text=True, check=False)
    assert not done.returncode, f"{arguments}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def test_the_image_is_small_and_not_of_root(image: str) -> None:
    """The image has a numbered user, no PySpark and no Java."""
    described = [
        _docker("image", "inspect", "--format", "{{.Config.User}}/{{.Size}}", name).split("/")
        for name in (image, images.names_in(ROOT / "Dockerfile")[-1])
    ]
    assert described[0][0] == "10001"
    assert int(described[0][1]) - int(described[1][1]) < MOST_BYTES
    assert "Usage: icesize" in _docker("run", "--rm", image)
    checked = [line.split()[:2] for line in _docker("run", "--rm", image, "doctor").splitlines()]
    assert [name for name in ("icesize", "pyiceberg", "pyarrow") if ["ok", name] not in checked] == []
    assert [name for name in ("pyspark", "Java") if ["--", name] not in checked] == []


def test_a_pass_of_maintenance(image: str, tmp_path: Path) -> None:
    """A container, given a catalog by environment variables, merges the small files of a table and ends."""
    settings = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}"}
    catalog = SqlCatalog("lake", **settings)
    catalog.create_namespace("db")
    events = catalog.create_table("db.events", pa.schema({"id": pa.int64()}))
    for number in range(8):
        events.append(pa.table({"id": [number]}))
    subprocess.run(("chmod", "-R", "a+rwX", tmp_path), check=True)  # the user of the container has another number
    variables = [f"--env=PYICEBERG_CATALOG__LAKE__{key.upper()}={value}" for key, value in settings.items()]
    _docker(
        "run", "--rm", f"--volume={tmp_path}:{tmp_path}", *variables, "--env=PYICEBERG_CATALOG__LAKE__TYPE=sql", image,
        "maintain", "lake.db.events", "--budget-seconds", "25m",
    )  # fmt: skip
    scan = catalog.load_table("db.events").scan()
    assert len(list(scan.plan_files())) == 1
    assert sorted(scan.to_arrow()["id"].to_pylist()) == list(range(8))
