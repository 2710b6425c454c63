"""Which tables of a catalog a pattern selects, and what is said of names without a table."""

from __future__ import annotations

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import ForbiddenError, NoSuchIcebergTableError, NoSuchTableError
from pyiceberg.schema import Schema

from icesize.errors import ArgumentError
from icesize.table.catalog.opening import LIST, LOAD
from icesize.table.catalog.tables import NotLoaded, TablePattern, load_named, names_of


def selected(catalog: Catalog, text: str) -> tuple[list[str], list[str]]:
    """Return the names that a pattern selects, and the doubts."""
    doubts = list[str]()
    names = names_of(catalog, doubts.append, TablePattern.of(text))
    return sorted(".".join(name) for name in names), doubts


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("lake", ["a.b.deep", "a.one", "a.two", "b.one"]),
        ("lake.a", ["a.b.deep", "a.one", "a.two"]),
        ("lake.a.b", ["a.b.deep"]),
        ("lake.a.*", ["a.b.deep", "a.one", "a.two"]),
        ("lake.a.o*", ["a.one"]),
        ("lake.*.one", ["a.one", "b.one"]),
        ("lake.*ee?", ["a.b.deep"]),
        ("lake.`a`.one", ["a.one"]),
        ("lake.?.tw[ox]", ["a.two"]),
    ],
)
def test_a_pattern_selects_tables(lake: Catalog, pattern: str, names: list[str]) -> None:
    """A pattern selects a table, a namespace with those below it, or the names that its wildcards fit."""
    for namespace in ("a", "a.b", "b"):
        lake.create_namespace(namespace)
    for name in ("a.one", "a.two", "a.b.deep", "b.one"):
        lake.create_table(name, Schema())
    assert selected(lake, pattern) == (names, [])


def test_a_name_that_is_not_there(lake: Catalog) -> None:
    """A plain name is passed on as a table, whose loading has the reason; a missing namespace of a pattern is named."""
    lake.create_namespace("a")
    assert selected(lake, "lake.a.gone") == (["a.gone"], [])
    assert selected(lake, "lake.gone.*") == ([], ["the namespace 'gone' is not found"])
    why = load_named(lake, ("a", "gone"))
    assert isinstance(why, NotLoaded)
    assert why.kind == "unreadable"


@pytest.mark.parametrize("text", ["", "lake.", "*.db.t", "lake..t"])
def test_patterns_without_a_catalog_or_a_part(text: str) -> None:
    """A pattern without a catalog's name, or with an empty part, is refused with the forms that are accepted."""
    with pytest.raises(ArgumentError, match=r"expected CATALOG, CATALOG.NAMESPACE or CATALOG.NAMESPACE.PATTERN"):
        TablePattern.of(text)


def test_names_without_a_table_have_a_kind(lake: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A view, a table of another format, one with a column that PyIceberg cannot read, and one without a right."""
    errors = {
        "view": NoSuchTableError("no table"), "hive": NoSuchIcebergTableError("no Iceberg table"),
        "hidden": NoSuchTableError("no table"), "denied": ForbiddenError("no"),
    }  # fmt: skip

    def load_table(name: tuple[str, ...]) -> None:
        raise errors[name[-1]]

    monkeypatch.setattr(lake, "load_table", load_table)
    monkeypatch.setattr(lake, "view_exists", lambda name: name[-1] == "view", raising=False)
    monkeypatch.setattr(lake, "list_tables", lambda _: pytest.fail("similar names are not looked for"))
    found = {name: load_named(lake, ("db", name)) for name in errors}
    assert {name: (each.kind, each.why) for name, each in found.items() if isinstance(each, NotLoaded)} == {
        "view": ("view", "it is a view"),
        "hive": ("other format", "NoSuchIcebergTableError: no Iceberg table"),
        "hidden": ("unreadable", "it is not found"),
        "denied": ("unreadable", f"ForbiddenError: no; {LOAD}"),
    }


def test_a_namespace_that_may_not_be_listed(lake: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below the namespace of the pattern it is a doubt; the namespace of the pattern itself has to be listed."""
    for namespace in ("a", "b"):
        lake.create_namespace(namespace)
        lake.create_table(f"{namespace}.t", Schema())
    listed = lake.list_tables

    def list_tables(namespace: tuple[str, ...]) -> list[tuple[str, ...]]:
        if namespace == ("a",):
            raise ForbiddenError("no")
        return listed(namespace)

    monkeypatch.setattr(lake, "list_tables", list_tables)
    assert selected(lake, "lake") == (["b.t"], [f"the namespace 'a' cannot be listed (ForbiddenError: no; {LIST})"])
    with pytest.raises(ForbiddenError):
        selected(lake, "lake.a")
