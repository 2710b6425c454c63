"""How many examples a property is tried with: a share of what its test says, which the profile decides.

`quick`, the default, takes a tenth, the same ones each time, so that a change fails for its own mistakes. `thorough`
(`--hypothesis-profile=thorough`) takes all, others each time. A test of many fixed cases has a share of them among the
quick tests, too: `sampled` where the test says it, `divide` for all lists of a folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings

FEWEST = 5
_ALL = 100
"""Examples of a test that does not say how many, in the thorough profile: Hypothesis' own default."""
_ONE_IN = {"quick": 10, "thorough": 1}
"""The share of each profile."""


def register_profiles() -> None:
    """Make the profiles known, and `quick` the one in force until pytest is told another."""
    # a busy machine is no failure, and neither are examples that are large or hard to find
    common: dict[str, Any] = {"deadline": None, "suppress_health_check": list(HealthCheck)}
    for name, one_in in _ONE_IN.items():
        settings.register_profile(name, max_examples=_ALL // one_in, derandomize=name != "thorough", **common)
    settings.load_profile("quick")


def sampled(cases: Iterable[Any], one_in: int) -> list[Any]:
    """Cases for `parametrize`; the quick tests take one in so many, and the others are marked `engine`."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=[pytest.mark.engine] if n % one_in else [])
        for n, case in enumerate(cases)
    ]


def examples(most: int, **others: Any) -> settings:
    """Settings for a test that is worth so many examples: the share of the profile, but at least FEWEST."""
    one_in = round(_ALL / settings().max_examples)
    return settings(max_examples=max(min(most, FEWEST), most // one_in), **others)


def divide(cases: Sequence[pytest.Item], *, quick: float, slow: float) -> None:
    """Mark cases of one test: this share stays quick, that share is `slow`, and the others are marked `engine`."""
    for item in cases:
        if place_of(item) >= quick:
            item.add_marker(pytest.mark.engine)
        if place_of(item) >= 1 - slow:
            item.add_marker(pytest.mark.slow)


def place_of(item: pytest.Item) -> float:
    """Return a number from 0 to 1, the hash of a name: each second case may have the same value of a parameter."""
    return crc32(item.nodeid.encode()) / 2**32
