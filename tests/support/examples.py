"""How many examples a property is tried with: a share of what its test says, which the profile decides.

`quick`, the default, takes a fifth, always the same. `thorough` (`--hypothesis-profile=thorough`) takes all,
others each time.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings

FEWEST = 5
_ALL = 100
"""Examples of a test that does not say how many, in the thorough profile: Hypothesis' own default."""


def register_profiles() -> None:
    """Make both profiles known, and `quick` the one in force until pytest is told another."""
    # a busy machine is no failure, and neither are examples that are large or hard to find
    common: dict[str, Any] = {"deadline": None, "suppress_health_check": list(HealthCheck)}
    settings.register_profile("thorough", max_examples=_ALL, **common)
    settings.register_profile("quick", max_examples=_ALL // 5, derandomize=True, **common)
    settings.load_profile("quick")


def examples(most: int, **others: Any) -> settings:
    """Settings for a test that is worth so many examples, at least FEWEST of them in any profile."""
    return settings(max_examples=max(min(most, FEWEST), most * settings().max_examples // _ALL), **others)
