"""Catalogs are found from Spark's settings or PyIceberg's, and what is missing or unfit is told in a sentence."""

from __future__ import annotations

import json
import re
import socket
import time
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import requests
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import load_file_io
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

from icesize.errors import TableError, TableNotFound, UnsupportedTable
from icesize.storage.credentials import Credentials
from icesize.storage.store_settings import StoreSettings, store_settings
from icesize.table.catalog import opening
from tests.support.rest_faults import Fault
from tests.support.rest_server import MiniRest
from tests.support.tables import SCHEMA, append, ids_of, local, make_table, spec_of, sqlite_catalog
from tests.support.v3_tables import with_document

SECRET = "s3cr3t@/:%x"


def mapped(**settings: str) -> dict[str, str]:
    """Properties of Spark's catalog `lake` with these settings; `__` stands for `.`, `_` for `-`."""
    conf = {f"spark.sql.catalog.lake.{k.replace('__', '.').replace('_', '-')}": v for k, v in settings.items()}
    return opening.pyiceberg_properties("lake", {"spark.sql.catalog.lake": "SparkCatalog", **conf})


@pytest.mark.parametrize("parameter", ["useSSL=true", "sslMode=VERIFY_CA", "trustCertificateTlsOnly=true"])
def test_encryption_that_cannot_be_translated_is_refused(parameter: str) -> None:
    """A connection is not opened in the clear if the address asks for encryption."""
    with pytest.raises(UnsupportedTable, match=f"cannot translate '{parameter.partition('=')[0]}'"):
        mapped(type="jdbc", uri=f"jdbc:mysql://h/d?{parameter}")


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({"type": "rest"}, "rest"),
        ({"type": "hive"}, "hive"),
        ({"type": "glue"}, "glue"),
        ({"type": "jdbc", "uri": "jdbc:sqlite:/x.db"}, "sql"),
        ({"catalog_impl": "org.apache.iceberg.rest.RESTCatalog"}, "rest"),
        ({"catalog_impl": "org.apache.iceberg.hive.HiveCatalog"}, "hive"),
        ({"catalog_impl": "org.apache.iceberg.aws.glue.GlueCatalog"}, "glue"),
        ({"catalog_impl": "org.apache.iceberg.jdbc.JdbcCatalog", "uri": "jdbc:sqlite:/x.db"}, "sql"),
        ({}, "hive"),
    ],
)
def test_catalog_types_are_mapped(settings: dict[str, str], kind: str) -> None:
    """Type or implementation class choose PyIceberg's type; none is Hive, as in Iceberg."""
    assert mapped(**settings)["type"] == kind


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("jdbc:sqlite:/data/c.db", "sqlite:////data/c.db"),
        ("jdbc:sqlite:c.db", "sqlite:///c.db"),
        ("jdbc:sqlite:file:/data/c.db?journal_mode=WAL", "sqlite:////data/c.db"),
        ("jdbc:postgresql://h:5432/d", "postgresql+psycopg2://me:s3cr3t%40%2F%3A%25x@h:5432/d"),
        ("jdbc:postgresql://h/d?sslmode=require", "postgresql+psycopg2://me:s3cr3t%40%2F%3A%25x@h/d?sslmode=require"),
        ("jdbc:mysql://h/d", "mysql+pymysql://me:s3cr3t%40%2F%3A%25x@h/d"),
        ("jdbc:mariadb://h/d", "mysql+pymysql://me:s3cr3t%40%2F%3A%25x@h/d"),
        (
            "jdbc:mysql://h/d?useSSL=false&allowPublicKeyRetrieval=true&serverTimezone=UTC",
            "mysql+pymysql://me:s3cr3t%40%2F%3A%25x@h/d",
        ),
        ("jdbc:postgresql://h/d?ssl=false", "postgresql+psycopg2://me:s3cr3t%40%2F%3A%25x@h/d"),
        (
            "jdbc:postgresql://h/d?ssl=true&currentSchema=x&loadBalanceHosts=true",
            "postgresql+psycopg2://me:s3cr3t%40%2F%3A%25x@h/d?sslmode=verify-full&options=-csearch_path%3Dx",
        ),
        ("jdbc:postgresql://h/d?user=you&password=no", "postgresql+psycopg2://me:s3cr3t%40%2F%3A%25x@h/d"),
    ],
)
def test_jdbc_addresses_become_sqlalchemy_ones(uri: str, expected: str) -> None:
    """Both sides then share one database; user and password are encoded, and no `jdbc.` key is left over."""
    properties = mapped(type="jdbc", uri=uri, jdbc__user="me", jdbc__password=SECRET, jdbc__schema_version="V1")
    assert properties == {"type": "sql", "uri": expected}


