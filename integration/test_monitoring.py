"""A real Prometheus reads the metrics that docs/monitoring.md lists, and each panel of the dashboard has data."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml
from pyiceberg.catalog import Catalog
from tenacity import Retrying, retry_if_result, stop_after_delay, wait_fixed

import icesize
from docs_tools.blocks import DOCS, blocks
from icesize.environment import Environment
from icesize.events import BatchCommitted, CommitEnded, JobFinished
from icesize.report import Report
from icesize.telemetry import METRICS, Telemetry, served_to_prometheus
from integration.servers import free_ports, running
from tests.support.tables import append, arrow, make_table, sqlite_catalog

ROOT = Path(__file__).parents[1]
REQUIRED = "REQUIRE_PROMETHEUS"
"""Set where a Prometheus that is missing is a failure, as in `.ci/run`."""

Query = Callable[[str], list[dict[str, Any]]]


TABLE = {"iceberg_table_name": "lake.db.events"}
UNKNOWN = {**TABLE, "icesize_outcome": "unknown"}
SCENES: tuple[tuple[str, str, dict[str, str], str, dict[str, bool]], ...] = (
    ("IcesizeStopped", "icesize_batch_time_seconds", TABLE, "0+60x120", {"2h": False}),
    ("IcesizeStopped", "icesize_batch_time_seconds", TABLE, "0+60x30 stale", {"35m": False, "45m": True, "2h": True}),
    ("IcesizeStopped", "icesize_batch_time_seconds", TABLE, "0+60x30 1800x90", {"35m": False, "2h": True}),
    ("IcesizeUnknownOutcome", "iceberg_commit_attempts_total", UNKNOWN, "0x30", {"20m": False}),
    ("IcesizeUnknownOutcome", "iceberg_commit_attempts_total", UNKNOWN, "0x20 1x10", {"20m": False, "22m": True}),
)
"""An alert; a series with its labels and its value each minute; whether the alert fires at these times.

