"""No credential gets into a text, a file or a task: secrets are planted wherever they can be, and looked for."""

from __future__ import annotations

import json
import logging
import pickle
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, ForbiddenError, NoSuchTableError, RESTError
from pyiceberg.table import Table
from pyiceberg.typedef import Identifier
from pyspark import cloudpickle

import icesize
from icesize.cli.main import main
from icesize.environment import Environment
from icesize.errors import CommitConflict, IcesizeError, RewriteFailed, TableError
from icesize.parquet.files.settings import WriteSettings, storage_properties
from icesize.parquet.ordering.cluster_order import RowOrder
from icesize.parquet.rewriting.merge import merge
from icesize.planning.cluster_by import ClusterBy
from icesize.planning.files import PartitionKey
from icesize.planning.plan import MergeTask
from icesize.redaction import is_secret, redacted, remember_secrets, scrub
from icesize.spark.clustering.gather import Gather, cluster_alone
from icesize.spark.clustering.scatter import ScanKeys, Scatter
from icesize.spark.engine.read_version import ReadFiles
from icesize.spark.engine.worker import RewriteGroups, WriteRows
from icesize.spark.stream.options import SinkOptions
from icesize.spark.stream.process_state import StreamState, TableSource
from icesize.storage.table_storage import Storage
from icesize.table.catalog import opening
from icesize.table.catalog.access_errors import brief
from icesize.table.state.handle import TableHandle
from tests.support.rest_server import MiniRest
from tests.support.secrets import (
    EVERY,
    OF_CATALOG,
    OF_STORAGE,
    KeyRing,
    folder_leaks,
    leaks,
    pickled,
    printed,
    secrets,
    table_leaks,
)
from tests.support.tables import append, ids_of, make_table, small_files, two_files

CREDENTIALS = {**OF_CATALOG, **OF_STORAGE}
SIGNED = (
    "https://b.s3.amazonaws.com/t/1.parquet?X-Amz-Date=2&X-Amz-Signature=5f0c77ab19&X-Amz-Security-Token=Qz88fkT4w9Lx2"
)
"""A presigned request, whose signature nobody has told us."""
NEVER_TOLD = {"signature": "5f0c77ab19", "session": "Qz88fkT4w9Lx2", "password": "h4rdT0Guess", "dict": "uMb3rX77kqPz"}
TEXT = f"cannot reach http://joe:h4rdT0Guess@10.0.0.1/x by {SIGNED} with {{'s3.secret-access-key': 'uMb3rX77kqPz'}}"


@pytest.fixture(autouse=True)
def others_are_forgotten() -> Iterator[None]:
    """The secrets of other tests are words here, and those of a test here are words elsewhere."""
    remember_secrets({}, most_values=0)
    yield
    remember_secrets({}, most_values=0)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[SqlCatalog]:
    """A catalog whose properties are full of secrets."""
    catalog = SqlCatalog(
        "lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/w", **CREDENTIALS
    )
    catalog.create_namespace("db")
    yield catalog
    catalog.close()


@pytest.fixture
def logged_text(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], str]]:
    """Everything that icesize logs, to the last detail, as it would be printed."""
    with caplog.at_level(logging.DEBUG, "icesize"):
        yield lambda: "\n".join(
            logging.Formatter("%(name)s %(message)s").format(record)
            for record in caplog.records
            if record.name.startswith("icesize")
        )


def everything() -> str:
    """A text that a server which means no harm may put into an error: all it knows of the caller."""
    return f"refused {json.dumps(CREDENTIALS)}; {TEXT}"


def assert_silent(text: str | bytes) -> None:
    """Neither a planted secret nor one that looks like it."""
    assert leaks(text) == []
    assert leaks(text, NEVER_TOLD) == []