def test_names_that_differ_are_translated_and_the_rest_is_kept() -> None:
    """Same keys stay, REST's signing keys and path style are renamed, Java-only keys go."""
    properties = mapped(
        type="rest", uri="http://h", warehouse="w", token="t", credential="c", scope="s", prefix="p",
        header__X_A="1", rest__sigv4_enabled="true", rest__signing_region="eu", rest__access_key_id="a",
        rest__secret_access_key="b", rest__session_token="d", io_impl="org.apache.iceberg.aws.s3.S3FileIO",
        s3__endpoint="http://s3", s3__path_style_access="false", client__region="eu",
        client__assume_role__arn="arn", cache_enabled="false", cache__expiration_interval_ms="0",
        default_namespace="db",
    )  # fmt: skip
    assert properties == {
        "type": "rest", "uri": "http://h", "warehouse": "w", "token": "t", "credential": "c", "scope": "s",
        "prefix": "p", "header.X-A": "1", "rest.sigv4-enabled": "true", "rest.signing-region": "eu",
        "client.access-key-id": "a", "client.secret-access-key": "b", "client.session-token": "d",
        "s3.endpoint": "http://s3", "s3.force-virtual-addressing": "true", "client.region": "eu",
        "client.role-arn": "arn",
    }  # fmt: skip


def test_path_style_needs_no_setting() -> None:
    """PyArrow uses path style with an endpoint by itself."""
    assert mapped(type="rest", s3__path_style_access="true") == {"type": "rest"}


@pytest.mark.parametrize(("kind", "left"), [("oauth2", {}), ("none", {}), ("sigv4", {"rest.sigv4-enabled": "true"})])
def test_authentication_that_pyiceberg_finds_by_itself(kind: str, left: dict[str, str]) -> None:
    """OAuth 2 and SigV4 are chosen by their other properties."""
    assert mapped(type="rest", rest__auth__type=kind) == {"type": "rest", **left}


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"type": "hadoop"}, "its type is 'hadoop'; a path-based catalog has no atomic commit; use a REST, JDBC"),
        ({"catalog_impl": "org.apache.iceberg.hadoop.HadoopCatalog"}, "its type is 'hadoop'"),
        ({"type": "nessie"}, "use Nessie's Iceberg REST endpoint: type=rest"),
        ({"catalog_impl": "org.apache.iceberg.nessie.NessieCatalog"}, "its type is 'nessie'"),
        ({"type": "unity"}, "does not support the type 'unity'; pass a PyIceberg catalog object"),
        ({"catalog_impl": "com.example.Mine"}, "does not support the type 'com.example.Mine'"),
        ({"type": "rest", "rest__auth__type": "basic", "token": SECRET}, "'rest.auth.type' is 'basic'; pass a PyIc"),
    ],
)
def test_what_pyiceberg_cannot_open_is_refused(settings: dict[str, str], sentence: str) -> None:
    """A sentence says what to use instead, and holds no credentials."""
    with pytest.raises(UnsupportedTable) as raised:
        mapped(**settings)
    assert sentence in str(raised.value)
    assert SECRET not in str(raised.value)


def test_an_unknown_spark_catalog_names_the_nearest() -> None:
    """A misspelt catalog is told with the one that was meant."""
    conf = {"spark.sql.catalog.lake": "x", "spark.sql.catalog.lake.uri": "u", "spark.sql.catalogImplementation": "y"}
    with pytest.raises(
        TableNotFound, match=r"Spark has no setting 'spark\.sql\.catalog\.lakes'; did you mean 'lake'\?"
    ):
        opening.pyiceberg_properties("lakes", conf)


@pytest.mark.parametrize(
    ("name", "places"),
    [
        ("nowhere", ".pyiceberg.yaml, PYICEBERG_CATALOG__NOWHERE__URI, or --catalog-uri"),
        ("not-there", ".pyiceberg.yaml, PYICEBERG_CATALOG__NOT_THERE__URI, or --catalog-uri"),
        ("not_there", ".pyiceberg.yaml, or --catalog-uri"),
    ],
)
def test_an_unknown_configured_catalog_says_where_it_was_looked_for(name: str, places: str) -> None:
    """Without Spark, the message has the places of PyIceberg's configuration, and the variable if one can work."""
    with pytest.raises(TableNotFound, match=re.escape(f"({places})")):
        opening.open_catalog(name)


