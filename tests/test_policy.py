"""The size policy: where values come from, which contradictions are refused, and in which words."""

from __future__ import annotations

import pickle
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icesize.errors import PolicyError
from icesize.policy import DOCUMENTED, MIB, SizePolicy

TARGET = "target_file_size_bytes"
SWITCHES = {"merge_by_copying", "apply_deletes", "into_current_spec"}
NOT_COUNTED = SWITCHES | {"delete_ratio_threshold", "delete_ratio_spread"}


def test_defaults_are_the_documented_ones() -> None:
    """A policy without arguments has a target of 512 MiB, a limit of three quarters of it, and six slots."""
    assert SizePolicy().to_dict() == {
        "target_file_size_bytes": 512 * MIB,
        "small_file_limit_bytes": 384 * MIB,
        "max_small_files": 6,
        "merge_budget_bytes": None,
        "merge_deadline_ms": None,
        "commit_deadline_ms": 600_000,
        "cold_after_commits": 20,
        "bytes_per_row": None,
        "merge_by_copying": True,
        "apply_deletes": True,
        "into_current_spec": False,
        "delete_ratio_threshold": 0.3,
        "delete_ratio_spread": 0.0,
        "delete_file_threshold": None,
        "max_delete_files": 6,
        "close_file_cost_bytes": 65_536,
        "keep_versions": None,
        "version_max_age_ms": 7 * 86_400_000,
        "max_snapshots": 2_000,
        "progress_max_age_ms": 7 * 86_400_000,
    }


def test_limit_follows_the_target() -> None:
    """A limit that is left out is 0.75 of whatever target is given."""
    assert SizePolicy(target_file_size_bytes=4_000_000).small_file_limit_bytes == 3_000_000


def test_a_policy_is_a_value() -> None:
    """Equal numbers are equal policies, given or not; a policy survives pickling and shows its numbers."""
    policy = SizePolicy(target_file_size_bytes=512 * MIB, max_small_files=6)
    assert policy == SizePolicy()
    assert hash(policy) == hash(SizePolicy())
    assert pickle.loads(pickle.dumps(policy)) == policy
    assert pickle.loads(pickle.dumps(policy)).given == {TARGET, "max_small_files"}
    assert "max_small_files=6" in repr(SizePolicy())


def test_each_source_yields_to_the_one_before_it() -> None:
    """Argument over icesize's property over Iceberg's property over default."""
    iceberg = {"write.target-file-size-bytes": "1000"}
    ours = {"icesize.policy.target-file-size-bytes": "2000"}
    assert SizePolicy.resolve({})[0].target_file_size_bytes == 512 * MIB
    assert SizePolicy.resolve(iceberg)[0].target_file_size_bytes == 1000
    assert SizePolicy.resolve(iceberg | ours)[0].target_file_size_bytes == 2000
    assert SizePolicy.resolve(iceberg | ours, SizePolicy(target_file_size_bytes=3000))[0].target_file_size_bytes == 3000
    assert SizePolicy.resolve(iceberg | ours, {"target-file-size-bytes": 4000})[0].target_file_size_bytes == 4000


@pytest.mark.parametrize("name", sorted(SizePolicy().to_dict().keys() - NOT_COUNTED))
def test_every_number_is_read_from_properties_and_mappings(name: str) -> None:
    """Each field has a property and an argument key with dashes, and an argument key with underscores."""
    dashed = name.replace("_", "-")
    assert getattr(SizePolicy.resolve({f"icesize.policy.{dashed}": "7"})[0], name) == 7
    assert getattr(SizePolicy.resolve({}, {dashed: "7"})[0], name) == 7
    assert getattr(SizePolicy.resolve({}, {name: 7})[0], name) == 7


def test_the_share_of_deleted_rows_is_a_fraction() -> None:
    """It is read from a property and from an argument, and numbers that are none are refused."""
    key = "icesize.policy.delete-ratio-threshold"
    assert SizePolicy.resolve({key: "0.25"})[0].delete_ratio_threshold == 0.25
    assert SizePolicy.resolve({}, {"delete-ratio-threshold": 1})[0].delete_ratio_threshold == 1.0
    with pytest.raises(PolicyError, match="must be > 0"):
        SizePolicy(delete_ratio_threshold=float("nan"))


