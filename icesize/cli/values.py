"""Parsers of values on the command line: pairs, sizes, durations, ages, points in time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import Any, TypeVar

import click

from icesize.units import DURATION_EXAMPLES, SIZE_EXAMPLES, bytes_of, parse_ms, seconds_of, time_of

_Command = TypeVar("_Command", bound=Callable[..., Any])


def pair_option(name: str, help_text: str) -> Callable[[_Command], _Command]:
    """Return a repeatable option `K=V` whose values become a mapping."""
    return click.option(name, metavar="K=V", multiple=True, callback=pairs, help=help_text + " Repeatable.")


def pairs(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Return `("a=1", "b=2")` as a mapping."""
    found = {}
    for value in values:
        key, equals, rest = value.partition("=")
        if not equals or not key:
            # the message omits the value, because it may be a secret
            raise click.BadParameter("expected KEY=VALUE", ctx=ctx, param=parameter)
        found[key] = rest
    return found


class Parsed(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A value that `parse` reads; `parse` returns None for text that is not `expected`."""

    def __init__(self, name: str, parse: Callable[[str], Any], expected: str) -> None:
        self.name, self._parse, self._expected = name, parse, expected

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value of the text; return a value that is already parsed unchanged."""
        if not isinstance(value, str):
            return value
        if (parsed := self._parse(value)) is None:
            self.fail(f"'{value}' is not {self._expected}", param, ctx)
        return parsed


def _time(text: str) -> datetime | None:
    with suppress(ValueError):
        time = time_of(text)
        return time if time.tzinfo else time.replace(tzinfo=timezone.utc)
    return None


def _age(text: str) -> timedelta | None:
    age_ms = parse_ms(text)
    return None if age_ms is None else timedelta(milliseconds=age_ms)


def _age_or_time(text: str) -> timedelta | datetime | None:
    age = _age(text)
    return _time(text) if age is None else age


_A_TIME = "a time such as 2026-01-31T12:00"
_AN_AGE = "an age such as 3d, 12h or 30m"
SIZE = Parsed("SIZE", bytes_of, f"a size {SIZE_EXAMPLES}, or a number of bytes")
SECONDS = Parsed("DURATION", seconds_of, f"a duration {DURATION_EXAMPLES}, or a number of seconds")
TIME = Parsed("TIME", _time, _A_TIME)
"""A time in ISO 8601; without a zone it is UTC."""
AGE = Parsed("AGE", _age, _AN_AGE)
AGE_OR_TIME = Parsed("AGE|TIME", _age_or_time, f"{_AN_AGE}, or {_A_TIME}")