@pytest.mark.parametrize(
    "properties",
    [
        {"type": "sql", "uri": f"nonsense {SECRET}"},
        {"type": "sql", "uri": f"nosuchdialect://me:{SECRET}@h/d"},
        {"uri": f"mysql+nosuch://me:{SECRET}@h/d"},
        {"type": "rest", "token": SECRET},
        {"type": "rest", "uri": "http://127.0.0.1:1", "credential": SECRET},
        {"type": "nope", "token": SECRET},
    ],
)
def test_a_catalog_that_cannot_be_opened_tells_no_secret(properties: dict[str, str]) -> None:
    """Whatever library fails, one sentence comes, without credentials in it or in what it is chained to."""
    with pytest.raises(TableError, match="Cannot open catalog 'lake': ") as raised:
        opening.open_catalog("lake", properties)
    assert SECRET not in str(raised.value)
    assert "\n" not in str(raised.value)
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__


def test_a_jdbc_catalog_of_spark_opens_the_same_tables(tmp_path: Path) -> None:
    """The mapped SQLite address and the same catalog name find what another client created."""
    mine = sqlite_catalog(tmp_path)
    make_table(mine)
    append(mine, [1])
    theirs = opening.open_catalog("lake", mapped(type="jdbc", uri=f"jdbc:sqlite:{tmp_path}/catalog.db"))
    assert ids_of(theirs) == [1]
    theirs.close()
    mine.close()


def test_calls_without_an_answer_end(mini: MiniRest) -> None:
    """Every HTTP call of a catalog has a timeout; setting it twice keeps the first."""
    catalog = opening.with_timeout(opening.with_timeout(mini.catalog("lake"), 0.2), 500.0)
    table = make_table(catalog)
    mini.fail_next_commit(Fault("hang"))
    began = time.monotonic()
    with pytest.raises(requests.ReadTimeout):
        table.transaction().set_properties({"a": "b"}).commit_transaction()
    assert time.monotonic() - began < 100


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("lake.db.t", ("lake", ("db", "t"))),
        ("lake.a.b.t", ("lake", ("a", "b", "t"))),
        ("`lake`.`db`.t", ("lake", ("db", "t"))),
    ],
)
def test_names_are_split(name: str, parts: tuple[str, tuple[str, ...]]) -> None:
    """Catalog first, then namespaces of any depth; backticks as in Spark."""
    assert opening.split_name(name) == parts


@pytest.mark.parametrize("name", ["t", "db.t", "lake..t", ""])
def test_short_names_are_refused(name: str) -> None:
    """A name without a catalog or a namespace is told what is expected."""
    with pytest.raises(TableNotFound, match=r"expected CATALOG\.NAMESPACE\.TABLE"):
        opening.split_name(name)


def test_names_in_a_given_catalog(lake: SqlCatalog) -> None:
    """With a catalog object its name may be given or left out."""
    assert opening.namespace_and_table(lake, "db.t") == ("db", "t")
    assert opening.namespace_and_table(lake, "lake.db.t") == ("db", "t")
    assert opening.namespace_and_table(lake, "other.db.t") == ("other", "db", "t")
    with pytest.raises(TableNotFound, match=r"expected NAMESPACE\.TABLE"):
        opening.namespace_and_table(lake, "t")


def test_a_missing_table_names_the_nearest(lake: SqlCatalog) -> None:
    """A misspelt table is told with the one that was meant; a far one with those that there are, up to ten."""
    make_table(lake, name="db.events")
    with pytest.raises(TableNotFound, match=r"Cannot find table 'lake\.db\.event'; did you mean 'events'\?"):
        opening.load_table(lake, ("db", "event"))
    with pytest.raises(TableNotFound, match=r"'lake\.db\.zzz'; 'db' has events$"):
        opening.load_table(lake, ("db", "zzz"))
    for number in range(10):
        make_table(lake, name=f"db.a{number}")
    with pytest.raises(TableNotFound, match=r"'db' has a0, a1, .*, a9 and others$"):
        opening.load_table(lake, ("db", "zzz"))


