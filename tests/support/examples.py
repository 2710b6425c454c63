"""How many examples a property is tried with: a share of what its test says, which the profile decides.

`quick`, the default, takes a tenth, always the same. `thorough` (`--hypothesis-profile=thorough`) takes all,
others each time. A test of many fixed cases has a share of them among the quick tests, too: `sampled`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

FEWEST = 5
_ALL = 100
"""Examples of a test that does not say how many, in the thorough profile: Hypothesis' own default."""
_ONE_IN = 10


def register_profiles() -> None:
    """Make both profiles known, and `quick` the one in force until pytest is told another."""
    # a busy machine is no failure, and neither are examples that are large or hard to find
    common: dict[str, Any] = {"deadline": None, "suppress_health_check": list(HealthCheck)}
    settings.register_profile("thorough", max_examples=_ALL, **common)
    settings.register_profile("quick", max_examples=_ALL // _ONE_IN, derandomize=True, **common)
    settings.load_profile("quick")


def sampled(cases: Iterable[Any], one_in: int) -> list[Any]:
    """Cases for `parametrize`; the quick tests take one in so many, and the others are marked `engine`."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=[pytest.mark.engine] if n % one_in else [])
        for n, case in enumerate(cases)
    ]


def examples(most: int, *, one_in: int = _ONE_IN, **others: Any) -> settings:
    """Settings for a test that is worth so many examples: `quick` takes one in so many, but at least FEWEST."""
    count = most if settings().max_examples == _ALL else most // one_in
    return settings(max_examples=max(min(most, FEWEST), count), **others)