A driver works, dies, or runs on without its query; no commit loses its response, or one does.
"""


def installed(name: str) -> str:
    """The path of a program of Prometheus; without it, the test is skipped or fails."""
    program = shutil.which(name)
    if program is None:
        missing = f"no {name} on this machine: apt-get install prometheus"
        assert not os.environ.get(REQUIRED), missing
        pytest.skip(missing)
    return program


def alert_rules() -> str:
    """The rules of the page, as a file of Prometheus."""
    (block,) = [block for block in blocks(DOCS / "monitoring.md", "text") if block.code.startswith("groups:")]
    return block.code


def listed() -> list[str]:
    """The names of metrics in the tables of the page."""
    return re.findall(r"^\| `(ice\w+)` \|", (DOCS / "monitoring.md").read_text(encoding="utf-8"), re.MULTILINE)


@pytest.fixture(scope="module")
def telemetry() -> Iterator[tuple[Telemetry, int]]:
    """What records, and the port at which Prometheus may read it."""
    (port,) = free_ports(1)
    with served_to_prometheus(port) as telemetry:
        yield telemetry, port


@pytest.fixture(scope="module")
def query(telemetry: tuple[Telemetry, int], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Query]:
    """A query to a Prometheus that reads the metrics each second."""
    program = installed("prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    (port,) = free_ports(1)
    target = {"job_name": "icesize", "static_configs": [{"targets": [f"127.0.0.1:{telemetry[1]}"]}]}
    config = {"global": {"scrape_interval": "1s"}, "scrape_configs": [target]}
    (folder / "prometheus.yml").write_text(json.dumps(config))
    command = [
        program, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip
    url = f"http://127.0.0.1:{port}"

    def ready() -> None:
        requests.get(f"{url}/-/ready", timeout=5).raise_for_status()

    def ask(expression: str) -> list[dict[str, Any]]:
        answer = requests.get(f"{url}/api/v1/query", {"query": expression}, timeout=10)
        assert answer.ok, f"{expression}: {answer.text}"
        found: list[dict[str, Any]] = answer.json()["data"]["result"]
        return found

    with running(command, folder / "log", ready):
        yield ask


def until_found(query: Query, expression: str) -> list[dict[str, Any]]:
    """Ask until there is a result."""
    again = Retrying(retry=retry_if_result(lambda found: not found), wait=wait_fixed(0.2), stop=stop_after_delay(60))
    return again(query, expression)


def work(table: icesize.SizedTable, catalog: Catalog, telemetry: Telemetry, start: int) -> None:
    """Do what a day of a table does: batches, merges, expiry; in SQLite, a conflict is only told."""
    for number in range(start, start + 40, 10):
        append(catalog, range(number, number + 10))
    table.upsert(arrow(range(start, start + 5)), key="id")
    table.maintain()
    table.expire_snapshots(retain_last=1, older_than=timedelta(0))
    telemetry(CommitEnded(table.name, "conflict", 1.0, 3, 3))
    report = Report(table.name, start, (1,), rows=10, bytes_ingested=10, bytes_written=30, merge_lag_batches=1)
    telemetry(BatchCommitted(report))
    summary = {
        "operation": "overwrite",
        **dict.fromkeys(("added-delete-files", "removed-delete-files", "added-dvs", "removed-dvs"), "1"),
        **dict.fromkeys(("deleted-records", "removed-files-size"), "1"),
    }
    telemetry(CommitEnded(table.name, "committed", 1.0, 1, 0, (summary,)))
    telemetry(JobFinished(table.name, Report(table.name)))


def test_prometheus_has_what_the_page_lists(query: Query, telemetry: tuple[Telemetry, int], tmp_path: Path) -> None:
    """Prometheus has each metric under the name in docs/monitoring.md, and each panel of the dashboard draws one."""
    catalog = sqlite_catalog(tmp_path)
    make_table(catalog)
    environment = Environment(observe=telemetry[0])
    table = icesize.open(None, "lake.db.t", catalog=catalog, environment=environment)
    work(table, catalog, telemetry[0], 0)
    names = listed()
    assert len(names) == len(METRICS)
    for metric, name in zip(sorted(metric.name for metric in METRICS), sorted(names), strict=True):
        assert name.startswith(metric.replace(".", "_"))
        # a histogram has no series of its own name
        series = f"{name}_count" if name.endswith("_milliseconds") else name
        assert until_found(query, series), f"{metric} is not {name}"
    work(table, catalog, telemetry[0], 1000)
    dashboard = json.loads((ROOT / "examples" / "grafana-dashboard.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            asked = target["expr"].replace("$__rate_interval", "1m").replace("$table", ".*")
            points = until_found(query, asked)
            assert any(point["value"][1] != "NaN" for point in points), f"{panel['title']}: {asked}"
    catalog.close()


def test_prometheus_understands_the_alert_rules(query: Query) -> None:
    """Each expression of the page is a query, and reads a metric of the page's table."""
    rules = yaml.safe_load(alert_rules())["groups"][0]["rules"]
    text = (DOCS / "monitoring.md").read_text(encoding="utf-8")
    assert [rule["alert"] for rule in rules] == re.findall(r"^\| `(Icesize\w+)`", text, re.MULTILINE)
    metrics = set(listed())
    for rule in rules:
        query(rule["expr"])
        read = set(re.findall(r"\b(ice\w+?)(?:_sum|_count)?(?=[{\[ ])", rule["expr"]))
        assert len(read) > 0, rule["alert"]
        assert read <= metrics, rule["alert"]


def test_alerts_fire_at_the_first_event(tmp_path: Path) -> None:
    """A driver that died is an alert although its series end, and so is the first commit with an unknown outcome."""
    program = installed("promtool")
    (tmp_path / "rules.yml").write_text(alert_rules())
    tests = []
    for alert, name, labels, values, fires in SCENES:
        pairs = ", ".join(f'{key}="{value}"' for key, value in labels.items())
        series = f"{name}{{{pairs}}}"
        expected = [{"exp_labels": {**labels, "severity": "page"}}]
        checks = [
            {"alertname": alert, "eval_time": at, "exp_alerts": expected if firing else []}
            for at, firing in fires.items()
        ]
        inputs = [{"series": series, "values": values}]
        tests.append({"interval": "1m", "input_series": inputs, "alert_rule_test": checks})
    (tmp_path / "tests.yml").write_text(json.dumps({"rule_files": ["rules.yml"], "tests": tests}))
    done = subprocess.run(
        [program, "test", "rules", tmp_path / "tests.yml"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