def test_why_nobody_answers_is_told() -> None:
    """The reason, and not how often it was tried."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # nobody listens
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(TableError) as raised:
            opening.open_catalog("lake", {"type": "rest", "uri": uri})
    assert str(raised.value).startswith("Cannot open catalog 'lake': ConnectionError: ")
    assert str(raised.value).endswith("Connection refused")


def test_a_missing_namespace_is_told(mini: MiniRest) -> None:
    """The part that does not exist is named."""
    with pytest.raises(TableNotFound, match="there is no namespace 'nope'"):
        opening.load_table(mini.catalog("lake"), ("nope", "t"))


def test_a_namespace_is_no_table(lake: SqlCatalog) -> None:
    """The message has the pattern that selects its tables."""
    lake.create_namespace("db.eu")
    lake.create_table("db.eu.events", Schema())
    with pytest.raises(TableNotFound, match=r"'lake\.db\.eu': it is a namespace; 'lake\.db\.eu\.\*' names its tables"):
        opening.load_table(lake, ("db", "eu"))


def test_a_catalog_that_may_not_be_listed_still_says_not_found(lake: SqlCatalog) -> None:
    """The nearest name is a courtesy: without the right to list, the sentence comes without it."""

    class NoListing(SqlCatalog):
        def list_tables(self, *_: Any) -> Any:
            raise PermissionError("may not list")

    catalog = NoListing("lake", **lake.properties)
    with pytest.raises(TableNotFound, match=r"Cannot find table 'lake\.db\.t'$"):
        opening.load_table(catalog, ("db", "t"))
    catalog.close()


def test_a_view_is_refused(lake: SqlCatalog) -> None:
    """A view under the name is told as such."""

    class WithView(SqlCatalog):
        def view_exists(self, *_: Any) -> bool:
            return True

    catalog = WithView("lake", **lake.properties)
    with pytest.raises(UnsupportedTable, match=r"Cannot open 'lake\.db\.v': it is a view"):
        opening.load_table(catalog, ("db", "v"))
    catalog.close()


def table_with(lake: SqlCatalog, **properties: str) -> Table:
    return make_table(lake, properties={k.replace("_", "-").replace("--", "."): v for k, v in properties.items()})


@pytest.mark.parametrize(
    ("properties", "conf", "sentence"),
    [
        ({"write__wap__enabled": "true"}, {"spark.wap.id": "7"}, "sets 'spark.wap.id'; set 'spark.wap.branch' to a"),
        ({"encryption__key_id": "k"}, {}, "the table is encrypted"),
    ],
)
def test_tables_that_cannot_be_written_safely_are_refused(
    lake: SqlCatalog, properties: dict[str, str], conf: dict[str, str], sentence: str
) -> None:
    """Staged commits and encryption: one sentence each."""
    with pytest.raises(UnsupportedTable, match=sentence):
        opening.check_supported(table_with(lake, **properties), conf)


def test_later_format_versions_are_refused(lake: SqlCatalog) -> None:
    """Format v3 passes; a version that does not exist yet does not."""
    v3 = new_table_metadata(SCHEMA, spec_of({}), UNSORTED_SORT_ORDER, "file:///x", {"format-version": "3"})
    table = Table(("db", "t"), v3, "file:///x/v1.metadata.json", load_file_io(), lake)
    opening.check_supported(table)
    table.metadata = v3.model_copy(update={"format_version": 4})
    with pytest.raises(UnsupportedTable, match=r"'db\.t': its format version is 4; icesize writes versions 1 to 3"):
        opening.check_supported(table)


def test_plain_tables_are_supported(lake: SqlCatalog) -> None:
    """Format v1 and v2 pass, also with settings that only look like the refused ones."""
    plain = table_with(lake, format_version="1", write__wap__enabled="false")
    for conf in ({"spark.wap.id": "7"}, {"spark.wap.branch": "audit"}):
        assert opening.check_supported(plain, conf) is None  # type: ignore[func-returns-value]


NANOSECOND = "2024-01-01T00:00:00.123456789"
VARIANTS: list[dict[str, Any]] = [
    {"type": "list", "element-id": 91, "element": "variant", "element-required": False},
    {"type": "struct", "fields": [{"id": 91, "name": "x", "type": "variant", "required": False}]},
]
UNREADABLE: list[tuple[dict[str, Any], str]] = [
    ({"type": "variant"}, "schemas.0.fields.3.type' in its metadata: Value error, Unsupported field type: 'variant'"),
    ({"type": "geometry(srid:3857)"}, "a column: Could not parse geometry(srid:3857) into a GeometryType"),
    (
        {"type": "timestamp_ns", "initial-default": NANOSECOND},
        f"a column: Cannot deserialize bytes, type timestamp_ns not supported: {NANOSECOND}",
    ),
    (
        {"type": VARIANTS[0]},
        "schemas.0.fields.3.type.element' in its metadata: Value error, Type not recognized: variant",
    ),
    (
        {"type": VARIANTS[1]},
        "schemas.0.fields.3.type.fields.0.type' in its metadata: Value error, Unsupported field type: 'variant'",
    ),
    (
        {"type": {"type": "struct", "fields": []}, "write-default": {}},
        "a column: Cannot deserialize bytes, type struct<> not supported: {}",
    ),
]


def test_vended_credentials_are_renewed(mini: MiniRest) -> None:
    """A client of a loaded table gets newer ones by another load."""
    catalog = mini.catalog()
    catalog.create_table("db.t", SCHEMA)
    answer, loads = json.loads(mini.load(("db", "t"))), count(1)
    answer["metadata"]["location"] = location = "s3://b/t"

    def load(table: object) -> bytes:
        keys = {"s3.access-key-id": "k", "s3.secret-access-key": "s", "s3.region": "x"}
        vended = {"s3.session-token": f"token-{next(loads)}", "s3.session-token-expires-at-ms": "1000"}
        return json.dumps({**answer, "config": {**keys, **vended}}).encode()

    mini.load = load  # type: ignore[method-assign]
    settings = store_settings(location, opening.load_table(catalog, ("db", "t")).io.properties)
    assert isinstance(settings, StoreSettings)
    assert [Credentials(settings)()["token"] for _ in range(2)] == ["token-2", "token-3"]


@pytest.mark.parametrize(("column", "why"), UNREADABLE)
@pytest.mark.parametrize("kind", ["sql", "rest"])
def test_a_column_that_pyiceberg_cannot_read_makes_the_table_unsupported(
    lake: SqlCatalog, tmp_path: Path, kind: str, column: dict[str, Any], why: str
) -> None:
    """The message names the table, the type, and the place if PyIceberg knows it."""

    def changed(document: dict[str, Any]) -> None:
        document["schemas"][-1]["fields"].append({"id": 90, "name": "v", "required": False, **column})

    with MiniRest(tmp_path) as mini:
        catalog: Catalog = lake if kind == "sql" else mini.catalog()
        if kind == "sql":
            make_table(lake)
            with suppress(Exception):  # PyIceberg loads what it registers, each time with another kind of error
                with_document(lake, changed)
        else:
            catalog.create_namespace("db")
            catalog.create_table("db.t", SCHEMA)
            answer = json.loads(mini.load(("db", "t")))
            changed(answer["metadata"])
            mini.load = lambda table: json.dumps(answer).encode()  # type: ignore[method-assign]
        with pytest.raises(UnsupportedTable) as caught:
            opening.load_table(catalog, ("db", "t"))
    message = str(caught.value)
    assert message.startswith(f"Cannot open '{catalog.name}.db.t': PyIceberg cannot read ")
    assert message.endswith(why)


def test_metadata_that_pyiceberg_cannot_read(lake: SqlCatalog) -> None:
    """A missing field, another format version and a file that is cut off are named, not the classes of a parser."""
    location = make_table(lake).metadata_location
    document = json.loads(local(location).read_text())
    for text, kind, why in (
        (json.dumps(document | {"format-version": 4}), UnsupportedTable, "its format version is 4; PyIceberg reads "
         "versions 1 to 3"),
        (json.dumps(document)[:200], TableError, "its metadata file is cut off or damaged"),
        (json.dumps({k: v for k, v in document.items() if k != "location"}), TableError, "PyIceberg cannot read "
         "'2.location' in its metadata"),
    ):  # fmt: skip
        local(location).write_text(text)
        with pytest.raises(kind) as caught:
            opening.load_table(lake, ("db", "t"))
        assert str(caught.value) == f"Cannot open 'lake.db.t': {why}"
        assert type(caught.value) is kind


def test_tables_of_one_state_share_its_metadata(lake: SqlCatalog) -> None:
    """Two loads of a large table need the memory of one; a commit, and a table in the same place, are new states."""
    make_table(lake)
    first, second = (opening.load_table(lake, ("db", "t")) for _ in range(2))
    assert first.metadata is second.metadata
    append(lake, [1], "a")
    third = opening.load_table(lake, ("db", "t"))
    assert third.metadata is not first.metadata
    assert (len(third.metadata.snapshots), len(first.metadata.snapshots)) == (1, 0)
    # a catalog may respond with the snapshots of refs only, or without the location
    part = third.metadata.model_copy(update={"snapshots": [], "snapshot_log": []})
    assert opening.shared_metadata(third.metadata_location, part) is part
    assert opening.shared_metadata(None, part) is part
    location = Path(third.metadata_location.removeprefix("file://"))
    location.write_text(location.read_text().replace(str(third.metadata.table_uuid), str(UUID(int=7))))
    assert opening.load_table(lake, ("db", "t")).metadata.table_uuid == UUID(int=7)
