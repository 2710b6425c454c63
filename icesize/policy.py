"""The size policy: target sizes of files and limits for the cost of merges, as one validated value."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from icesize.errors import PolicyError
from icesize.units import DURATION_EXAMPLES, SIZE_EXAMPLES, parse_bytes, parse_ms

N = TypeVar("N", int, None)
MIB = 2**20
PROPERTY_PREFIX = "icesize.policy."
ICEBERG_TARGET = "write.target-file-size-bytes"
DEFAULT_TARGET_BYTES = 512 * MIB
SMALL_FILE_RATIO = 0.75
"""Small file limit / target: Iceberg's default ratio of `min-file-size-bytes` in `rewrite_data_files`."""
MIN_MERGE_BUDGET_BYTES = 256 * MIB
MERGE_BUDGET_PER_BATCH = 4
MIN_MERGE_DEADLINE_MS = 1_000
CLOSE_FILE_COST_BYTES = 64 * 1024
"""Cost of opening and closing a file, in bytes of writing: 2 ms at 35 MB/s, measured."""


_NOT_GIVEN: Any = ...
"""Marks an omitted field, which a table property may still set."""


class _Key:
    """A policy field, as a descriptor: the value that the caller set, or else the `default`.

    The documentation prints `shown` and `source`. A default may be computed from the policy's other fields.
    """

    def __init__(self, shown: object, source: str, default: Callable[[SizePolicy], object] | None = None) -> None:
        self.shown = shown
        self.source = source
        self._default = default
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, policy: SizePolicy | None, owner: type) -> Any:
        # on the class, `dataclass` reads the default of the constructor's argument here
        if policy is None:
            return _NOT_GIVEN
        given = vars(policy)
        if self._name in given:
            return given[self._name]
        return self.shown if self._default is None else self._default(policy)

    def __set__(self, policy: SizePolicy, value: object) -> None:
        if value is not _NOT_GIVEN:
            vars(policy)[self._name] = _value(self._name, _dashed(self._name), value)


def _key(shown: object, source: str, default: Callable[[SizePolicy], object] | None = None) -> Any:
    """Return a `_Key`, typed as the type of its values."""
    return _Key(shown, source, default)


