"""What the autopilot chose: stored in the table, read back, effective with `auto` alone, and below all other places."""

from __future__ import annotations

import pytest

from icesize.planning.reads import Reads
from icesize.policy import AUTO_PROPERTY, AUTOPILOT, MIB, SizePolicy, origins_of
from icesize.table.autopilot_settings import AutopilotRecord

RECORD = AutopilotRecord(
    5, 4, {"max-small-files": 12, "target-file-size-bytes": 128 * MIB}, ("u",), (Reads(7.0, 3, 1, ("u",), 0.5),), "so"
)
STORED = {AUTO_PROPERTY: RECORD.to_json()}
AUTO = {"icesize.policy.auto": "true"}


def test_a_record_is_read_as_it_was_written() -> None:
    """All fields survive, in far fewer than the 4,000 characters that some catalogs keep."""
    assert AutopilotRecord.of(STORED) == RECORD
    assert AutopilotRecord.of({}) == AutopilotRecord()
    wide = AutopilotRecord(reads=tuple(Reads(1000.5, 900, 90, ("customer_id", "day"), 0.5) for _ in range(12)))
    assert len(wide.to_json()) < 2_000


@pytest.mark.parametrize(
    "value", ["", "{", "[]", "{}", '{"looked-ms": "x"}', '{"policy": {"k": 1}}', '{"policy": {"max-small-files": 0}}']
)
def test_a_record_that_cannot_be_read_is_none(value: str) -> None:
    """Choices start anew, and the policy of the table warns and keeps its defaults."""
    assert AutopilotRecord.of({AUTO_PROPERTY: value}) == AutopilotRecord()
    policy, (warning,) = SizePolicy.resolve({AUTO_PROPERTY: value, **AUTO})
    assert policy == SizePolicy(auto=True, target_file_size_bytes=512 * MIB)
    assert warning == "ignored table property 'icesize.auto': it is not what the autopilot stores"


def test_choices_rank_below_what_people_set() -> None:
    """Properties, rules and arguments win; without `auto` the record means nothing."""
    chosen = SizePolicy.resolve(STORED | AUTO)[0]
    assert (chosen.max_small_files, chosen.target_file_size_bytes, chosen.small_file_limit_bytes) == (
        12, 128 * MIB, 96 * MIB,
    )  # fmt: skip
    assert SizePolicy.resolve(STORED)[0] == SizePolicy.resolve({})[0]
    assert SizePolicy.resolve(STORED, {"auto": True})[0].max_small_files == 12
    assert SizePolicy.resolve(STORED | AUTO, {"auto": False})[0].max_small_files == 6
    own = {"write.target-file-size-bytes": str(256 * MIB), "icesize.policy.max-small-files": "3"}
    mixed = SizePolicy.resolve(STORED | AUTO | own)[0]
    assert (mixed.max_small_files, mixed.target_file_size_bytes) == (3, 256 * MIB)


def test_no_other_key_comes_from_the_record() -> None:
    """Whoever edits the property by hand cannot set what the autopilot never chooses."""
    edited = {AUTO_PROPERTY: '{"policy": {"max-small-files": 3, "small-file-limit-bytes": 0}}'}
    policy = SizePolicy.resolve(edited | AUTO)[0]
    assert (policy.max_small_files, policy.merging) == (3, True)


def test_a_limit_that_somebody_set_keeps_its_target() -> None:
    """The chosen target could be below it."""
    limited = SizePolicy.resolve(STORED | AUTO | {"icesize.policy.small-file-limit-bytes": "300MiB"})[0]
    assert (limited.target_file_size_bytes, limited.max_small_files) == (512 * MIB, 12)


def test_the_origin_of_a_chosen_key_is_the_autopilot() -> None:
    """`config show` names it, also where it loses."""
    properties = STORED | AUTO | {"icesize.policy.max-small-files": "3"}
    policy = SizePolicy.resolve(properties)[0]
    origins = {origin.key: origin for origin in origins_of(policy, properties, None, "lake.db.t")}
    assert origins["target-file-size-bytes"].source == AUTOPILOT
    assert origins["max-small-files"].source == "table property icesize.policy.max-small-files"
    assert origins["max-small-files"].overridden == (AUTOPILOT,)