def test_the_scanner_finds_what_was_planted() -> None:
    """As it is, percent-encoded, and in base64 at any offset; and nothing else."""
    assert leaks(everything()) == list(EVERY)
    assert leaks("postgresql://u:jdb-p%26ss%2F5e1d90c3@h/db") == ["jdbc.password"]
    assert leaks("eDp0b2stOWYzYjcxYzJkOGU0") == leaks("Onh0b2stOWYzYjcxYzJkOGU0") == ["token"]
    assert leaks(cloudpickle.dumps(CREDENTIALS)) == list(EVERY)
    assert leaks("token s3.secret-access-key AKIAPLANTED") == []


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("http://joe:h4rdT0Guess@host/x", "http://***@host/x"),
        ("jdbc:postgresql://joe:h4rdT0Guess@host/x", "jdbc:postgresql://***@host/x"),
        ("GET /t?a=1&X-Amz-Signature=5f0c77ab19&b=2", "GET /t?a=1&X-Amz-Signature=***&b=2"),
        ("GET /t?x-goog-credential=5f0c77ab19", "GET /t?x-goog-credential=***"),
        ("GET /t?sv=2024&sig=5f0c77ab19%3D failed", "GET /t?sv=2024&sig=*** failed"),
        ("Authorization: Bearer 5f0c77ab19 was refused", "Authorization: *** was refused"),
        ("{'s3.secret-access-key': '5f0c77ab19'}", "{'s3.secret-access-key': '***'}"),
        ('{"access_token":"5f0c77ab19"}', '{"access_token":"***"}'),
        ("AccountName=a;AccountKey=5f0c77ab19==;x", "AccountName=a;AccountKey=***;x"),
        ("password=5f0c77ab19", "password=***"),
        ("got eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.dBjftJeZ4CVP", "got ***"),
    ],
)
def test_what_looks_like_a_credential_is_hidden(text: str, left: str) -> None:
    """Passwords in addresses, signatures, bearer tokens and properties by their names, though nobody has told them."""
    assert redacted(text) == left


@pytest.mark.parametrize(
    "text",
    [
        "file:///w/db/t/data/token=5/secret=abc/00.parquet is gone",
        "s3://bucket/a@b/c:d",
        "Expected ')', found token: x",
        "'max-small-files' (3) must be <= 'min-input-files' (2): nothing would be merged",
        "the principal needs TABLE_WRITE_DATA",
        "basic authentication failed",
    ],
)
def test_ordinary_texts_stay(text: str) -> None:
    """Names of partitions, addresses and words that merely remind of credentials are what people need to read."""
    assert redacted(text) == text


@given(st.text())
def test_redacting_twice_changes_nothing_more(text: str) -> None:
    """A message may pass several times; and whatever is in a text, redacting ends."""
    assert redacted(redacted(text)) == redacted(text)


@pytest.mark.parametrize(
    ("key", "secret"),
    [
        ("token", True), ("credential", True), ("s3.secret-access-key", True), ("jdbc.password", True),
        ("gcs.oauth2.token", True), ("adls.sas-token.account", True), ("header.Authorization", True),
        ("s3.access-key-id", False), ("header.X-Iceberg-Access-Delegation", False), ("oauth2-server-uri", False),
        ("gcs.oauth2.token-expires-at", False), ("client.credentials-provider", False), ("warehouse", False),
    ],
)  # fmt: skip
def test_secret_properties_are_told_by_their_names(key: str, secret: bool) -> None:
    """Addresses, times and class names that go with credentials are none."""
    assert is_secret(key) is secret


def test_remembered_values_are_hidden_in_every_spelling() -> None:
    """Encoded, without what stands before them, and in a password of an address; five letters are a word."""
    remember_secrets({"a.token": "to/ken+17 x", "x.secret": "short", "uri": "postgresql://u:pa%2Fss9@h/d"})
    remember_secrets({"auth.manager": object(), "header.Cookie": "Bearer zz-top-17", "credential": "me:yy-low-17"})
    said = redacted("to/ken+17 x, to%2Fken%2B17%20x, to%2Fken%2B17+x, short, pa%2Fss9, pa/ss9, zz-top-17, yy-low-17")
    assert said == "***, ***, ***, short, ***, ***, ***, ***"


def test_only_so_many_are_remembered() -> None:
    """A process that runs for months sees a new key with each batch."""
    for number in range(2_000):
        remember_secrets({"s3.session-token": f"session-{number}"})
    assert redacted("session-1999 and session-0.") == "*** and session-0."