@dataclass(frozen=True)
class SizePolicy:
    """File sizes, the number of small files that may remain, and limits for the cost of merges.

    Omitted fields have their defaults. `given` records the fields you set, so that `resolve` can rank arguments above
    the table's properties. Contradictory values raise `PolicyError` here, never later. `DOCUMENTED` lists keys,
    defaults and their sources.

    ```text
    target_file_size_bytes   size of new and merged files
    small_file_limit_bytes   size below which a file is small and may be merged; 0 turns merging off
    max_small_files          mergeable small files that a partition may hold after a batch
    merge_budget_bytes       most bytes that merges of one batch rewrite; unset: 4 x the batch, at least 256 MiB
    merge_deadline_ms        longest time that merges may delay a batch; unset: as long as its write took, at least 1 s
    commit_deadline_ms       time during which a commit is retried after conflicts with other writers
    cold_after_commits       commits (at least twice the last pause) without new rows until a merge to the fewest files
    bytes_per_row            size of one written row; unset: learned from the table's files
    merge_by_copying         true: merges may copy compressed bytes; false: they decode and encode every row
    apply_deletes            true: files with pending deletes are merged, without the deleted rows
    into_current_spec        true: `maintain` moves rows of old partition specs into partitions of the current one
    delete_ratio_threshold   share of rows known to be deleted at which a file is rewritten; with upserts: 0.2
    delete_ratio_spread      share of the threshold over which rewrites spread (0.4: 60 to 100 %); with upserts: 0.4
    delete_file_threshold    number of delete files at which their data file is rewritten; unset: never
    max_delete_files         delete files that may apply to one data file after a batch
    close_file_cost_bytes    cost of opening and closing a file, in bytes of writing
    keep_versions            newest versions of each partition that expiry keeps; unset: Iceberg's rules alone
    version_max_age_ms       `keep-versions` ignores partitions whose last change is older than this
    max_snapshots            number of snapshots above which the oldest versions are dropped
    progress_max_age_ms      expiry keeps the progress of Flink, Kafka Connect and Spark's own sink up to this age
    ```
    """

    target_file_size_bytes: int = _key("512 MiB", f"Iceberg, `{ICEBERG_TARGET}`", lambda policy: DEFAULT_TARGET_BYTES)
    small_file_limit_bytes: int = _key(
        "0.75 x target", "Iceberg, `min-file-size-bytes` of `rewrite_data_files`",
        lambda policy: int(SMALL_FILE_RATIO * policy.target_file_size_bytes),
    )  # fmt: skip
    max_small_files: int = _key(
        6, "a byte is written 2.7 to 5.1 times with 17 to 256 batches per file; 9.9 to 129.5 times with one small file"
    )
    merge_budget_bytes: int | None = _key(None, "bounds the work of merges by the size of the batch")
    merge_deadline_ms: int | None = _key(None, "merges at most double a batch that writes for a second or longer")
    commit_deadline_ms: int = _key(600_000, "ten minutes: longer than any pause of a healthy catalog")
    cold_after_commits: int = _key(20, "late rows of a partition mostly arrive within 20 batches")
    bytes_per_row: float | None = _key(None, "learned from the sizes and row counts of the table's files")
    merge_by_copying: bool = _key(True, "measured: 8 to 15 x faster than decoding")
    apply_deletes: bool = _key(True, "Iceberg's `rewrite_data_files` also applies them")
    into_current_spec: bool = _key(False, "off: files of an old spec are merged within their partitions")
    delete_ratio_threshold: float = _key(0.3, "Iceberg, `rewrite_data_files`")
    delete_ratio_spread: float = _key(0.0, "off, as in Iceberg, which has no such key")
    delete_file_threshold: int | None = _key(None, "Iceberg, `rewrite_data_files`")
    max_delete_files: int = _key(6, "equal to `max-small-files`: a scan opens small files and delete files one by one")
    close_file_cost_bytes: int = _key(CLOSE_FILE_COST_BYTES, "measured: 2 ms per file, at 35 MB/s")
    keep_versions: int | None = _key(None, "off: only `history.expire.*` apply")
    version_max_age_ms: int = _key(604_800_000, "seven days: a week of late corrections")
    max_snapshots: int = _key(2_000, "measured: a commit spends 0.6 s on metadata at 5,000 snapshots, 0.02 s at 100")
    progress_max_age_ms: int = _key(604_800_000, "seven days: Kafka keeps records so long by default")

    def __post_init__(self) -> None:
        check_at_least(self, AT_LEAST)
        limit, target = self.small_file_limit_bytes, self.target_file_size_bytes
        # a limit without a target is checked in `resolve`, because the table may set a larger target
        if limit > target and "target_file_size_bytes" in self.given:
            bound = f"must be <= 'target-file-size-bytes' ({target})"
            raise _refused("small-file-limit-bytes", limit, f"{bound}: every merged file would still be small")
        if self.bytes_per_row is not None and not (0 < self.bytes_per_row < math.inf):
            why = "the number of files of a batch is computed from it; leave it out to have it learned"
            raise _refused("bytes-per-row", self.bytes_per_row, f"must be > 0: {why}")
        if not self.delete_ratio_threshold > 0:
            why = "files without a deleted row would be written again and again"
            raise _refused("delete-ratio-threshold", self.delete_ratio_threshold, f"must be > 0: {why}")
        if not 0 <= self.delete_ratio_spread < 1:
            why = "it is a part of 'delete-ratio-threshold', below all of it"
            raise _refused("delete-ratio-spread", self.delete_ratio_spread, f"must be >= 0 and < 1: {why}")
        if self.delete_ratio_threshold > 1:
            why = "a file has no more rows to delete than it holds"
            raise _refused("delete-ratio-threshold", self.delete_ratio_threshold, f"must be <= 1: {why}")

    @property
    def given(self) -> frozenset[str]:
        """The names of the fields that the caller set."""
        return frozenset(vars(self))

    @property
    def merging(self) -> bool:
        """True if small files are merged; `small_file_limit_bytes` 0 turns merging off, as in Hudi."""
        return self.small_file_limit_bytes > 0

    def budget_for(self, batch_bytes: int) -> int:
        """Return the bytes that the merges of a batch may rewrite.

        They are `merge_budget_bytes` if it is set, or else max(4 x batch, 256 MiB). The default is no hard bound: one
        merge that does not fit is done beyond it, because its files could never be merged otherwise.

        Args:
            batch_bytes: The bytes of the batch's new files.
        """
        if self.merge_budget_bytes is not None:
            return self.merge_budget_bytes
        return max(MERGE_BUDGET_PER_BATCH * batch_bytes, MIN_MERGE_BUDGET_BYTES)

    def merge_deadline_for(self, write_ms: int) -> int:
        """Return the milliseconds that merges may continue after the write job.

        They are `merge_deadline_ms` if it is set, or else the duration of the write, but at least 1 s.

        Args:
            write_ms: The duration of the write job, in milliseconds.
        """
        if self.merge_deadline_ms is not None:
            return self.merge_deadline_ms
        return max(write_ms, MIN_MERGE_DEADLINE_MS)

    def changed(self, keys: Mapping[str, object]) -> SizePolicy:
        """Return the policy with other values of some keys.

        Args:
            keys: A mapping of keys to values, in the form that `open` accepts.

        Raises:
            PolicyError: A key is unknown, or a value is invalid.
        """
        return SizePolicy(**{name: getattr(self, name) for name in self.given} | _from_argument(keys))

    def to_dict(self) -> dict[str, int | float | bool | None]:
        """Return the resolved value of each field; None if it depends on the batch or the table.

        The keys are the names of the fields.
        """
        return {name: getattr(self, name) for name in _FIELDS}

    @classmethod
    def resolve(
        cls,
        table_properties: Mapping[str, str],
        argument: SizePolicy | RuledPolicy | Mapping[str, object] | None = None,
        table: str = "",
    ) -> tuple[SizePolicy, list[str]]:
        """Return the policy of one table, and warnings for its user.

        For each key, the precedence is: `argument`, the table property `icesize.policy.<key>`, Iceberg's own
        `write.target-file-size-bytes`, the first rule of a RuledPolicy that sets the key for this table, the default.
        An unknown property is only a warning, because another version of icesize may support it.

        Args:
            table_properties: The properties of the table.
            argument: A policy, a mapping of its keys, or one of both with rules.
            table: The full name of the table, for the rules.

        Raises:
            PolicyError: A key of the mapping is unknown, or a value is invalid.
        """
        layers, warnings = _layers(table_properties, argument, table)
        policy = cls(**{name: value for _, values in layers for name, value in values.items()})
        if not policy.merging:
            warnings.append("merging is off: 'small-file-limit-bytes' is 0, so small files stay as they are")
        return policy, warnings


