"""Values on the command line as people write them: pairs, sizes, durations, ages, points in time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import Any, TypeVar

import click

from icesize.units import DURATION_EXAMPLES, SIZE_EXAMPLES, bytes_of, parse_ms, seconds_of

_Command = TypeVar("_Command", bound=Callable[..., Any])


def pair_option(name: str, help_text: str) -> Callable[[_Command], _Command]:
    """A repeatable option `K=V` that arrives as a mapping."""
    return click.option(name, metavar="K=V", multiple=True, callback=pairs, help=help_text + " Repeatable.")


def pairs(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """`("a=1", "b=2")` as a mapping."""
    found = {}
    for value in values:
        key, equals, rest = value.partition("=")
        if not equals or not key:
            # the value is not repeated: it may be a secret
            raise click.BadParameter("expected KEY=VALUE", ctx=ctx, param=parameter)
        found[key] = rest
    return found


class Size(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A size, which arrives as bytes."""

    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if (size_bytes := bytes_of(str(value))) is None:
            self.fail(f"'{value}' is not a size {SIZE_EXAMPLES}, or a number of bytes", param, ctx)
        return size_bytes


class Seconds(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A duration, which arrives as seconds."""

    name = "DURATION"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if (seconds := seconds_of(str(value))) is None:
            self.fail(f"'{value}' is not a duration {DURATION_EXAMPLES}, or a number of seconds", param, ctx)
        return seconds


class Time(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A point in time in ISO 8601, which arrives with its zone; without one it is UTC."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if (time := _time(str(value))) is None:
            self.fail(f"'{value}' is not a time such as 2026-01-31T12:00", param, ctx)
        return time


def _time(text: str) -> datetime | None:
    with suppress(ValueError):
        time = datetime.fromisoformat(text)
        return time if time.tzinfo else time.replace(tzinfo=timezone.utc)
    return None


def age_option(default: str | None = None, *, or_time: bool = False, help_text: str) -> Callable[[_Command], _Command]:
    """`--older-than` with an age such as `3d`, as a timedelta; with `or_time` also an ISO 8601 time (no zone: UTC)."""

    def parsed(ctx: click.Context, parameter: click.Parameter, value: str | None) -> timedelta | datetime | None:
        if value is None:
            return None
        if (age_ms := parse_ms(value)) is not None:
            return timedelta(milliseconds=age_ms)
        if or_time and (time := _time(value)):
            return time
        expected = "an age such as 3d, 12h or 30m" + (", or a time such as 2026-01-31T12:00" if or_time else "")
        raise click.BadParameter(f"'{value}' is not {expected}", ctx=ctx, param=parameter)

    return click.option(
        "--older-than", default=default, show_default=default is not None, callback=parsed, help=help_text,
        metavar="AGE|TIME" if or_time else "AGE",
    )  # fmt: skip
