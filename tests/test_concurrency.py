"""Results in the order of the items, while threads work on the next ones."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from icesize.concurrency import NOT_AHEAD, Ahead, concurrently


@pytest.fixture(params=[2, 3, 8])
def ahead(request: pytest.FixtureRequest) -> Iterator[Ahead]:
    found = Ahead(request.param)
    yield found
    found.close()


def test_results_come_in_the_order_of_the_items(ahead: Ahead) -> None:
    """Whichever thread is ready first."""
    assert list(ahead.map(lambda n: n * n, range(100))) == [n * n for n in range(100)]
    assert list(NOT_AHEAD.map(lambda n: n * n, range(100))) == [n * n for n in range(100)]


def test_threads_work_on_what_comes_next(ahead: Ahead) -> None:
    """The first result waits for a second item, which only another thread can have begun."""
    second = threading.Event()

    def work(number: int) -> bool:
        if number == 1:
            second.set()
        return second.wait(60)

    assert list(ahead.map(work, range(4))) == [True] * 4


def test_no_more_items_are_taken_than_can_be_held(ahead: Ahead) -> None:
    """An item is taken when there is room for its result: one for each thread, and one that is looked at."""
    taken: list[int] = []

    def items() -> Iterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    results = ahead.map(lambda number: number, items())
    for number in range(50):
        assert next(results) == number
        assert len(taken) <= number + 9


def test_what_a_function_raises_is_raised_in_place_of_its_result(ahead: Ahead) -> None:
    """Results before it have been given by then."""
    found: list[float] = []
    with pytest.raises(ZeroDivisionError):
        found.extend(ahead.map(lambda number: 6 / (3 - number), range(6)))
    assert found == [2.0, 3.0, 6.0]


def test_nothing_works_on_when_it_is_closed() -> None:
    """Items that were not begun are not, and those that were are done."""
    ahead, begun, done = Ahead(2), list[int](), list[int]()

    def work(number: int) -> None:
        begun.append(number)
        done.append(number)

    next(ahead.map(work, range(100)))
    ahead.close()
    assert sorted(begun) == sorted(done)
    assert len(begun) <= 3
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("icesize-ahead")]


def test_no_more_calls_run_than_there_are_threads() -> None:
    """The threads bound the memory and the requests that run at the same time."""
    used = set(concurrently(lambda item: threading.get_ident(), range(100), threads=3))
    assert 1 <= len(used) <= 3


def test_items_are_taken_only_when_they_are_needed() -> None:
    """A listing of a million files is never held as a whole."""
    taken = list[int]()
    items = (taken.append(item) or item for item in range(100))
    results = concurrently(lambda item: item, items, threads=2, waiting=3)
    assert next(results) == 0
    assert len(taken) <= 5
    assert list(results) == list(range(1, 100))


def test_the_first_error_ends_the_calls() -> None:
    """Nothing begins after a failure was raised."""
    begun = list[int]()

    def fail(item: int) -> None:
        begun.append(item)
        raise ValueError(item)

    with pytest.raises(ValueError, match=r"^0$"):
        list(concurrently(fail, range(1000), threads=2, waiting=2))
    assert len(begun) < 10