@dataclass(frozen=True)
class PolicyRule:
    """Policy keys that a configuration sets for some tables.

    Attributes:
        source: The place of the rule, such as `icesize.toml:12`.
        applies: Returns True for the full name of a table that the rule concerns.
        values: The keys, in the form that `open` accepts.
    """

    source: str
    applies: Callable[[str], bool]
    values: Mapping[str, object]


@dataclass(frozen=True)
class RuledPolicy:
    """A policy argument with rules for keys that neither the argument nor the table sets; the first rule wins."""

    argument: SizePolicy | Mapping[str, object] | None = None
    rules: tuple[PolicyRule, ...] = ()


@dataclass(frozen=True)
class PolicyOrigin:
    """The value of one policy key for one table, and where it comes from.

    Attributes:
        key: The key.
        value: The value; None if it depends on the batch or the table.
        source: The place that sets the value.
        overridden: Other places that set the key, and lose.
    """

    key: str
    value: int | float | bool | None
    source: str
    overridden: tuple[str, ...] = ()


def origins_of(
    policy: SizePolicy,
    table_properties: Mapping[str, str],
    argument: SizePolicy | RuledPolicy | Mapping[str, object] | None,
    table: str,
) -> tuple[PolicyOrigin, ...]:
    """Return the origin of each key of a policy that `SizePolicy.resolve` returned for these arguments."""
    layers, _ = _layers(table_properties, argument, table)
    plain, _ = SizePolicy.resolve(table_properties, argument, table)
    found = []
    for name, value in policy.to_dict().items():
        default = _DEFAULT if value == getattr(plain, name) else "default with upserts"
        places = [place for place, values in reversed(layers) if name in values] or [default]
        others = tuple(place for place in places[1:] if place != _DEFAULT)
        found.append(PolicyOrigin(_dashed(name), value, places[0], others))
    return tuple(found)