@pytest.mark.parametrize("kind", [RuntimeError, RESTError, KeyError])
def test_what_an_error_is_chained_to_is_scrubbed(kind: Callable[[str], Exception]) -> None:
    """Message, cause, context and notes of an error that Python prints, of whatever class they are."""
    remember_secrets(CREDENTIALS)

    def fail() -> None:
        try:
            try:
                raise OSError(5, everything(), "/x")
            except OSError as first:
                second = kind(everything())
                second.__notes__ = [everything()]  # type: ignore[attr-defined]
                raise second from first
        except Exception as error:
            raise TableError(f"Cannot go on: {error}") from error

    with pytest.raises(TableError) as raised:
        fail()
    assert_silent(printed(raised.value))
    cause = raised.value.__cause__
    assert isinstance(cause, type(kind("")))
    assert isinstance(cause.__cause__, OSError)
    assert (cause.__cause__.errno, cause.__cause__.filename) == (5, "/x")


class OwnWords(Exception):
    """An error that keeps its text where only it can find it."""

    def __str__(self) -> str:
        return self.words

    def __init__(self, words: str) -> None:
        self.words = words


def test_a_cause_that_cannot_be_scrubbed_is_cut_off() -> None:
    """What makes its text from something of its own is told in our words only."""
    remember_secrets(CREDENTIALS)

    def fail() -> None:
        try:
            raise OwnWords(everything())
        except OwnWords as error:
            raise TableError(f"Cannot go on: {error}") from scrub(error)

    with pytest.raises(TableError) as raised:
        fail()
    assert raised.value.__cause__ is None


def test_an_error_that_was_under_way_is_scrubbed_too() -> None:
    """Python prints the error in whose handling another was raised, though nobody named it as the cause."""
    remember_secrets(CREDENTIALS)

    def fail() -> None:
        try:
            raise OSError(5, everything(), "/x")
        except OSError:
            raise ValueError("a second one")  # noqa: B904

    with pytest.raises(ValueError, match="a second one") as raised:
        fail()
    error = scrub(raised.value)
    assert error is not None
    assert isinstance(error.__context__, OSError)
    assert_silent(printed(error))


def test_errors_without_secrets_stay_as_they_are() -> None:
    """Arguments, class and notes of an error that tells nothing."""
    error = ValueError("a", 7)
    scrub(error)
    assert (type(error), error.args) == (ValueError, ("a", 7))


def test_an_error_that_is_pickled_takes_no_secret_along() -> None:
    """Workers send their errors to the driver."""
    remember_secrets(CREDENTIALS)
    error = IcesizeError(everything(), table="t")
    assert_silent(pickle.dumps(error))
    received = pickle.loads(pickle.dumps(error))
    assert (str(received), received.facts) == (str(error), {"table": "t"})


def test_brief_hides_and_scrubs() -> None:
    """The sentence that is logged, and the error that is logged with it."""
    remember_secrets(CREDENTIALS)
    error = RuntimeError(everything())
    assert_silent(brief(error))
    assert_silent(printed(error))


def test_log_records_hold_no_secret(logged_text: Callable[[], str]) -> None:
    """Arguments and tracebacks of everything that the logger `icesize` writes."""
    remember_secrets(CREDENTIALS)
    log = logging.getLogger("icesize")
    log.warning("lost: %s", everything())
    try:
        raise RuntimeError(everything())
    except RuntimeError:
        log.exception("failed")
    assert logged_text().count("\n") > 3
    assert_silent(logged_text())


@pytest.mark.parametrize("kind", [ForbiddenError, NoSuchTableError, NotImplementedError])
def test_a_catalog_that_quotes_what_it_was_sent(
    mini: MiniRest, logged_text: Callable[[], str], kind: type[Exception]
) -> None:
    """Loading fails with every secret in the answer: neither the error nor what it is chained to shows one."""
    table = _opened(mini)

    def refuse() -> dict[str, str]:
        raise kind(everything())

    mini.credentials = refuse
    assert_silent(json.dumps(table.maintain().to_dict()))
    for call in (table.inspect, table.compact, table.streams):
        with pytest.raises(TableError) as raised:
            call()
        assert_silent(printed(raised.value))
    assert_silent(logged_text())


class Answer(BaseModel):
    """Of the kind that PyIceberg reads answers into."""

    config: dict[str, int]


class Misread(SqlCatalog):
    """A catalog whose answers are not what its client expects."""

    def load_table(self, identifier: str | Identifier) -> Table:
        Answer.model_validate({"config": {"s3.secret-access-key": CREDENTIALS["s3.secret-access-key"]}})
        return super().load_table(identifier)