def test_copying_is_switched_by_a_word() -> None:
    """True and false are read from properties, mappings and arguments; anything else is refused in words."""
    key = "icesize.policy.merge-by-copying"
    assert not SizePolicy.resolve({key: " False "})[0].merge_by_copying
    assert SizePolicy.resolve({key: "false"}, {"merge-by-copying": True})[0].merge_by_copying
    assert not SizePolicy(merge_by_copying=False).merge_by_copying
    with pytest.raises(PolicyError) as caught:
        SizePolicy.resolve({key: "7"})
    assert str(caught.value) == "'icesize.policy.merge-by-copying' ('7') must be true or false"


def test_fields_left_out_of_an_argument_come_from_the_table() -> None:
    """An argument with some fields does not reset the others to their defaults."""
    properties = {"icesize.policy.max-small-files": "9", "icesize.policy.cold-after-commits": "5"}
    policy, warnings = SizePolicy.resolve(properties, SizePolicy(max_small_files=3))
    assert (policy.max_small_files, policy.cold_after_commits) == (3, 5)
    assert warnings == []


def test_a_given_none_overrides_the_table() -> None:
    """None given for an optional key means 'decide by the batch', even where the table names a number."""
    properties = {"icesize.policy.merge-budget-bytes": "5"}
    assert SizePolicy.resolve(properties, {"merge-budget-bytes": None})[0].merge_budget_bytes is None
    assert SizePolicy.resolve(properties, SizePolicy(merge_budget_bytes=None))[0].merge_budget_bytes is None


def test_versions_can_be_left_out_of_an_expiry_of_a_table_that_keeps_them() -> None:
    """None versions are a value of an argument, as any number is, however huge."""
    properties = {"icesize.policy.keep-versions": "3"}
    for value in (None, 1, 10**30):
        assert SizePolicy.resolve(properties, {"keep-versions": value})[0].keep_versions == value
        assert SizePolicy.resolve(properties, SizePolicy(keep_versions=value))[0].keep_versions == value
    assert SizePolicy.resolve(properties, SizePolicy(max_snapshots=10**30))[0].keep_versions == 3


def test_a_limit_alone_is_judged_against_the_tables_target() -> None:
    """A limit above the default target is fine where the table's target is larger, and refused where it is not."""
    argument = SizePolicy(small_file_limit_bytes=600 * MIB)
    policy, _ = SizePolicy.resolve({"write.target-file-size-bytes": str(1024 * MIB)}, argument)
    assert policy.small_file_limit_bytes == 600 * MIB
    with pytest.raises(PolicyError, match="every merged file would still be small"):
        SizePolicy.resolve({}, argument)


def test_unknown_argument_is_refused_with_the_nearest_key() -> None:
    """A misspelt key of a mapping is an error that names the key that was probably meant."""
    with pytest.raises(PolicyError) as caught:
        SizePolicy.resolve({}, {"max-smal-file": 3})
    assert str(caught.value) == "unknown policy key 'max-smal-file': did you mean 'max-small-files'?"
    assert caught.value.key == "max-smal-file"


def test_unknown_property_is_a_warning_with_the_nearest_key() -> None:
    """A property of another version is ignored and named; stream state and foreign properties are not policy."""
    _, warnings = SizePolicy.resolve(
        {"icesize.policy.target-file-size": "1", "icesize.stream.0a1b": "{}", "write.format.default": "parquet"}
    )
    assert warnings == [
        "ignored table property 'icesize.policy.target-file-size': this version knows no such key; "
        "the nearest is 'icesize.policy.target-file-size-bytes'"
    ]


def test_limit_zero_turns_merging_off_and_says_so() -> None:
    """A limit of 0 is a valid policy without merging, and `resolve` says what that means."""
    policy, warnings = SizePolicy.resolve({"icesize.policy.small-file-limit-bytes": "0"})
    assert not policy.merging
    assert warnings == ["merging is off: 'small-file-limit-bytes' is 0, so small files stay as they are"]
    assert SizePolicy().merging


