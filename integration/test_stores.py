"""Tables in S3 (versitygw), Azure (Azurite) and Google Cloud Storage: bytes, names, requests, errors, and a story.

Google's client speaks the XML API, which no emulator has, so it is tried against a stand-in. The emulator has the JSON
API, which PyIceberg's FileIO speaks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import ManifestContent

import icesize
from icesize.environment import Environment
from icesize.errors import RewriteFailed
from icesize.storage.kept_files import KeptFiles
from icesize.storage.object_store import PART_BYTES, ObjectStore
from icesize.storage.store_settings import StoreSettings
from icesize.storage.stores import StoreSettingsError
from icesize.storage.table_storage import STORAGE, Storage
from icesize.table.cleanup.orphans import DAY_MS
from integration.cloud_stores import BUCKET, STORES, CloudStore
from integration.go_tools import GoToolUnavailableError
from integration.s3_proxy import Trouble
from tests.support.tables import append, arrow, ids_of, make_table, referenced_metadata, write

ALWAYS = 10**6
ODD = ("k=a b/x", "k=a%2Fb+c/x", "k=ü€/x", "k=a'b;c&d=e/x", "k=*[a]/x", "k=~!$(),-_./x", "k=a:b@c/x", 'k={"q"}/x')
SLOW = pytest.mark.slow


def started(kind: str, folder: Path) -> Iterator[CloudStore]:
    try:
        with STORES[kind](folder) as store:
            yield store
    except GoToolUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module", params=["s3", pytest.param("azure", marks=SLOW), pytest.param("gcs-xml", marks=SLOW)])
def direct(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CloudStore]:
    """Each store that the client reaches."""
    yield from started(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module", params=["s3", pytest.param("azure", marks=SLOW), pytest.param("gcs", marks=SLOW)])
def cloud(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CloudStore]:
    """Each store, as PyIceberg's properties reach it."""
    yield from started(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture
def store(direct: CloudStore) -> ObjectStore:
    """The store of an empty bucket."""
    direct.proxy.trouble()
    if direct.root.startswith("gs"):
        config = ("base_url", direct.proxy.endpoint), ("bearer_token", "x")
        return ObjectStore(StoreSettings("gs", BUCKET, config, (("allow_http", True),)), KeptFiles())
    found = direct.storage().store(f"{direct.root}/t")
    assert isinstance(found, ObjectStore)
    return found


@pytest.fixture
def root(direct: CloudStore, request: pytest.FixtureRequest) -> str:
    """A location of this test's own."""
    return f"{direct.root}/{request.node.originalname}"


def put(store: ObjectStore, location: str, data: bytes = b"123") -> None:
    with store.create(location) as stream:
        stream.write(data)


def kind_of(store: CloudStore) -> str:
    return store.root.partition(":")[0]


@pytest.mark.parametrize("size", [0, 1, PART_BYTES + 1, 20 * 2**20])
def test_bytes_come_back(direct: CloudStore, store: ObjectStore, root: str, size: int) -> None:
    """One request writes up to 8 MiB and one reads any object; larger ones are written in parts."""
    data, location = os.urandom(size), f"{root}/{size}"
    put(store, location, data)
    parts = -(-size // PART_BYTES)
    blocks = {"PUT": parts + 1} if kind_of(direct) == "abfss" else {"PUT": parts, "POST": 2}
    assert direct.requests() == ({"PUT": 1} if size <= PART_BYTES else blocks)
    assert store.read(location) == data
    assert direct.requests() == {"GET": 1}
    assert store.inspect(location).size_bytes == size
    assert direct.requests() == {"HEAD": 1}
    assert store.read_range(location, size // 2, 7) == data[size // 2 :][:7]
    with store.open(location) as stream:
        assert stream.read() == data


def test_names_and_listings(store: ObjectStore, root: str) -> None:
    """Each odd name is read, copied and listed as it was written, with size and time; `t2` is not below `t`."""
    for name in (*ODD, "a", "empty"):
        put(store, f"{root}/t/{name}", b"" if name == "empty" else name.encode())
    put(store, f"{root}/t2/other")
    found = {each.location.removeprefix(f"{root}/t/"): each for each in store.list(f"{root}/t/")}
    assert {name: each.size_bytes for name, each in found.items()} == {
        name: len(name.encode()) for name in (*ODD, "a")
    } | {"empty": 0}
    for name in ODD:
        store.copy(f"{root}/t/{name}", f"{root}/copy/{name}")
        assert store.read(f"{root}/copy/{name}") == name.encode()
        assert store.inspect(f"{root}/t/{name}").modified_ms == found[name].modified_ms
    assert {each.location for each in store.list(f"{root}/t/k=a b")} == {f"{root}/t/k=a b/x"}
    assert store.delete([f"{root}/t/{name}" for name in ODD]) == {}
    assert {each.location for each in store.list(f"{root}/t")} == {f"{root}/t/a", f"{root}/t/empty"}


def test_many_names_are_listed_and_deleted(direct: CloudStore, store: ObjectStore, root: str) -> None:
    """S3 deletes 1,000 objects by one request and Azure 256; Google Cloud Storage deletes one."""
    names = [f"{root}/{number:04}" for number in range(1_003)]
    for name in names:
        put(store, name, b"1")
    direct.requests()
    assert [each.location for each in store.list(root)] == names
    assert sum(direct.requests().values()) in (1, 2)  # Azure answers up to 5,000 names
    wanted: dict[str, dict[str, int]] = {"s3": {"POST": 2}, "abfss": {"POST": 4}, "gs": {"DELETE": 1_003}}
    for first in range(0, len(names), store.deletes_at_once):
        assert store.delete(names[first : first + store.deletes_at_once]) == {}
    assert direct.requests() == wanted[kind_of(direct)]
    with pytest.raises(FileNotFoundError):
        list(store.list(root))


def test_missing_objects(direct: CloudStore, store: ObjectStore, root: str) -> None:
    """They are missing by each way to them, and count as deleted beside others that are deleted."""
    for look in (store.read, store.inspect, store.open, lambda location: list(store.list(location))):
        with pytest.raises(FileNotFoundError, match=f"{root}/none does not exist"):
            look(f"{root}/none")
    with pytest.raises(FileNotFoundError):
        store.copy(f"{root}/none", f"{root}/copy")
    for name in "abc":
        put(store, f"{root}/{name}")
    assert store.delete([f"{root}/{name}" for name in ("none", "a", "neither", "b")]) == {}
    assert store.delete([f"{root}/a"]) == {}
    assert [each.location for each in store.list(root)] == [f"{root}/c"]


@pytest.mark.parametrize("kind", ["slow-down", "drop", "cut"])
def test_troubles_pass(direct: CloudStore, store: ObjectStore, root: str, kind: Any) -> None:
    """Requests that the store rejects twice, whose answers are lost, or whose bodies end early, are repeated."""
    data = os.urandom(100_000)
    whole = {"slow-down": "before", "drop": "after", "cut": "before"}[kind]
    methods = ("GET",) if kind == "cut" else ("GET", "PUT")
    direct.proxy.trouble(*(Trouble(kind, method, 2, whole) for method in methods))  # type: ignore[arg-type]
    put(store, f"{root}/{kind}", data)
    assert store.read(f"{root}/{kind}") == data
    assert [trouble for _, _, trouble in direct.proxy.seen() if trouble] == [f"{kind} {whole}"] * 2 * len(methods)


@pytest.mark.parametrize(
    ("trouble", "error", "says"),
    [
        (Trouble("cut", "GET", ALWAYS), OSError, "GetObject of {root}/a failed: HTTP error"),
        (Trouble("slow-down", "GET", ALWAYS), OSError, r"SlowDown \(status code 503, after 10 retries\): Please"),
        (Trouble("slow-down", "GET", ALWAYS, status=400, code="ExpiredToken"), StoreSettingsError,
         r"{bucket} rejects the credentials, which have expired; renew them \(ExpiredToken\)"),
        (Trouble("slow-down", "GET", ALWAYS, status=403, code="InvalidAccessKeyId"), StoreSettingsError,
         r"{bucket} rejects the credentials; check '.*' \(InvalidAccessKeyId\)"),
        (Trouble("slow-down", "GET", ALWAYS, status=401, code="Other"), StoreSettingsError,
         r"{bucket} rejects the credentials; check '.*' \(401\)"),
        (Trouble("slow-down", "GET", ALWAYS, status=403, code="AccessDenied", message="No"), PermissionError,
         r"AccessDenied during GetObject of {root}/a: AccessDenied \(status code 403\): No"),
        (Trouble("slow-down", "GET", ALWAYS, status=301, code="PermanentRedirect"), StoreSettingsError,
         "{bucket} is in another region; set 's3.region'"),
    ],
    ids=lambda value: f"{value.kind}-{value.code}" if isinstance(value, Trouble) else "",
)  # fmt: skip
def test_troubles_that_stay(
    direct: CloudStore, store: ObjectStore, root: str, trouble: Trouble, error: type[OSError], says: str
) -> None:
    """One sentence names the store, the reason and what to do, without the pages of the client."""
    put(store, f"{root}/a", b"x" * 100_000)
    direct.proxy.trouble(trouble)
    with pytest.raises(error, match=says.format(root=root, bucket=direct.root)) as raised:
        store.read(f"{root}/a")
    assert (type(raised.value), raised.value.__cause__, "\n" in str(raised.value)) == (error, None, False)


WRONG = {
    "s3": [
        ({"s3_access_key_id": "nobody"}, "rejects the credentials; check 's3.access-key-id' and 's3.secret"),
        ({"s3_secret_access_key": "hidden-in-texts-17"}, "rejects the credentials; check 's3.access-key-id'"),
        ({"s3_region": "eu-west-1"}, "is in the region 'us-east-1'; set 's3.region'"),
    ],
    "abfss": [
        ({"adls_account_key": "hidden+in+texts+1700"}, "rejects the credentials; check 'adls.account-key' or"),
        ({"adls_account_key": "hidden-in-texts-17"}, "rejects the credentials; check 'adls.account-key' or"),
    ],
}  # fmt: skip


def test_wrong_settings(direct: CloudStore, store: ObjectStore, root: str) -> None:
    """Each verb raises the same error about wrong keys and regions, without the key, and nothing is changed."""
    put(store, f"{root}/a")
    for changed, says in WRONG.get(kind_of(direct), []):
        wrong = direct.storage(**changed).store(root)
        assert isinstance(wrong, ObjectStore)
        [failed] = wrong.delete([f"{root}/a"]).values()
        assert isinstance(failed, StoreSettingsError)
        for verb in (
            lambda store=wrong: store.read(f"{root}/a"), lambda store=wrong: store.inspect(f"{root}/a"),
            lambda store=wrong: put(store, f"{root}/a"), lambda store=wrong: list(store.list(root)),
            lambda store=wrong: put(store, f"{root}/a", bytes(PART_BYTES + 1)),
        ):  # fmt: skip
            with pytest.raises(StoreSettingsError, match=f"{direct.root} {says}") as raised:
                verb()
            assert "hidden" not in str(raised.value)
    assert store.read(f"{root}/a") == b"123"


def test_a_missing_bucket(direct: CloudStore, store: ObjectStore) -> None:
    """It is no missing file, by each verb: its files may all be there, behind another address."""
    if kind_of(direct) == "gs":
        pytest.skip("the settings of the stand-in have one bucket")
    other = direct.root.replace(BUCKET, "nolake", 1)
    gone = direct.storage().store(f"{other}/t")
    assert isinstance(gone, ObjectStore)
    for verb in (
        lambda: gone.read(f"{other}/t"), lambda: gone.inspect(f"{other}/t"), lambda: put(gone, f"{other}/t"),
        lambda: list(gone.list(f"{other}/t")), lambda: put(gone, f"{other}/t", bytes(PART_BYTES + 1)),
    ):  # fmt: skip
        with pytest.raises(StoreSettingsError, match=f"{other} does not exist; check the location of the table, and '"):
            verb()
    assert "/nolake/" not in [path for _, path, _ in direct.proxy.seen("PUT")], "a request for a new bucket"
    assert {type(error) for error in gone.delete([f"{other}/a", f"{other}/b"]).values()} == {StoreSettingsError}


@pytest.fixture
def lake(cloud: CloudStore, tmp_path: Path) -> Iterator[SqlCatalog]:
    """A catalog on the local disk, with its tables in the store."""
    cloud.proxy.trouble()
    settings = {"py-io-impl": STORAGE, "warehouse": f"{cloud.root}/{tmp_path.name}", **cloud.properties}
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/lake.db", **settings)
    catalog.create_namespace("db")
    yield catalog
    catalog.close()


def left_over(catalog: SqlCatalog) -> set[str]:
    """What is stored for the table, but is none of its files."""
    table = catalog.load_table("db.t")
    entries = (
        entry
        for snapshot in table.metadata.snapshots
        for manifest in snapshot.manifests(table.io)
        if manifest.content in (ManifestContent.DATA, ManifestContent.DELETES)
        for entry in manifest.fetch_manifest_entry(table.io)
    )
    needed = {entry.data_file.file_path for entry in entries} | referenced_metadata(table)
    stored = {each.location for each in Storage.of(table.io).list(table.location())}
    assert needed - stored == set()
    return {each for each in stored - needed if not each.endswith(".metadata.json")}


def test_a_story(cloud: CloudStore, lake: SqlCatalog) -> None:
    """Appends, compaction, upserts, expiry, orphans and a pass: rows are exact, and no object is left over."""
    table = make_table(lake)
    why = Storage.of(table.io).why_through_file_io(table.location())
    assert (why is None) == (kind_of(cloud) != "gs")
    for number in range(8):
        append(lake, [number])
    sized = icesize.open(None, "lake.db.t", catalog=lake, policy={"max-small-files": 3})
    assert (sized.compact().files_removed, ids_of(lake)) == (8, [*range(8)])
    for round_ in range(3):
        sized.upsert(arrow([0, 10 + round_]), key="id", order_by="ts", stream_id="s", batch_id=round_)
    assert sized.upsert(arrow([99]), stream_id="s", batch_id=2).already_committed
    rows = [*range(8), 10, 11, 12]
    assert ids_of(lake) == rows
    assert left_over(lake) == set()
    left = write(lake.load_table("db.t"), [9]).path
    far = Environment(now_ms=lambda: 10**5 * DAY_MS)
    found = icesize.open(None, "lake.db.t", catalog=lake, environment=far).remove_orphan_files()
    assert (found.files_found, found.examples) == (1, (left,))
    if cloud.server:
        cloud.server.age(BUCKET, 4 * 86_400)
        assert sized.remove_orphan_files(dry_run=False).files_deleted == 1
    else:
        Storage.of(lake.load_table("db.t").io).delete(left)
    expired = sized.expire_snapshots(older_than=timedelta(0), retain_last=1)
    assert expired.files_failed == 0
    assert expired.files_deleted["data_files"] >= 8
    assert (left_over(lake), ids_of(lake)) == (set(), rows)
    sized.maintain()
    assert sized.verify(deep=True).findings == ()
    assert ids_of(lake) == rows


def test_nothing_is_lost_with_wrong_credentials(cloud: CloudStore, lake: SqlCatalog) -> None:
    """A compaction with keys that the store rejects ends in one error, and the table stays as it was."""
    if kind_of(cloud) == "gs":
        pytest.skip("the emulator accepts all credentials")
    make_table(lake)
    for number in range(4):
        append(lake, [number])
    before = lake.load_table("db.t").metadata
    cloud.proxy.trouble(*(Trouble("slow-down", m, ALWAYS, status=400, code="ExpiredToken") for m in ("GET", "PUT")))
    with pytest.raises(RewriteFailed, match=f"{cloud.root} rejects the credentials, which have expired; renew them"):
        icesize.open(None, "lake.db.t", catalog=lake).compact()
    cloud.proxy.trouble()
    assert lake.load_table("db.t").metadata == before
    assert (ids_of(lake), left_over(lake)) == ([0, 1, 2, 3], set())
