"""Base of the results of calls: conversion to a dictionary, display, and the combination of rounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from functools import singledispatch
from operator import attrgetter
from typing import Any, ClassVar, TypeVar

KeySource = str | Callable[[Any], Any] | None
Keys = dict[str, KeySource]
R = TypeVar("R", bound="Result")


@dataclass(frozen=True)
class Advice:
    """A sentence of advice, with a command that follows it.

    Attributes:
        sentence: The advice. It is also the text of the object.
        command: The command to copy; None if there is none.
    """

    sentence: str
    command: str | None = None

    def __str__(self) -> str:
        return self.sentence


class Result:
    """Base of the results of calls: frozen dataclasses of plain values.

    They print as text, render as tables in notebooks, and convert to JSON with `to_dict()`.
    """

    __slots__ = ()
    _job: ClassVar[str] = ""
    KEYS: ClassVar[Keys] = {}
    # keys of the dictionary that are not fields, or that replace a field; `keys` creates them

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values under stable keys; later releases may add keys, never rename them."""
        return _fields_of(self)

    def __init_subclass__(cls, job: str = "") -> None:
        """Define a class of results of a job, by its name in metrics; empty for results of no job."""
        cls._job = job

    @property
    def job(self) -> str:
        """The job that returned it, in metrics; empty for a result of no job."""
        return self._job

    def __str__(self) -> str:
        return text_of(self)

    def _repr_html_(self) -> str | None:
        return html_of(self)

    @classmethod
    def together(cls: type[R], rounds: Sequence[R]) -> R:
        """Return the result of one call that committed in rounds.

        A mark on a field (`SUMMED`, `JOINED`, `ADDED_UP`, `together_by`) sets how its values are combined. Fields
        without a mark have the value of the last round.
        """
        marked = {f.name: f.metadata["together"] for f in fields(cls) if "together" in f.metadata}  # type: ignore[arg-type]
        return replace(rounds[-1], **{name: add_up(rounds, name) for name, add_up in marked.items()})  # type: ignore[type-var]


@singledispatch
def text_of(result: object) -> str:
    """Return the text that `print` shows for a result. Importing icesize registers `icesize.presentation.display`."""
    return repr(result)


@singledispatch
def html_of(result: object) -> str | None:
    """Return the HTML that a notebook shows for a result; None if the notebook shows its text."""
    return None


def keys(*names: str, **changed: KeySource) -> Keys:
    """Return the `KEYS` of a result: `names` of properties, and key -> attribute or function; None hides a field."""
    return dict(zip(names, names, strict=True)) | changed


def document(value: Any) -> Any:
    """Return a value in its JSON form: mappings, lists and their items.

    Snapshot ids (keys that begin with `snapshot_id`) become strings. They have 63 bits, of which jq and JavaScript keep
    53 in a number, and a rounded id names no snapshot.
    """
    if is_dataclass(value):
        return _fields_of(value)
    if isinstance(value, Mapping):
        return {document(key): document(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [document(item) for item in value]
    return value.value if isinstance(value, Enum) else value


def _fields_of(value: Any) -> dict[str, Any]:
    found = {f.name: f.name for f in fields(value)} | getattr(value, "KEYS", {})
    taken = {
        key: (attrgetter(source) if isinstance(source, str) else source)(value)
        for key, source in found.items()
        if source is not None
    }
    return {key: _texts(item) if key.startswith("snapshot_id") else document(item) for key, item in taken.items()}


def _texts(ids: Any) -> Any:
    return list(map(_texts, ids)) if isinstance(ids, tuple) else None if ids is None else str(ids)


def together_by(add_up: Callable[[Sequence[Any], str], Any]) -> dict[str, Any]:
    """Return the mark (metadata) of a field whose rounds `add_up(rounds, name)` combines into one value."""
    return {"together": add_up}


def _joined(rounds: Sequence[Any], name: str) -> tuple[Any, ...]:
    return tuple(item for one in rounds for item in getattr(one, name))


def _added_up(rounds: Sequence[Any], name: str) -> dict[str, float]:
    total: Counter[str] = Counter()
    for one in rounds:
        total.update(getattr(one, name))
    return {key: round(number, 4) for key, number in total.items()}


SUMMED = together_by(lambda rounds, name: sum(getattr(one, name) for one in rounds))
"""Marks a number: the sum over the rounds."""
JOINED = together_by(_joined)
"""Marks a tuple: the items of all rounds."""
JOINED_ONCE = together_by(lambda rounds, name: tuple(dict.fromkeys(_joined(rounds, name))))
"""Marks a tuple: the items of all rounds, without duplicates."""
ADDED_UP = together_by(_added_up)
"""Marks a mapping of names to numbers: the sum over the rounds for each name."""


class OneCommit(Result):
    """A result of a job that makes one commit at most."""

    KEYS = keys("snapshot_id")
    snapshot_ids: tuple[int, ...]

    @property
    def snapshot_id(self) -> int | None:
        """The snapshot of the commit; None if there is none."""
        return next(iter(self.snapshot_ids), None)