def test_an_answer_that_cannot_be_read_is_not_quoted(lake: SqlCatalog) -> None:
    """Pydantic prints what it was given and cannot be told otherwise: nothing is chained to it."""
    misread = Misread("lake", **lake.properties)
    with pytest.raises(TableError, match=r"Cannot load 'lake\.db\.t': ValidationError") as raised:
        icesize.open(None, "db.t", catalog=misread)
    misread.close()
    assert_silent(printed(raised.value))
    before = raised.value
    before.__cause__ = OSError("broken")
    with pytest.raises(ValidationError) as unread:
        misread.load_table("db.t")
    before.__cause__.__cause__ = unread.value
    assert scrub(unread.value) is None
    assert scrub(before) is before
    assert_silent(printed(before))
    assert "broken" in printed(before)


@pytest.mark.parametrize("kind", [ForbiddenError, NoSuchTableError, NotImplementedError, CommitFailedException])
def test_a_commit_that_is_refused_with_secrets(
    mini: MiniRest, logged_text: Callable[[], str], kind: type[Exception]
) -> None:
    """Refused, lost or unknown: what is raised, reported and logged shows none of what the answer quoted."""
    table = _opened(mini)

    def refuse() -> None:
        raise kind(everything())

    mini.before_swap = refuse
    try:
        said = json.dumps(table.compact().to_dict())
    except TableError as error:
        said = printed(error)
    assert_silent(said)
    assert_silent(logged_text())
    assert (kind in (ForbiddenError, NoSuchTableError)) is ("TableError" in said)


def test_a_commit_that_is_lost_for_good(mini: MiniRest, logged_text: Callable[[], str]) -> None:
    """The end of all attempts is chained to the last of the answers."""
    ticks = iter(range(0, 10**9, 400))
    table = _opened(mini, Environment(sleep=lambda seconds: None, monotonic=lambda: float(next(ticks))))

    def refuse() -> None:
        append(mini.catalog("mini"), [3], kind="b")
        mini.before_swap = refuse
        raise CommitFailedException(everything())

    mini.before_swap = refuse
    with pytest.raises(CommitConflict) as raised:
        table.compact()
    assert "CommitFailedException" in printed(raised.value)
    assert_silent(printed(raised.value))
    assert_silent(logged_text())


def _opened(mini: MiniRest, environment: Environment | None = None) -> icesize.SizedTable:
    """A table with two small files, opened by a client that is full of secrets."""
    two_files(mini.catalog("mini"))
    # with a `credential` PyIceberg asks an OAuth server first
    secret_values = {k: v for k, v in CREDENTIALS.items() if k != "credential"}
    environment = environment or Environment(sleep=lambda seconds: None)
    return icesize.open(None, "db.t", catalog=mini.catalog("mini", **secret_values), environment=environment)


def test_storage_that_quotes_its_key(mini: MiniRest, tmp_path: Path, logged_text: Callable[[], str]) -> None:
    """A merge, a look and a cleanup whose key has ended, each told without it."""
    ring = KeyRing(tmp_path / "ring", valid=10**6)
    catalog = mini.catalog("mini")
    two_files(catalog)
    mini.credentials = ring.vend
    ring.most = 0
    with pytest.raises(RewriteFailed, match=r"ExpiredToken: the key key") as failed:
        icesize.open(None, "db.t", catalog=catalog).compact()
    assert_silent(printed(failed.value))
    mini.credentials = KeyRing(tmp_path / "ring", valid=0).vend
    table = icesize.open(None, "db.t", catalog=catalog)
    for call in (table.inspect, table.compact, table.remove_orphan_files):
        with pytest.raises(TableError, match=r"ExpiredToken: the key") as raised:
            call()
        assert_silent(printed(raised.value))
    assert_silent(logged_text())


