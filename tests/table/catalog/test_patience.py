"""Catalogs that do not answer for a while: what may pass is waited for, what is an answer is believed at once."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    ForbiddenError,
    NoSuchTableError,
    ServiceUnavailableError,
    TooManyRequestsError,
    UnauthorizedError,
)
from requests.exceptions import ConnectionError as NoConnection

from icesize.environment import Environment
from icesize.errors import TableError, TableNotFound
from icesize.table.catalog.access_errors import asking_again, shortened
from icesize.table.state.handle import TableHandle
from tests.support.tables import FakeTime, make_table

ANSWERS = [
    (NoSuchTableError("gone"), TableNotFound), (ForbiddenError("no"), TableError),
    (UnauthorizedError("who"), TableError),
    (FileNotFoundError("metadata"), TableError), (PermissionError("metadata"), TableError),
    (OSError("AWS Error ACCESS_DENIED during GetObject operation"), TableError), (ValueError("bad uri"), TableError),
]  # fmt: skip


def away(
    lake: SqlCatalog, monkeypatch: pytest.MonkeyPatch, *errors: Exception
) -> tuple[TableHandle, Environment, FakeTime]:
    """A table whose catalog answers with these errors first, and a clock that only sleeping moves."""
    make_table(lake)
    left, load, time = list(errors), lake.load_table, FakeTime()

    def load_table(identifier: tuple[str, ...]) -> object:
        if left:
            raise left.pop(0)
        return load(identifier)

    monkeypatch.setattr(lake, "load_table", load_table)
    environment = Environment(monotonic=lambda: time.seconds, sleep=time.sleep)
    return TableHandle(lake, ("db", "t"), {"commit-deadline-ms": 60_000}), environment, time


@pytest.mark.parametrize(
    "error",
    [NoConnection("refused"), TimeoutError("60 s"), ServiceUnavailableError("503"), TooManyRequestsError("429")],
)
def test_a_catalog_that_is_away_is_asked_again(
    lake: SqlCatalog, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Some failures in a row, then the table: with patience that is one load."""
    handle, environment, time = away(lake, monkeypatch, *[error] * 6)
    assert handle.load(environment).name == "lake.db.t"
    assert len(time.sleeps) == 6
    assert max(time.sleeps) <= 10


def test_patience_ends_with_the_deadline_of_commits(lake: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the error says what the catalog answered last; without patience the first failure is one."""
    handle, environment, time = away(lake, monkeypatch, *[NoConnection("refused")] * 10_000)
    with pytest.raises(TableError, match=r"Cannot load 'lake\.db\.t': ConnectionError: refused"):
        handle.load()
    assert time.sleeps == []
    with pytest.raises(TableError, match=r"Cannot load 'lake\.db\.t': ConnectionError: refused"):
        handle.load(environment)
    assert 600 < time.seconds < 620


def test_a_pause_beyond_the_patience_is_not_begun() -> None:
    """A catalog that requests a longer pause than there is time is asked once."""
    time, calls = FakeTime(), list[int]()
    error = TooManyRequestsError("429")
    error.response = SimpleNamespace(headers={"Retry-After": "60"})  # type: ignore[attr-defined]

    def request() -> None:
        calls.append(1)
        raise error

    for seconds, asked, pauses in ((5, 1, 0), (70, 2, 1)):
        calls.clear(), time.sleeps.clear()
        with pytest.raises(TooManyRequestsError):
            asking_again(time.environment, seconds)(request)
        assert (len(calls), len(time.sleeps)) == (asked, pauses)


@pytest.mark.parametrize(("error", "kind"), ANSWERS)
def test_an_answer_is_believed(
    lake: SqlCatalog, monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[TableError]
) -> None:
    """No such table, no right, a wrong setting: asking again would only cost time."""
    handle, environment, time = away(lake, monkeypatch, error)
    with pytest.raises(kind):
        handle.load(environment)
    assert time.sleeps == []


@given(st.text(alphabet="ab ,:", max_size=60), st.integers(4, 50))
def test_texts_are_cut_between_words(text: str, most: int) -> None:
    """What is left is a beginning of the text that ends with a word, unless one word is too long by itself."""
    short = shortened(text, most)
    if len(text) <= most:
        assert short == text
        return
    kept = short.removesuffix(" ...")
    assert text.startswith(kept)
    assert len(kept) <= most
    assert " " not in text[: most + 1].strip() or not kept or not text[len(kept) :][:1].isalpha()