_DEFAULT = "default"
_FRACTIONS = {
    "bytes_per_row": "a number of bytes, such as 84.5",
    "delete_ratio_threshold": "a share of rows, such as 0.3",
    "delete_ratio_spread": "a part of the threshold, such as 0.4",
}
"""Fields that need not be whole numbers, each with the values it accepts."""
_UNITS = {
    "bytes": (parse_bytes, f"a size {SIZE_EXAMPLES}", "bytes"),
    "ms": (parse_ms, f"a duration {DURATION_EXAMPLES}", "milliseconds"),
}
"""Other forms of a whole number, by the last word of its field's name."""
_FIELDS = {name: key for name, key in vars(SizePolicy).items() if isinstance(key, _Key)}
AT_LEAST: dict[str, tuple[int, str]] = {
    "target_file_size_bytes": (1, "no file could hold a row"),
    "small_file_limit_bytes": (0, "no file is smaller than nothing; 0 turns merging off"),
    "max_small_files": (1, "the rows of a partition need at least one file"),
    "merge_budget_bytes": (1, "nothing would ever be merged; set 'small-file-limit-bytes' to 0 to turn merging off"),
    "merge_deadline_ms": (0, "merges cannot end before the batch is written; 0 means they never outlast it"),
    "commit_deadline_ms": (1, "an append could not be retried once"),
    "cold_after_commits": (1, "a partition would be cold while the batch writes to it"),
    "delete_file_threshold": (1, "files without deletes would be written again and again"),
    "max_delete_files": (0, "no file is read with fewer delete files than none"),
    "close_file_cost_bytes": (0, "no file is cheaper than none"),
    "keep_versions": (1, "the newest version is the table itself; leave it out to keep no older ones"),
    "version_max_age_ms": (0, "no version is younger than now"),
    "max_snapshots": (1, "the newest snapshot is the table itself"),
    "progress_max_age_ms": (0, "no progress is younger than now"),
}
_WORDS = {"None": "unset", "True": "true", "False": "false"}
DOCUMENTED: tuple[tuple[str, str, str], ...] = tuple(
    (name.replace("_", "-"), _WORDS.get(str(key.shown), str(key.shown)), key.source) for name, key in _FIELDS.items()
)
"""(key, default, source of the default) of every policy key, as shell completion shows them."""


def _layers(
    properties: Mapping[str, str], argument: SizePolicy | RuledPolicy | Mapping[str, object] | None, table: str
) -> tuple[list[tuple[str, dict[str, Any]]], list[str]]:
    """Return the places that set keys, each with its values, the weakest place first; and warnings."""
    ruled = argument if isinstance(argument, RuledPolicy) else RuledPolicy(argument)
    target = "target_file_size_bytes"
    layers: list[tuple[str, dict[str, Any]]] = [(_DEFAULT, {target: DEFAULT_TARGET_BYTES})]
    layers += [(rule.source, _from_argument(rule.values)) for rule in reversed(ruled.rules) if rule.applies(table)]
    if ICEBERG_TARGET in properties:
        value = _value(target, ICEBERG_TARGET, properties[ICEBERG_TARGET])
        layers.append((f"table property {ICEBERG_TARGET}", {target: value}))
    from_properties, warnings = _from_properties(properties)
    layers += [(f"table property {PROPERTY_PREFIX}{_dashed(name)}", {name: v}) for name, v in from_properties.items()]
    layers.append(("argument", _from_argument(ruled.argument)))
    return layers, warnings


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def check_at_least(values: object, least: Mapping[str, tuple[int, str]]) -> None:
    """Raise PolicyError, with the consequence, for a field below its minimum in `least`; None passes."""
    for name, (number, consequence) in least.items():
        value = getattr(values, name)
        if value is not None and value < number:
            raise _refused(_dashed(name), value, f"must be >= {number}: {consequence}")


