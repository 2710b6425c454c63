"""For all tests, also of the benchmarks: how thoroughly properties are tried, and what fails each test.

An internal error of icesize fails the test that it occurs in.
"""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.support.examples import register_profiles
from tests.support.internal_errors import watched

register_profiles()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Fail a test in which icesize logs an internal error, unless it is marked `internal_error` and provokes one."""
    with watched() as found:
        yield
    if item.get_closest_marker("internal_error") is None and found:
        pytest.fail("icesize logged an internal error:\n" + "\n".join(found), pytrace=False)
