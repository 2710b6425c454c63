"""`icesize.toml`: catalogs, the tables to maintain, policies for patterns, hours and budgets of maintenance.

A configuration is checked as a whole, and each problem names its line.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone, tzinfo
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from pyiceberg.catalog import Catalog

from icesize.concurrency import TABLES_AT_ONCE
from icesize.errors import ArgumentError, PolicyError
from icesize.policy import PolicyOrigin, PolicyRule, RuledPolicy, SizePolicy, origins_of
from icesize.results import Result
from icesize.table.catalog.opening import is_configured, namespace_and_table
from icesize.table.catalog.tables import TablePattern
from icesize.table.state.handle import TableHandle
from icesize.units import DURATION_EXAMPLES, SIZE_EXAMPLES, bytes_of, seconds_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

VARIABLE = "ICESIZE_CONFIG"
FILE = "icesize.toml"

KeyPath = tuple[str | int, ...]


@dataclass(frozen=True)
class ConfigProblem:
    """A mistake in a configuration. `line` counts from 1; None if the mistake has no line."""

    line: int | None
    message: str

    def __str__(self) -> str:
        return self.message if self.line is None else f"line {self.line}: {self.message}"


@dataclass(frozen=True)
class Hours:
    """The hours of the day in which maintenance may run; without spans, always.

    Attributes:
        spans: The first minute of the day of each span, and the first one after it. A span may pass midnight.
        zone: The time zone of the hours.
        text: The hours as they are written, for messages.
    """

    spans: tuple[tuple[int, int], ...] = ()
    zone: tzinfo = timezone.utc
    text: str = ""

    def are_open(self, now_ms: int) -> bool:
        """Return whether maintenance may run at this time."""
        now = datetime.fromtimestamp(now_ms / 1000, self.zone)
        minute = 60 * now.hour + now.minute
        spans = (a <= minute < b if a < b else minute >= a or minute < b for a, b in self.spans)
        return not self.spans or any(spans)


@dataclass(frozen=True)
class AnyOf:
    """Patterns of which a full name of a table matches one."""

    patterns: tuple[TablePattern, ...] = ()

    def __call__(self, table: str) -> bool:
        catalog, *name = table.split(".")
        return any(pattern.catalog == catalog and pattern.matches(tuple(name)) for pattern in self.patterns)


@dataclass(frozen=True)
class Configuration:
    """The contents of a file; without a file, everything has its default.

    Attributes:
        path: The file; None if there is none.
        catalogs: Name of a catalog -> its PyIceberg properties. They can hold credentials.
        include: The tables to scan and to maintain; None for all.
        exclude: Tables to leave out.
        rules: Policies for patterns, in the order of the file.
        hours: The hours of maintenance.
        budget_bytes: Default of `--budget-bytes`.
        budget_seconds: Default of `--budget-seconds`.
        concurrency: Default of `--concurrency`.
        is_found_here: Whether the file was found in the working directory: anybody may have put it there.
    """

    path: str | None = None
    catalogs: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    include: AnyOf | None = None
    exclude: AnyOf = AnyOf()
    rules: tuple[PolicyRule, ...] = ()
    hours: Hours = Hours()
    budget_bytes: int | None = None
    budget_seconds: float | None = None
    concurrency: int = TABLES_AT_ONCE
    is_found_here: bool = False

    def properties_of(self, catalog: str) -> Mapping[str, str]:
        """Return the properties of a catalog, none if the file does not have it.

        Raises ArgumentError if they would change a catalog of PyIceberg's configuration without the user's consent: its
        credentials would be sent to the host that the file names.
        """
        found = self.catalogs.get(catalog, {})
        if found and self.is_found_here and is_configured(catalog):
            raise ArgumentError(
                f"Cannot open catalog '{catalog}': both '{self.path}' of the working directory and PyIceberg's "
                "configuration describe it, and the file would get the credentials of the other one. Set "
                f"{VARIABLE}={self.path} to use both, or remove [catalog.{catalog}] from the file",
                catalog=catalog,
            )
        return found

    def is_chosen(self, table: str) -> bool:
        """Return whether a table, given by its full name, is to be scanned and maintained."""
        return (self.include is None or self.include(table)) and not self.exclude(table)

    def policy(self, argument: Mapping[str, str] | None) -> RuledPolicy | dict[str, str]:
        """Return a policy argument, with the rules of the file below it if there are any."""
        given = dict(argument or {})
        return RuledPolicy(given, self.rules) if self.rules else given


@dataclass(frozen=True)
class TablePolicy(Result):
    """The policy of one table, and where each key comes from.

    Attributes:
        table: The full name of the table.
        path: The configuration file; None if there is none.
        is_chosen: False if the file leaves the table out of passes over many tables.
        keys: The keys of the policy.
        notes: Warnings about properties of the table.
    """

    table: str
    path: str | None
    is_chosen: bool
    keys: tuple[PolicyOrigin, ...]
    notes: tuple[str, ...] = ()


def policy_of(
    catalog: Catalog, name: str, configuration: Configuration, argument: Mapping[str, str] | None
) -> TablePolicy:
    """Return the policy of a table. Raises the errors of loading it, and PolicyError."""
    handle = TableHandle(catalog, namespace_and_table(catalog, name), configuration.policy(argument))
    current = handle.load()
    keys = origins_of(current.policy, current.table.metadata.properties, handle.policy, handle.name)
    return TablePolicy(
        handle.name, configuration.path, configuration.is_chosen(handle.name), keys, current.warnings
    )  # fmt: skip


def find(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the file that applies: of `ICESIZE_CONFIG`, else `./icesize.toml`, else `~/.icesize.toml`.

    Raises ArgumentError if the variable names no file.
    """
    if named := environ.get(VARIABLE):
        if not Path(named).is_file():
            raise ArgumentError(f"Cannot read the configuration: {VARIABLE} is '{named}', and there is no such file")
        return Path(named)
    return next((path for path in (Path(FILE), Path.home() / f".{FILE}") if path.is_file()), None)