def property_number(properties: Mapping[str, str], key: str, default: N, least: int = 0) -> int | N:
    """Return the whole number of one of Iceberg's table properties. Raises PolicyError for any other text."""
    text = properties.get(key)
    if text is None:
        return default
    if not re.fullmatch(r"\d{1,19}", text, re.ASCII) or not least <= int(text) < 2**63:
        raise _refused(key, text, f"must be a whole number >= {least}")
    return int(text)


def _refused(key: str, value: object, why: str) -> PolicyError:
    shown = repr(value) if isinstance(value, str) else value
    return PolicyError(f"'{key}' ({shown}) {why}", key=key, value=value)


def _value(name: str, key: str, value: object) -> Any:
    """Return the value of the field `name`: a number, or a size or duration in human-readable form.

    `key` is the name by which the caller set the field. '512MB' is rejected because its meaning is ambiguous.
    """
    if value is None and _FIELDS[name].shown is None:
        return None
    text = str(value).strip()
    is_number = isinstance(value, (int, str)) and not isinstance(value, bool)
    if isinstance(_FIELDS[name].shown, bool):
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        wanted = "true or false"
    elif name in _FRACTIONS:
        if isinstance(value, float) or (is_number and re.fullmatch(r"[+-]?\d+(\.\d*)?", text, re.ASCII)):
            return float(text)
        wanted = _FRACTIONS[name]
    else:
        if is_number and re.fullmatch(r"[+-]?\d+", text, re.ASCII):
            return int(text)
        wanted = "a whole number without a unit"
        # other engines read Iceberg's own properties, too, and accept no units there
        if key != ICEBERG_TARGET and (unit := _UNITS.get(name.rpartition("_")[2])):
            parse, examples, plain = unit
            if isinstance(value, str) and (number := parse(text)) is not None:
                return number
            wanted = f"{examples}, or a whole number of {plain}"
    raise _refused(key, value, f"must be {wanted}")


def _from_properties(properties: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    values: dict[str, Any] = {}
    warnings: list[str] = []
    known = {PROPERTY_PREFIX + _dashed(field_name): field_name for field_name in _FIELDS}
    for name, value in sorted(properties.items()):
        if name in known:
            values[known[name]] = _value(known[name], name, value)
        elif name.startswith(PROPERTY_PREFIX):
            warnings.append(ignored(name, known))
    return values, warnings


def ignored(name: str, known: Iterable[str]) -> str:
    """Return the warning for a table property that looks like a misspelled one of `known`."""
    unknown = f"this version knows no such key; the nearest is '{_nearest(name, known)}'"
    return f"ignored table property '{name}': {unknown}"


def _nearest(name: str, known: Iterable[str]) -> str:
    [near] = difflib.get_close_matches(name, list(known), n=1, cutoff=0.0)
    return near


def _from_argument(argument: SizePolicy | Mapping[str, object] | None) -> dict[str, Any]:
    if argument is None:
        return {}
    if isinstance(argument, SizePolicy):
        return {name: getattr(argument, name) for name in argument.given}
    values: dict[str, Any] = {}
    for key, value in argument.items():
        name = key.replace("-", "_")
        if name not in _FIELDS:
            hint = f"did you mean '{_nearest(_dashed(name), map(_dashed, _FIELDS))}'?"
            raise PolicyError(f"unknown policy key '{key}': {hint}", key=key)
        values[name] = _value(name, _dashed(name), value)
    return values