REFUSED = [
    (
        {"target_file_size_bytes": 100, "small_file_limit_bytes": 101},
        "'small-file-limit-bytes' (101) must be <= 'target-file-size-bytes' (100): every merged file would still be "
        "small",
    ),
    ({"target_file_size_bytes": 0}, "'target-file-size-bytes' (0) must be >= 1: no file could hold a row"),
    (
        {"small_file_limit_bytes": -1},
        "'small-file-limit-bytes' (-1) must be >= 0: no file is smaller than nothing; 0 turns merging off",
    ),
    ({"max_small_files": 0}, "'max-small-files' (0) must be >= 1: the rows of a partition need at least one file"),
    (
        {"merge_budget_bytes": 0},
        "'merge-budget-bytes' (0) must be >= 1: nothing would ever be merged; set 'small-file-limit-bytes' to 0 to "
        "turn merging off",
    ),
    (
        {"merge_deadline_ms": -1},
        "'merge-deadline-ms' (-1) must be >= 0: merges cannot end before the batch is written; 0 means they never "
        "outlast it",
    ),
    ({"commit_deadline_ms": 0}, "'commit-deadline-ms' (0) must be >= 1: an append could not be retried once"),
    (
        {"cold_after_commits": 0},
        "'cold-after-commits' (0) must be >= 1: a partition would be cold while the batch writes to it",
    ),
    (
        {"keep_versions": 0},
        "'keep-versions' (0) must be >= 1: the newest version is the table itself; leave it out to keep no older ones",
    ),
    (
        {"keep_versions": -(10**30)},
        f"'keep-versions' ({-(10**30)}) must be >= 1: the newest version is the table itself; leave it out to keep no "
        "older ones",
    ),
    ({"version_max_age_ms": -1}, "'version-max-age-ms' (-1) must be >= 0: no version is younger than now"),
    ({"close_file_cost_bytes": -1}, "'close-file-cost-bytes' (-1) must be >= 0: no file is cheaper than none"),
    (
        {"delete_ratio_threshold": 0},
        "'delete-ratio-threshold' (0.0) must be > 0: files without a deleted row would be written again and again",
    ),
    (
        {"delete_ratio_threshold": 30},
        "'delete-ratio-threshold' (30.0) must be <= 1: a file has no more rows to delete than it holds",
    ),
    (
        {"delete_ratio_spread": 1},
        "'delete-ratio-spread' (1.0) must be >= 0 and < 1: it is a part of 'delete-ratio-threshold', below all of it",
    ),
    ({"delete_ratio_threshold": "30%"}, "'delete-ratio-threshold' ('30%') must be a share of rows, such as 0.3"),
    (
        {"delete_file_threshold": 0},
        "'delete-file-threshold' (0) must be >= 1: files without deletes would be written again and again",
    ),
    (
        {"max_delete_files": -1},
        "'max-delete-files' (-1) must be >= 0: no file is read with fewer delete files than none",
    ),
    ({"max_snapshots": 0}, "'max-snapshots' (0) must be >= 1: the newest snapshot is the table itself"),
    ({"progress_max_age_ms": -1}, "'progress-max-age-ms' (-1) must be >= 0: no progress is younger than now"),
    (
        {"bytes_per_row": 0},
        "'bytes-per-row' (0.0) must be > 0: the number of files of a batch is computed from it; leave it out to have "
        "it learned",
    ),
    (
        {"max_small_files": "6 files"},
        "'max-small-files' ('6 files') must be a whole number without a unit",
    ),
    (
        {"target_file_size_bytes": "512MB"},
        "'target-file-size-bytes' ('512MB') must be a size such as 64MiB or 1.5GiB, in powers of 1024, or a whole "
        "number of bytes",
    ),
    ({"max_small_files": 2.5}, "'max-small-files' (2.5) must be a whole number without a unit"),
    ({"max_small_files": True}, "'max-small-files' (True) must be a whole number without a unit"),
    (
        {"keep_versions": "all"},
        "'keep-versions' ('all') must be a whole number without a unit",
    ),
    (
        {"version_max_age_ms": "7 nights"},
        "'version-max-age-ms' ('7 nights') must be a duration such as 90s, 30m or 1h30m, or a whole number of "
        "milliseconds",
    ),
    ({"max_snapshots": None}, "'max-snapshots' (None) must be a whole number without a unit"),
    ({"max_small_files": None}, "'max-small-files' (None) must be a whole number without a unit"),
    ({"bytes_per_row": "many"}, "'bytes-per-row' ('many') must be a number of bytes, such as 84.5"),
]