def load(path: Path | None = None) -> Configuration:
    """Return the configuration of a file, or of the file that applies.

    Raises ArgumentError with all problems of the file.
    """
    found = path or find()
    if found is None:
        return Configuration()
    configuration, problems = read(found)
    if problems:
        raise ArgumentError(f"Cannot use '{found}': {'; '.join(map(str, problems))}", path=str(found))
    is_found_here = path is None and found == Path(FILE) and not os.environ.get(VARIABLE)
    return replace(configuration, is_found_here=is_found_here)


def read(path: Path) -> tuple[Configuration, tuple[ConfigProblem, ...]]:
    """Return the configuration of a file, without its invalid parts, and its problems.

    Raises ArgumentError if there is no file.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"Cannot read the configuration '{path}': {error}", path=str(path)) from error
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"line (\d+)", str(error))
        return Configuration(str(path)), (ConfigProblem(int(at[1]) if at else None, f"no TOML: {error}"),)
    reader = _Reader(path, text)
    configuration = reader.configuration(document)
    return configuration, tuple(sorted(reader.problems, key=lambda problem: problem.line or 0))


class _Reader:
    """Converts a document, and collects its problems."""

    def __init__(self, path: Path, text: str) -> None:
        self._path, self._lines = path, dict(_lines(text))
        self.problems: list[ConfigProblem] = []

    def configuration(self, document: Mapping[str, Any]) -> Configuration:
        self._known((), document, ("catalog", "tables", "policy", "maintain"))
        catalogs, tables, maintain = (self._table((name,), document) for name in ("catalog", "tables", "maintain"))
        self._known(("tables",), tables, ("include", "exclude"))
        options = ("hours", "time-zone", "budget-bytes", "budget-seconds", "concurrency")
        self._known(("maintain",), maintain, options)

        def option(key: str, parse: Callable[[Any], Any], expected: str) -> Any:
            return self._value(("maintain", key), maintain.get(key), parse, expected)

        return Configuration(
            str(self._path),
            {name: dict(self._properties(at := ("catalog", name), self._table(at, catalogs))) for name in catalogs},
            self._patterns(("tables", "include"), tables["include"]) if "include" in tables else None,
            self._patterns(("tables", "exclude"), tables.get("exclude", [])),
            tuple(self._rules(document.get("policy", []))),
            self._hours(maintain),
            option("budget-bytes", _size, f"a size {SIZE_EXAMPLES}"),
            option("budget-seconds", _seconds, f"a duration {DURATION_EXAMPLES}"),
            option("concurrency", lambda n: n if type(n) is int and n > 0 else None, "a whole number above 0")
            or TABLES_AT_ONCE,
        )

    def _note(self, path: KeyPath, message: str) -> None:
        # a value in an array or an inline table has the line of the key above it
        while path and path not in self._lines:
            path = path[:-1]
        self.problems.append(ConfigProblem(self._lines.get(path), message))

    def _known(self, path: KeyPath, found: Mapping[str, Any], keys: Iterable[str]) -> None:
        for key in found:
            if key not in (known := list(keys)):
                near = difflib.get_close_matches(key, known, n=1)
                hint = f"did you mean '{near[0]}'?" if near else f"the keys are {', '.join(known)}"
                self._note((*path, key), f"unknown key '{key}': {hint}")

    def _table(self, path: KeyPath, document: Mapping[str, Any]) -> Mapping[str, Any]:
        found = document.get(str(path[-1]), {})
        if isinstance(found, Mapping):
            return found
        name = ".".join(map(str, path))
        self._note(path, f"'{name}' must be a table, such as [{name}]")
        return {}

    def _value(self, path: KeyPath, value: Any, parse: Callable[[Any], Any], expected: str) -> Any:
        if value is None:
            return None
        if (parsed := parse(value)) is None:
            self._note(path, f"'{path[-1]}' ({value!r}) must be {expected}")
        return parsed

    def _properties(self, path: KeyPath, found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Yield the properties of a catalog. TOML reads the dots of a key such as `s3.endpoint` as tables in tables."""
        for key, value in found.items():
            if isinstance(value, Mapping):
                yield from ((f"{key}.{rest}", text) for rest, text in self._properties((*path, key), value))
            elif isinstance(value, (str, int, float)):
                yield key, str(value).lower() if isinstance(value, bool) else str(value)
            else:
                self._note((*path, key), f"'{key}' must be a text, a number, true or false")

    def _patterns(self, path: KeyPath, found: Any) -> AnyOf:
        texts = [found] if isinstance(found, str) else found
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            self._note(path, f"'{path[-1]}' must be a pattern such as 'lake.db.*', or an array of patterns")
            return AnyOf()
        return AnyOf(tuple(filter(None, (self._pattern(path, text) for text in texts))))

    def _pattern(self, path: KeyPath, text: str) -> TablePattern | None:
        try:
            return TablePattern.of(text)
        except ArgumentError as error:
            self._note(path, str(error))
            return None

    def _rules(self, found: Any) -> Iterator[PolicyRule]:
        if not isinstance(found, list):
            self._note(("policy",), "'policy' must be an array of tables: write [[policy]]")
            return
        for number, rule in enumerate(found):
            path: KeyPath = ("policy", number)
            if not (isinstance(rule, Mapping) and "tables" in rule):
                self._note(path, "a policy needs 'tables', a pattern such as 'lake.db.*'")
                continue
            values = {key: value for key, value in rule.items() if key != "tables"}
            valid = {key: value for key, value in values.items() if self._is_valid((*path, key), {key: value})}
            if len(valid) == len(values):
                self._is_valid(path, values)
            source = f"{self._path.name}:{self._lines.get(path, '?')}"
            yield PolicyRule(source, self._patterns((*path, "tables"), rule["tables"]), valid)

    def _is_valid(self, path: KeyPath, values: Mapping[str, object]) -> bool:
        try:
            SizePolicy.resolve({}, values)
        except PolicyError as error:
            self._note(path, str(error))
            return False
        return True

    def _hours(self, maintain: Mapping[str, Any]) -> Hours:
        name, texts = maintain.get("time-zone", "UTC"), maintain.get("hours", [])
        zone = self._value(("maintain", "time-zone"), name, _zone, "a time zone such as 'Europe/Berlin'")
        spans = self._value(("maintain", "hours"), texts, _spans, "an array of hours such as ['22:00-06:00']")
        return Hours(spans or (), zone or timezone.utc, f"{', '.join(texts)} {name}" if spans else "")