def test_a_table_lives_without_a_trace_of_its_secrets(
    lake: SqlCatalog, tmp_path: Path, logged_text: Callable[[], str]
) -> None:
    """Batches, a merge, an expiry and cleanup: reports, log, metadata, properties and names of files."""
    make_table(lake)
    for number in range(4):
        append(lake, [number], batch=number)
    days = 10 * 86_400_000
    later = Environment(now_ms=lambda: lake.load_table("db.t").metadata.last_updated_ms + days)
    table = icesize.open(None, "db.t", catalog=lake, environment=later)
    compacted, expired = table.compact(), table.expire_snapshots(retain_last=1)
    reports = [compacted, table.remove_orphan_files(), table.after_batch(), table.maintain()]
    assert compacted.snapshot_ids
    assert expired.snapshot_ids_expired
    said = [json.dumps(report.to_dict(), default=str) + str(report) for report in (*reports, expired)]
    for text in (
        *said,
        logged_text(),
        repr(table.streams()),
        repr(table.inspect()),
        repr(table.plan()),
        *map(repr, reports),
    ):
        assert_silent(text)
    assert table_leaks(lake.load_table("db.t")) == []
    # the catalog's own database is not ours, and holds no properties of clients either
    assert folder_leaks(tmp_path) == {}
    assert ids_of(lake) == [0, 1, 2, 3]


def test_nothing_public_prints_a_secret(lake: SqlCatalog) -> None:
    """`repr` and `str` of all that a debugger or a log may be given."""
    make_table(lake)
    table = icesize.open(None, "db.t", catalog=lake)
    conf = {f"spark.sql.catalog.lake.{key}": value for key, value in CREDENTIALS.items()}
    handle = TableHandle(lake, ("db", "t"), spark_conf=conf)
    current = handle.load()
    settings = current.settings()
    source = TableSource("lake.db.t", {"max-small-files": 3})
    state = StreamState(handle=TableHandle(lake, ("db", "t"), spark_conf=conf))
    things: list[object] = [
        table, handle, state, state.handle, current, settings, Storage(current.table.io), source, table.policy,
        icesize.Sink(source, "s", SinkOptions()), SinkOptions(), WriteRows(settings, "p"),
        RewriteGroups((), settings, {}, merge), current.table, lake, handle.reader(current.policy), settings.storage,
        *clustering(MergeTask((), PartitionKey(0)), settings),
    ]  # fmt: skip
    for thing in things:
        assert leaks(f"{thing!r} {thing}") == [], type(thing)
    assert leaks(repr(conf)) == list(EVERY), "the scanner would find them"


def clustering(task: MergeTask, settings: WriteSettings) -> list[object]:
    """The functions that cluster this task."""
    order = RowOrder.of(ClusterBy(("id",), (1,), "sort", 10**9), settings)
    bins = (((0, task),),)
    return [
        RewriteGroups(bins, settings, {0: "p"}, partial(cluster_alone, order, 0)),
        ScanKeys(bins, {0: 1}, order, settings),
        Scatter(bins, {}, order, settings, 1), Gather((), {}, order, settings),
    ]  # fmt: skip


def test_tasks_carry_keys_of_storage_and_none_of_the_catalog(mini: MiniRest, tmp_path: Path) -> None:
    """All functions that Spark's workers get, pickled as Spark does: what was vended, and no more."""
    catalog = mini.catalog("mini")
    two_files(catalog)
    mini.credentials = KeyRing(tmp_path / "ring", valid=10**6).vend
    secret_values = {k: v for k, v in OF_CATALOG.items() if k != "credential"}
    # the client itself asks for a token with this one
    client = mini.catalog("mini", **secret_values)
    client.properties["credential"] = OF_CATALOG["credential"]
    current = TableHandle(client, ("db", "t")).load()
    assert set(leaks(cloudpickle.dumps(dict(current.table.io.properties, **{"auth.manager": None})))) > set(
        secrets(OF_CATALOG)
    ), "PyIceberg gives the table's storage all of the catalog's properties"
    settings = current.settings()
    inputs = tuple(small_files(catalog.load_table("db.t"), "a"))
    task = MergeTask(inputs, inputs[0].partition)
    functions = [
        WriteRows(settings, "p"), RewriteGroups((((0, task),),), settings, {0: "p"}, merge),
        ReadFiles((inputs,), settings, inputs[0].partition, settings.arrow_schema),
        *clustering(task, settings),
    ]  # fmt: skip
    settings.storage.size(inputs[0].path)
    for function in functions:
        assert pickled(function) == ["s3.secret-access-key"]
        assert b"keyring.folder" in cloudpickle.dumps(function)
    kept = pickle.loads(pickle.dumps(settings)).io_properties
    assert set(kept) == {"py-io-impl", "s3.access-key-id", "s3.secret-access-key", "keyring.folder"}