@pytest.mark.parametrize(("values", "message"), REFUSED, ids=lambda value: str(value)[:40])
def test_contradictions_are_refused_with_both_sides_and_the_consequence(
    values: dict[str, object], message: str
) -> None:
    """The constructor and a mapping refuse the same values with the same sentence."""
    with pytest.raises(PolicyError) as caught:
        SizePolicy(**values)  # type: ignore[arg-type]
    assert str(caught.value) == message
    with pytest.raises(PolicyError) as caught:
        SizePolicy.resolve({}, values)
    assert str(caught.value) == message


@pytest.mark.parametrize("value", ["", "1e9", "0x10", "1_000", "1.0", "nan", "५", "512 MB"])
def test_property_numbers_are_read_strictly(value: str) -> None:
    """A property that is no number is refused by its full name; Iceberg's own one is read by others, too, and takes
    no unit."""
    for name, wanted in (
        ("icesize.policy.target-file-size-bytes", "a size such as 64MiB"),
        ("icesize.policy.max-small-files", "a whole number without a unit"),
        ("write.target-file-size-bytes", "a whole number without a unit"),
    ):
        with pytest.raises(PolicyError) as caught:
            SizePolicy.resolve({name: value})
        assert str(caught.value).startswith(f"'{name}' ({value!r}) must be {wanted}")
    with pytest.raises(PolicyError):
        SizePolicy.resolve({"write.target-file-size-bytes": "64MiB"})


@pytest.mark.parametrize("value", ["", "nan", "inf", "1e3", "0.5 kB"])
def test_bytes_per_row_is_read_strictly(value: str) -> None:
    """Bytes per row may have a fraction, nothing else."""
    assert SizePolicy.resolve({"icesize.policy.bytes-per-row": "84.5"})[0].bytes_per_row == 84.5
    with pytest.raises(PolicyError, match="must be a number of bytes"):
        SizePolicy.resolve({"icesize.policy.bytes-per-row": value})


@given(st.integers(0, 2**45))
def test_budget_grows_with_the_batch_from_a_floor(batch_bytes: int) -> None:
    """Unset, the budget is four batches and at least 256 MiB; set, it is what was set."""
    assert SizePolicy().budget_for(batch_bytes) == max(4 * batch_bytes, 256 * MIB)
    assert SizePolicy(merge_budget_bytes=5).budget_for(batch_bytes) == 5


@given(st.integers(0, 10**7))
def test_merge_deadline_is_as_long_as_the_write(write_ms: int) -> None:
    """Unset, merges get as long again as the write took and at least a second; 0 is a deadline too."""
    assert SizePolicy().merge_deadline_for(write_ms) == max(write_ms, 1_000)
    assert SizePolicy(merge_deadline_ms=0).merge_deadline_for(write_ms) == 0


def test_documented_keys_are_the_fields() -> None:
    """The documented table has every key once, in field order, each with a default and a source."""
    names = [f.name.replace("_", "-") for f in fields(SizePolicy) if f.name != "given"]
    assert [row[0] for row in DOCUMENTED] == names
    assert {key: default for key, default, _ in DOCUMENTED} == {
        "target-file-size-bytes": "512 MiB",
        "small-file-limit-bytes": "0.75 x target",
        "max-small-files": "6",
        "merge-budget-bytes": "unset",
        "merge-deadline-ms": "unset",
        "commit-deadline-ms": "600000",
        "cold-after-commits": "20",
        "bytes-per-row": "unset",
        "merge-by-copying": "true",
        "apply-deletes": "true",
        "into-current-spec": "false",
        "delete-ratio-threshold": "0.3",
        "delete-ratio-spread": "0.0",
        "delete-file-threshold": "unset",
        "max-delete-files": "6",
        "close-file-cost-bytes": "65536",
        "keep-versions": "unset",
        "version-max-age-ms": "604800000",
        "max-snapshots": "2000",
        "progress-max-age-ms": "604800000",
    }
    assert all(source for _, _, source in DOCUMENTED)