def _size(value: Any) -> int | None:
    return bytes_of(value) if isinstance(value, (int, str)) and not isinstance(value, bool) else None


def _seconds(value: Any) -> float | None:
    return seconds_of(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else None


def _zone(name: Any) -> tzinfo | None:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, TypeError, OSError):
        return None


def _spans(texts: Any) -> tuple[tuple[int, int], ...] | None:
    if not isinstance(texts, list):
        return None
    spans = []
    for text in texts:
        match = re.fullmatch(r"(\d{1,2}):(\d\d)\s*-\s*(\d{1,2}):(\d\d)", text) if isinstance(text, str) else None
        if match is None:
            return None
        start, end = (60 * int(match[n]) + int(match[n + 1]) for n in (1, 3))
        if max(int(match[2]), int(match[4])) > 59 or start >= 24 * 60 or end > 24 * 60 or start == end:
            return None
        spans.append((start, end))
    return tuple(spans)


_HEADER = re.compile(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(#.*)?$")
_KEY = re.compile(r"""\s*((?:"[^"]*"|'[^']*'|[\w-]+)(?:\s*\.\s*(?:"[^"]*"|'[^']*'|[\w-]+))*)\s*=""")
_PART = re.compile(r"""\s*("[^"]*"|'[^']*'|[\w-]+)\s*""")


def _lines(text: str) -> Iterator[tuple[KeyPath, int]]:
    """Yield the path and the line of each key and of each table: tomllib returns none.

    The lines of a value that contains line breaks are not recognized; they hold no keys of a configuration.
    """
    table: KeyPath = ()
    numbers = dict[str, int]()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            table = _parts(header[2])
            if header[1] == "[[":
                name = ".".join(map(str, table))
                numbers[name] = numbers.get(name, -1) + 1
                table = (*table, numbers[name])
            yield table, number
        elif key := _KEY.match(line):
            yield (*table, *_parts(key[1])), number


def _parts(name: str) -> KeyPath:
    return tuple(part.strip("\"'") for part in _PART.findall(name))