def test_what_processes_get_to_reach_files_with() -> None:
    """Keys of each FileIO; not the catalog's address, token, headers, keys, database, or how it is asked."""
    storage = {
        "s3.endpoint": "e", "s3.access-key-id": "k", "gcs.oauth2.token": "g", "adls.sas-token.x": "a",
        "hdfs.host": "h", "hf.token": "f", "client.region": "r",
        "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO",
    }  # fmt: skip
    catalog = {
        **OF_CATALOG, "uri": "postgresql://u:p@h/d", "auth.manager": "x", "oauth2-server-uri": "o", "scope": "s",
        "rest.signing-name": "n", "warehouse": "w", "type": "rest", "client.secret-access-key": "c",
    }  # fmt: skip
    assert storage_properties({**storage, **catalog}) == storage
    vended = {"token": "t", "header.x": "h", "credential": "c", "mine.key": "m", "not-there": "n"}
    assert storage_properties({**catalog, "mine.key": "m"}, vended) == {
        "client.secret-access-key": "c", "mine.key": "m",
    }  # fmt: skip


def test_a_fileio_of_another_make_keeps_its_settings() -> None:
    """Whatever it is called, as it may be needed; not what opens the catalog, and no secret that was not vended."""
    given = {**OF_CATALOG, "py-io-impl": "mine.IO", "mine.endpoint": "e", "mine.secret": "s", "uri": "u"}
    assert storage_properties(given) == {"py-io-impl": "mine.IO", "mine.endpoint": "e"}
    assert storage_properties(given, {"mine.secret": "s"})["mine.secret"] == "s"


def test_a_catalog_that_signs_for_storage_vends_a_token() -> None:
    """A remote signer needs an address and a token: that of the table, and never the catalog's own."""
    asked = {"s3.signer": "S3V4RestSigner", "uri": "https://c", "token": "own"}
    assert storage_properties(asked) == {"s3.signer": "S3V4RestSigner", "uri": "https://c"}
    assert storage_properties(asked, {"token": "vended"})["token"] == "vended"
    headers = {"header.X-Realm": "r", "header.Authorization": "Bearer own"}
    assert storage_properties(asked | headers) == storage_properties(asked) | {"header.X-Realm": "r"}


class Mute(Exception):
    """An error whose text cannot be had, as Py4J's when its JVM is gone."""

    def __str__(self) -> str:
        raise OSError("the JVM is gone")


def test_an_error_without_a_text_hides_no_other(logged_text: Callable[[], str]) -> None:
    """What is raised and logged because of it is told all the same."""

    def fail() -> None:
        try:
            raise Mute
        except Mute as error:
            logging.getLogger("icesize").warning("lost: %s", error)
            raise TableError(f"Cannot go on: {brief(error)}") from error

    with pytest.raises(TableError, match="Cannot go on: Mute"):
        fail()
    assert "lost: %s" in logged_text()


class Lazy(Exception):
    """Its text is not made of its arguments."""

    def __str__(self) -> str:
        return everything()


def test_what_a_report_says_of_an_error_is_redacted() -> None:
    """Also where the error itself cannot be changed."""
    remember_secrets(CREDENTIALS)
    assert_silent(brief(Lazy()))


def test_credentials_may_be_nested() -> None:
    """PyIceberg's `auth` is a dictionary of dictionaries."""
    remember_secrets({"auth": {"type": "basic", "basic": {"username": "u", "password": "pw-5512-nested"}}})
    assert redacted("with pw-5512-nested") == "with ***"


def test_all_loggers_are_one() -> None:
    """What is logged under another name would pass by the filter; filters of our own may go to other names."""
    source = Path(opening.__file__).parents[2]
    named = re.compile(r"getLogger\((?!\"icesize\"\))[^)]*\)(?!\.addFilter)")
    assert [path.name for path in source.rglob("*.py") if named.search(path.read_text())] == []


