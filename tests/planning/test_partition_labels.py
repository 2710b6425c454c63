"""Labels of partitions can be read back, whatever their fields and texts are called."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from icesize.planning.partition_labels import label_of, read_label

SPECIAL = st.sampled_from(
    ["null", "", " ", '"', '"null"', "\\", "a/b", "/p=", "p=1/q=2", "a,b", "a=b", "\n", "ü\u2028"]
)
TEXTS = SPECIAL | st.text(max_size=6) | st.lists(SPECIAL | st.sampled_from("/=pq"), max_size=4).map("".join)
NAMES = st.sampled_from(["p", "q", "p=q", "a/b", '"p"', "null", "b", "/b", "/p", "//"]) | TEXTS.filter(bool)


@example({"p": "null", "q": None}, set())
@example({"/l": "x", "l": " "}, set())
@example({"k": "x/a", "l": "1"}, {"a/l"})
@example({"p": 'a/q="b"'}, {"q"})
@example({'"': None, "=": None}, set())
@given(st.dictionaries(NAMES, st.none() | TEXTS, min_size=1, max_size=3), st.sets(NAMES, max_size=2))
def test_a_label_is_read_as_what_it_was_made_of(values: dict[str, str | None], others: set[str]) -> None:
    """NULL, quotes, commas, equals signs, slashes, spaces and line ends come back; other fields of the table are no
    obstacle."""
    assert read_label(label_of(values), {*values, *others}) == list(values.items())


@pytest.mark.parametrize(
    ("values", "label"),
    [
        ({"hour": "h191", "kind": "3"}, "hour=h191/kind=3"),
        ({"zone": "America/New_York"}, "zone=America/New_York"),
        ({"p": None}, "p=null"),
        ({"p": "null"}, 'p="null"'),
        ({"p": ""}, 'p=""'),
        ({"p": "a/q=b"}, 'p="a/q=b"'),
        ({"p": 'say "yes"'}, 'p=say "yes"'),
        ({}, ""),
    ],
)
def test_only_what_would_be_read_otherwise_is_quoted(values: dict[str, str | None], label: str) -> None:
    """Most texts are written as they are."""
    assert label_of(values) == label
    assert read_label(label, values) == list(values.items())


@pytest.mark.parametrize("label", ["p", "p/q=1", "x"])
def test_a_field_without_a_value_is_refused(label: str) -> None:
    """It is not taken for an empty text."""
    with pytest.raises(ValueError, match="expected FIELD=VALUE"):
        read_label(label, ["p", "q"])


@pytest.mark.parametrize("text", ["a/b", "year=2024/month=01", '"open', 'a"b', "a,b", " a ", "x/y=z"])
def test_text_without_quotes_is_read_as_it_is(text: str) -> None:
    """A command line that has always worked goes on working."""
    assert read_label(f"p={text}", ["p", "q"]) == [("p", text)]
