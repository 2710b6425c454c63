"""An overloaded object store, on a real S3 server behind a proxy that answers for it; executors write there too."""

from __future__ import annotations

import re
from collections import Counter
from datetime import timedelta

import pytest

from icesize.environment import Environment
from icesize.errors import IcesizeError
from icesize.storage import table_storage
from icesize.storage.kept_files import KeptFiles
from integration.s3_faulted_table import Network, S3Story
from integration.s3_proxy import Trouble
from tests.support.spark_lake import events

TRIES = 11
"""How often the client sends a request that a store rejects for now."""

ALWAYS = 10**6
ROWS = [events(range(90 * n, 90 * n + 90), hours=3) for n in range(5)]


@pytest.fixture
def faulted(far_away: S3Story) -> S3Story:
    """A table in an S3 server that icesize reaches by a network with troubles."""
    return far_away


@pytest.fixture(params=["driver", pytest.param("executors", marks=pytest.mark.slow)])
def writer(request: pytest.FixtureRequest, faulted: S3Story) -> str:
    """Who writes the batches."""
    if request.param == "executors":
        faulted.without_driver()
    return str(request.param)


def write(faulted: S3Story, batches: range) -> None:
    sink = faulted.sized().sink("s", query_id="q", listener=faulted.reports.append)
    for number in batches:
        sink.run(faulted.batch(ROWS[number]), number)
        faulted.expect(ROWS[number])


def tries(network: Network) -> list[int]:
    """How often each thing was asked that was refused at least once."""
    refused = {(method, path) for method, path, trouble in network.http.seen() if trouble}
    return list(Counter((m, path) for m, path, _ in network.http.seen() if (m, path) in refused).values())


@pytest.mark.fault(29)
def test_a_store_that_is_overloaded_now_and_then(faulted: S3Story, network: Network, writer: str) -> None:
    """A store that sometimes responds 503 SlowDown only slows a batch: requests are retried, and the batch is committed
    once."""
    write(faulted, range(3))
    slow = [Trouble("slow-down", "PUT", 2), Trouble("slow-down", "GET", 2)]
    network.http.trouble(*slow)
    write(faulted, range(3, 4))
    assert sum(trouble != "" for _, _, trouble in network.http.seen()) == 4
    assert faulted.operations() == ["append"] * 4 + ["replace"]
    assert faulted.leftovers() == set()


@pytest.mark.fault(29)
def test_a_store_that_takes_nothing(faulted: S3Story, network: Network, writer: str) -> None:
    """A store that rejects every upload fails the batch after eleven attempts; nothing is visible, and later the batch
    succeeds."""
    write(faulted, range(2))
    before = faulted.table().metadata
    network.http.trouble(Trouble("slow-down", "PUT", ALWAYS))
    with pytest.raises(IcesizeError, match="SlowDown"):
        write(faulted, range(2, 3))
    assert max(tries(network)) == TRIES
    network.heal()
    assert faulted.table().metadata == before
    assert faulted.leftovers() == set()
    write(faulted, range(2, 4))


@pytest.mark.fault(29)
def test_a_store_that_gives_no_data_files(faulted: S3Story, network: Network, writer: str) -> None:
    """Small files that an overloaded store does not return stay unmerged; the rows are committed, and the report names
    the merge."""
    write(faulted, range(3))
    network.http.trouble(Trouble("slow-down", "GET", ALWAYS, path=r"\.parquet"))
    write(faulted, range(3, 4))
    assert max(tries(network)) <= TRIES
    network.heal()
    assert faulted.operations() == ["append"] * 4
    notes = faulted.reports[-1].notes
    assert any(re.search(r"dropped.*SlowDown", note) for note in notes), notes
    assert faulted.leftovers() == set()


@pytest.mark.fault(29)
def test_a_store_that_gives_no_metadata(faulted: S3Story, network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    """While manifests cannot be read, nothing is written, and the error gives the reason."""
    write(faulted, range(2))
    before = faulted.sizes()
    # as in another process, which has read none of them
    monkeypatch.setattr(table_storage, "KEPT_FILES", KeptFiles())
    network.http.trouble(Trouble("slow-down", "GET", ALWAYS, path=r"\.avro"))
    with pytest.raises(IcesizeError, match="SlowDown"):
        write(faulted, range(2, 3))
    network.heal()
    assert faulted.sizes() == before
    write(faulted, range(2, 3))


@pytest.mark.fault(29)
@pytest.mark.parametrize(
    "properties",
    [
        pytest.param({}, id="client"),
        pytest.param({"py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO"}, id="fsspec", marks=pytest.mark.slow),
    ],
)
def test_a_store_that_deletes_nothing(faulted: S3Story, network: Network, properties: dict[str, str]) -> None:
    """Files that an overloaded store does not delete are counted; the snapshots expire, and the next expiry deletes the
    files."""
    faulted.catalog.properties.update(properties)
    write(faulted, range(4))
    faulted.sized().compact()
    # one request for many files, or one for each
    every = [Trouble("slow-down", "POST", ALWAYS, path=r"\?delete"), Trouble("slow-down", "DELETE", ALWAYS)]
    network.http.trouble(*every)
    # the client of the store has pauses of its own, so that five minutes of ours must be few attempts
    time = faulted.time
    hasty = Environment(monotonic=lambda: time.seconds, sleep=lambda seconds: time.sleep(100 * seconds))
    first = faulted.sized_at(hasty).expire_snapshots(keep_versions=1, older_than=timedelta(0))
    assert first.files_failed > 0
    assert first.files_deleted == {}
    network.heal()
    second = faulted.sized().expire_snapshots(keep_versions=1, older_than=timedelta(0))
    assert sum(second.files_deleted.values()) == first.files_failed
    assert faulted.leftovers() == set()