@pytest.mark.parametrize("options", [["--json"], []])
@pytest.mark.parametrize("command", ["inspect", "plan", "compact", "streams", "expire-snapshots", "versions"])
def test_the_command_line_prints_no_secret(
    lake: SqlCatalog, logged_text: Callable[[], str], command: str, options: list[str]
) -> None:
    """Results and errors, as text and as JSON."""
    two_files(lake)
    given = [f"--catalog-property={key}={value}" for key, value in {**CREDENTIALS, "type": "sql"}.items()]
    uri = f"--catalog-uri={lake.properties['uri']}"
    done = CliRunner().invoke(main, [command, "lake.db.t", uri, *given, *options])
    assert done.exit_code == 0, done.output
    failed = CliRunner().invoke(main, [command, "lake.db.none", uri, *given, *options])
    assert failed.exit_code == 1
    for result in (done, failed):
        assert_silent(result.output)
    assert_silent(logged_text())


def test_the_command_line_hides_what_a_library_says(mini: MiniRest, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that icesize has not wrapped is told in one line, as all others without its secrets."""
    two_files(mini.catalog("mini"))

    def load(self: TableHandle) -> None:
        raise OSError(everything())

    monkeypatch.setattr(TableHandle, "load", load)
    given = [f"--catalog-property={k}={v}" for k, v in CREDENTIALS.items() if k != "credential"]
    result = CliRunner().invoke(main, ["inspect", "mini.db.t", f"--catalog-uri={mini.uri}", *given])
    assert result.exit_code == 1
    assert "OSError: refused" in result.output.replace("\n", " ")
    assert_silent(result.output)


@pytest.mark.parametrize(
    ("uri", "properties", "warned"),
    [
        ("http://catalog.example.com:8181", {"token": "tok-9f3b71c2d8e4"}, True),
        ("http://10.1.2.3/api", {"header.Authorization": "Bearer x"}, True),
        ("http://joe:pw@catalog.example.org", {}, True),
        ("http://catalog.example.net", {"warehouse": "w"}, False),
        ("https://catalog.example.com", {"token": "tok-9f3b71c2d8e4"}, False),
        ("http://127.0.0.1:8181", {"token": "tok-9f3b71c2d8e4"}, False),
        ("http://[::1]:8181", {"token": "tok-9f3b71c2d8e4"}, False),
        ("http://localhost:8181", {"token": "tok-9f3b71c2d8e4"}, False),
        ("http://minio-and-rest:8181", {"s3.secret-access-key": "sec/3c6e+08d5b1f7"}, False),
        ("http://catalog.example.de", {"auth": {"type": "basic"}}, True),
        ("postgresql://u:p[ss@host/db", {"token": "tok-9f3b71c2d8e4"}, False),
    ],
)
def test_credentials_over_plain_http_are_warned_of_once(
    lake: SqlCatalog, logged_text: Callable[[], str], uri: str, properties: dict[str, Any], warned: bool
) -> None:
    """The host is named and the credential is not; this machine and catalogs without credentials need no warning."""
    lake.properties = {"uri": uri, **properties}
    for _ in range(3):
        TableHandle(lake, ("db", "t"))
    assert logged_text().count("by http, which anybody on the way can read") == warned
    assert_silent(logged_text())
    assert "joe" not in logged_text()


def test_nothing_of_ours_weakens_tls() -> None:
    """No code, and so no option, turns the verification of certificates off."""
    source = Path(opening.__file__).parents[2]
    weak = re.compile(r"verify\s*=|CERT_NONE|check_hostname|_create_unverified|disable_warnings|[\"']ssl[.\"']|ssl\.")
    found = [
        f"{path.name}: {line}"
        for path in source.rglob("*.py")
        for line in path.read_text().splitlines()
        if weak.search(line)
    ]
    # the parameter `ssl` of a JDBC address: it becomes `verify-full`, or is refused
    assert all(line.startswith("opening.py:") and 'scheme == "postgresql"' in line for line in found), found


def test_the_callers_tls_settings_reach_the_client(mini: MiniRest) -> None:
    """A bundle of authorities is PyIceberg's to read, and the session verifies as long as nobody says otherwise."""
    catalog = opening.open_catalog("mini", {"type": "rest", "uri": mini.uri})
    assert catalog._session.verify is True  # type: ignore[attr-defined]
    catalog.close()
