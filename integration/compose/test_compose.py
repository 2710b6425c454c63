"""Docker starts `docker-compose.yml` and `examples/compose.yaml` as they are, and icesize works on what they serve."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tenacity import Retrying, retry_if_result, stop_after_delay, wait_fixed

from integration.compose import images

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SERVERS, EXAMPLE = ROOT / "docker-compose.yml", ROOT / "examples" / "compose.yaml"
CATALOG = {
    "uri": "http://127.0.0.1:8181",
    "s3.endpoint": "http://127.0.0.1:8333",
    "s3.access-key-id": "icesize",
    "s3.secret-access-key": "icesize-local",
    "s3.region": "us-east-1",
}
"""The catalog of the servers, as a process outside of the containers reaches it."""

Compose = Callable[..., str]


@pytest.fixture(scope="module")
def program_of_compose(engine: None) -> list[str]:
    """The command of Compose."""
    images.ensure(images.names_in(SERVERS, EXAMPLE))
    return ["docker", "compose"] if _has_compose() else [str(images.compose_program())]


@pytest.fixture
def compose(program_of_compose: list[str], request: pytest.FixtureRequest) -> Iterator[Compose]:
    """Runs Compose on the file that is the test's parameter; at the end, what it started is removed."""
    file: Path = request.param

    def run(*arguments: str, fails: bool = False) -> str:
        command = [*program_of_compose, "-f", str(file), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1800)
        assert fails or not done.returncode, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout + done.stderr if fails else done.stdout

    yield run
    run("down", "--volumes", "--timeout", "5")


@pytest.mark.parametrize("compose", [SERVERS], indirect=True)
def test_the_servers(compose: Compose) -> None:
    """Spark writes small files into the REST catalog; icesize, outside, merges them in the S3 store; Spark reads on."""
    compose("up", "--detach", "--wait")
    sql = ["exec", "-T", "spark", "/opt/spark/bin/spark-sql", "-S", "-e"]
    inserts = "; ".join(f"INSERT INTO db.events VALUES ({number}, 'a')" for number in range(8))
    compose(*sql, f"CREATE NAMESPACE db; CREATE TABLE db.events (id BIGINT, kind STRING); {inserts}")
    settings = {f"PYICEBERG_CATALOG__LAKE__{_variable(key)}": value for key, value in CATALOG.items()}
    command = [sys.executable, "-m", "icesize", "compact", "lake.db.events", "--json"]
    done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, check=True, cwd=ROOT)
    assert (json.loads(done.stdout)["files_removed"], json.loads(done.stdout)["files_added"]) == (8, 1)
    assert compose(*sql, "SELECT count(*), sum(id) FROM db.events").split() == ["8", "28"]


@pytest.mark.parametrize("compose", [EXAMPLE], indirect=True)
def test_the_example(compose: Compose) -> None:
    """The stream of the example commits batches from Kafka, whose files icesize keeps few."""
    compose("up", "--build", "--detach", "--wait")
    again = Retrying(retry=retry_if_result(lambda batches: batches < 5), wait=wait_fixed(2), stop=stop_after_delay(300))
    again(lambda: compose("logs", "stream").count("lake.shop.clicks: batch"))
    inspect = ["exec", "-T", "stream", "icesize", "inspect", "lake.shop.clicks", "--json"]
    shown = json.loads(compose(*inspect))
    assert shown["rows"] > 0
    assert shown["small_files_max"] <= shown["max_small_files"]


def _variable(key: str) -> str:
    return key.upper().replace(".", "__").replace("-", "_")


def _has_compose() -> bool:
    return not subprocess.run(("docker", "compose", "version"), capture_output=True, check=False).returncode
