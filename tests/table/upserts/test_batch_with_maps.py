"""Batches of upserts with maps of keys make the table that they make without."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog import Catalog

from icesize.parquet.deletes.deleted_rows import deleted_rows
from icesize.parquet.files.settings import WriteSettings
from icesize.table.records.ledger import LedgerEntry
from icesize.table.state.handle import TableHandle
from icesize.table.upserts.batch import merge_here
from icesize.table.upserts.index_files import MapSettings
from icesize.table.upserts.settings import WantedRule
from tests.support.examples import examples
from tests.support.row_lineage import lineage_of
from tests.support.tables import append, check, compact, live_paths, local, make_table, sqlite_catalog
from tests.support.upserts import Event, Row, events_of, live_rows, live_rows_of, upsert
from tests.support.v3_tables import as_v3

RULE = WantedRule(key="id", order_by="ts")
SPECS: dict[str, Mapping[str, str]] = {"none": {}, "kind": {"kind": "identity"}, "bucket": {"id": "bucket[4]"}}


def table_in(folder: Path, spec: str, version: int) -> Catalog:
    """A catalog with the empty table `db.t`."""
    folder.mkdir()
    catalog = sqlite_catalog(folder)
    make_table(catalog, SPECS[spec], {"write.target-file-size-bytes": "200000"})
    if version == 3:
        as_v3(catalog)
    return catalog


def commit(
    catalog: Catalog, events: Sequence[Event], batch: int, maps: Path | None, rule: WantedRule = RULE,
    *, merging: bool = True,
) -> None:  # fmt: skip
    upsert(
        TableHandle(catalog, ("db", "t")), rule, lambda current, rule: [lambda: events_of(events)],
        LedgerEntry("s", "q", batch), maps=None if maps is None else MapSettings(str(maps), 2**20),
        merges=merge_here if merging else None,
    )  # fmt: skip


def row_ids(catalog: Catalog) -> dict[int, int | None]:
    """The row id of each key."""
    table, found = catalog.load_table("db.t"), dict[int, int | None]()
    settings = WriteSettings.of(table.metadata, table.io.properties, 2**30)
    for file in {file.path: file for file, _ in live_rows_of(table)}.values():
        deleted = deleted_rows([file], settings, file.partition).positions.get(file.path, ())
        found |= {key: row_id for key, (row_id, _) in lineage_of(file, deleted).items()}
    return found


def damage(maps: Path, chance: random.Random) -> None:
    """Change, cut off or remove some of the files."""
    for path in sorted(each for each in maps.rglob("*") if each.is_file() and chance.random() < 0.5):
        content = bytearray(path.read_bytes())
        if content and chance.random() < 0.5:
            content[chance.randrange(len(content))] ^= 1
            path.write_bytes(content)
        elif chance.random() < 0.5:
            path.write_bytes(content[: len(content) // 2])
        else:
            path.unlink()


@pytest.mark.engine
@examples(40)
@given(st.integers(0, 2**32), st.sampled_from(list(SPECS)), st.sampled_from([2, 3]))
def test_maps_change_time_only(tmp_path_factory: pytest.TempPathFactory, seed: int, spec: str, version: int) -> None:
    """Beside another writer, and with files of maps damaged, rows are equal and keep their ids."""
    chance, folder = random.Random(seed), tmp_path_factory.mktemp("history")
    rule = replace(RULE, tombstones=chance.choice([None, "2 days"]))
    plain, mapped = (table_in(folder / name, spec, version) for name in ("plain", "mapped"))
    before = dict[int, int | None]()
    for batch in range(6):
        events = {(chance.randrange(60), chance.randrange(batch * 5, batch * 5 + 20)): None for _ in range(40)}
        kinds: list[Event] = [(key, time, chance.choice(["a", "b", "c", None])) for key, time in events]
        commit(plain, kinds, batch, None, rule)
        commit(mapped, kinds, batch, folder / "maps", rule)
        if chance.random() < 0.3 and spec == "kind":
            for catalog in (plain, mapped):
                append(catalog, [100 + batch], "a")
                compact(catalog, "a")
        if chance.random() < 0.3:
            damage(folder / "maps", chance)
        assert live_rows(mapped) == live_rows(plain)
        after = row_ids(mapped) if version == 3 else {}
        assert {key: after[key] for key in after.keys() & before.keys()} == {
            key: before[key] for key in after.keys() & before.keys()
        }
        assert len(set(after.values())) == len(after)
        before = after
    check(mapped.load_table("db.t"))


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("spec", SPECS)
def test_rows_are_found_again_without_their_files(tmp_path: Path, spec: str, version: int) -> None:
    """Batches read no data file in which an earlier one searched, to find rows and to keep their ids."""
    catalog = table_in(tmp_path / "lake", spec, version)
    rows: list[Row] = [(key, 1, "abc"[key % 3]) for key in range(50)]
    commit(catalog, rows, 0, tmp_path / "maps", merging=False)
    kept = {local(path): local(path).read_bytes() for path in live_paths(catalog.load_table("db.t"))}
    commit(catalog, [(key, 2, "b") for key in range(0, 50, 2)], 1, tmp_path / "maps", merging=False)
    before = {} if version == 2 else row_ids(catalog)
    for path in kept:
        path.unlink()
    commit(catalog, [(key, 3, "c") for key in range(0, 50, 3)], 2, tmp_path / "maps", merging=False)
    for path, content in kept.items():
        path.write_bytes(content)

    expected = {key: (key, 1, kind) for key, _, kind in rows}
    expected |= {key: (key, 2, "b") for key in range(0, 50, 2)} | {key: (key, 3, "c") for key in range(0, 50, 3)}
    assert live_rows(catalog) == sorted(expected.values())
    assert version == 2 or row_ids(catalog) == before
