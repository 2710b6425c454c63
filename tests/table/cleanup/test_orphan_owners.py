"""Files that another table or another name may need are no orphans: links, shared locations, and metadata of others."""

from __future__ import annotations

import gzip
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchIcebergTableError, NoSuchNamespaceError, NoSuchTableError
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

from icesize.errors import TableError
from icesize.table.cleanup.may_delete import CatalogOwners
from icesize.table.cleanup.orphans import DAY_MS
from icesize.table.storage.listing import list_files
from icesize.table.storage.reachable import Reachable
from icesize.table.storage.shared_location import check_spelling
from tests.support.orphans import HOUR_MS, Search, aged, all_aged, exists, left_by_batch, leftover, on_load
from tests.support.tables import SCHEMA, append, arrow, check, ids_of, local, make_table, spec_of, two_files
from tests.support.v3_tables import with_document

BEING_WRITTEN = "1 metadata file without a whole text left alone for three days: perhaps still being written"


def shared(lake: SqlCatalog, place: str) -> str:
    """A second table below the first one's location, with an old data file; returns its newest metadata file."""
    location = lake.load_table("db.t").location() + place
    table = lake.create_table("db.other", lake.load_table("db.t").schema(), location=location)
    table.append(arrow([7]))
    all_aged(table)
    table = lake.load_table("db.other")
    return str(table.metadata_location)


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_location_of_two_tables_is_refused(lake: SqlCatalog, search: Search, dry_run: bool) -> None:
    """The other table's files would be orphans: nothing is deleted, and its name is said."""
    two_files(lake)
    shared(lake, "")
    everything = set(list_files(search.table.io, search.table.location()))
    with pytest.raises(TableError) as refused:
        search(dry_run=dry_run)
    assert str(refused.value) == (
        "Cannot delete files of 'lake.db.t': 'db.other' has the same location, so the owner of a file is unknown; "
        "give each table a location of its own"
    )
    assert set(list_files(search.table.io, search.table.location())) == everything
    assert ids_of(lake, "db.other") == [7]


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_table_with_two_names_keeps_all_of_its_files(lake: SqlCatalog, search: Search, dry_run: bool) -> None:
    """The other name has an older state of the table: no file goes, and the name is said."""
    table = two_files(lake)
    lake.register_table("db.copy", table.metadata_location)
    append(lake, [9])
    old = leftover(table, "data/x.parquet")
    with pytest.raises(TableError, match=r"'db\.copy' in the same catalog is another name of this table"):
        search(dry_run=dry_run)
    assert exists(old)


@pytest.mark.parametrize("place", ["/nested", "/data/deep/er"])
@pytest.mark.parametrize("is_known", [True, False])
def test_a_table_below_the_location_keeps_its_files(
    lake: SqlCatalog, search: Search, place: str, is_known: bool
) -> None:
    """Its name in the catalog, or else its metadata files, lead to them; what nobody needs goes without a doubt."""
    two_files(lake)
    newest = shared(lake, place)
    uuid = lake.load_table("db.other").metadata.table_uuid
    ours, theirs = left_by_batch(search.table, "s", 3, 4 * DAY_MS), leftover(search.table, "data/x.parquet")
    if not is_known:
        lake.drop_table("db.other")
    report = search()
    assert (exists(ours), exists(theirs)) == (False, not is_known)
    assert report.notes[0].startswith("5 files left alone: needed by other tables (")
    if not is_known:
        assert report.notes[-2].startswith(f"metadata files of another table ({uuid}) lie here. Use --trust-location")
        assert report.notes[-1].startswith(f"2 metadata files of another table ({uuid}) and its files left alone, the ")
        lake.register_table("db.other", newest)
    assert ids_of(lake, "db.other") == [7]
    check(search.table)


def metadata_text(uuid: str, padding: int = 0) -> str:
    return json.dumps({"format-version": 2, "location": "x" * padding, "table-uuid": uuid})


@pytest.mark.parametrize("name", ["v3.metadata.json", "v3.gz.metadata.json", "v3.metadata.json.gz"])
@pytest.mark.parametrize("padding", [0, 10_000])
def test_whose_metadata_a_file_is(lake: SqlCatalog, search: Search, name: str, padding: int) -> None:
    """The UUID is found wherever it is, compressed or not: our own may go, another one's stops everything."""
    table = two_files(lake)
    path = local(leftover(table, f"metadata/{name}", text=""))

    def put(uuid: str) -> None:
        data = metadata_text(uuid, padding).encode()
        path.write_bytes(gzip.compress(data) if "gz" in name else data)
        aged(path)

    put("11111111-2222-3333-4444-555555555555")
    report = search()
    assert (report.files_deleted, path.exists()) == (0, True)
    assert report.notes[-1].startswith(
        "1 metadata file of another table (11111111-2222-3333-4444-555555555555) and its files left alone, the first "
        f"is file://{path}. If that table was dropped"
    )
    put(str(table.metadata.table_uuid).upper())
    assert search().files_deleted == 1


@pytest.mark.parametrize("text", ["{}", '{"format-version": 1}', "[]", "nonsense"])
def test_metadata_that_cannot_be_read_is_refused(lake: SqlCatalog, search: Search, text: str) -> None:
    """Nobody can say whose it is."""
    table = two_files(lake)
    path = leftover(table, "metadata/v3.metadata.json", text=text)
    with pytest.raises(TableError, match=f"Cannot look for orphan files: {path} cannot be read"):
        search()


@pytest.mark.parametrize("text", ["", "{", '{"format-version": 2, "location": "file:///é'])
@pytest.mark.parametrize("whole", [True, False])
def test_metadata_that_is_being_written_is_no_reason(lake: SqlCatalog, search: Search, text: str, whole: bool) -> None:
    """A young file without a whole text stays and keeps nothing else from going, also cut within a character."""
    table = two_files(lake)
    path, old = leftover(table, "metadata/v3.metadata.json", HOUR_MS, text), leftover(table, "data/x.parquet")
    if not whole:
        local(path).write_bytes(text.encode()[:-1])
    report = search()
    assert (report.files_deleted, report.notes) == (1, (BEING_WRITTEN,))
    assert (exists(path), exists(old)) == (True, False)
    check(search.table)


@pytest.mark.parametrize("text", ["", "{", '{"format-version": 2, "location": "x'])
def test_metadata_that_a_full_disk_cut_off_is_an_orphan(lake: SqlCatalog, search: Search, text: str) -> None:
    """After three days it goes, whatever age is asked for, as no table of the catalog names it; until then it stays."""
    path = leftover(two_files(lake), "metadata/v3.metadata.json", 2 * DAY_MS, text)
    report = search(older_than_ms=DAY_MS)
    assert (report.files_found, report.notes, exists(path)) == (0, (BEING_WRITTEN,), True)
    aged(path)
    assert (search(older_than_ms=DAY_MS).files_deleted, exists(path)) == (1, False)
    check(search.table)


def test_metadata_that_a_full_disk_cut_off_stays_if_a_table_has_it(lake: SqlCatalog, search: Search) -> None:
    """A table whose newest metadata file is cut off cannot be loaded, and is kept for its owner to bring back."""
    table = two_files(lake)
    other = lake.create_table("db.other", SCHEMA, properties={"write.metadata.path": f"{table.location()}/metadata/o"})
    local(other.metadata_location).write_bytes(b"")
    aged(other.metadata_location)
    report = search()
    assert (report.files_deleted, exists(other.metadata_location)) == (0, True)
    assert "1 table cannot be read, the first is db.other: " in report.notes[-1]


@pytest.mark.parametrize("text", ["{}", '{"format-version": 1}', "[]"])
def test_young_metadata_that_is_whole_and_of_nobody_is_refused(lake: SqlCatalog, search: Search, text: str) -> None:
    """Nothing more will be written to it, so its age is no excuse."""
    path = leftover(two_files(lake), "metadata/v3.metadata.json", HOUR_MS, text)
    with pytest.raises(TableError, match=f"Cannot look for orphan files: {path} cannot be read"):
        search()


def test_a_link_to_the_location_does_not_make_orphans(lake: SqlCatalog, search: Search, tmp_path: Path) -> None:
    """A table whose location is spelt otherwise than its files: these are known by device and inode, and stay."""
    table = two_files(lake)
    link = tmp_path / "link"
    link.symlink_to(local(table.location()))
    old = leftover(table, "data/x.parquet")
    all_aged(table)
    moved = table.metadata.model_copy(update={"location": f"file://{link}"})
    search.changes["reload"] = lambda: Table(table._identifier, moved, table.metadata_location, table.io, table.catalog)
    report = search()
    assert (report.files_deleted, exists(old)) == (1, False)
    assert report.notes[0].endswith("left alone: needed under another name, by a link or a mount")
    check(search.table)


def test_files_named_through_a_link_into_the_location_stay(lake: SqlCatalog, search: Search, tmp_path: Path) -> None:
    """Links to a folder and to a file, and a hard link: what is listed under one name is needed under another."""
    table = make_table(lake, {})
    inner = local(table.location()) / "data" / "import"
    inner.mkdir(parents=True)
    names = [inner / f"{number}.parquet" for number in range(3)]
    for number, name in enumerate(names):
        pq.write_table(arrow([number]), name)
    (tmp_path / "mounted").symlink_to(inner)
    (tmp_path / "one.parquet").symlink_to(names[1])
    (tmp_path / "two.parquet").hardlink_to(names[2])
    table.add_files([f"file://{tmp_path}/{name}" for name in ("mounted/0.parquet", "one.parquet", "two.parquet")])
    old = leftover(table, "data/import/x.parquet")
    all_aged(table)
    report = search()
    assert (report.files_deleted, exists(old), [name.exists() for name in names]) == (1, False, [True] * 3)
    assert report.notes == ("3 files left alone: needed under another name, by a link or a mount",)
    assert ids_of(lake) == [0, 1, 2]


def test_a_folder_that_is_a_link_within_the_location_keeps_its_files(lake: SqlCatalog, search: Search) -> None:
    """A partition was moved and a link left in its place: no listing follows it, and its files stay."""
    table = two_files(lake)
    data = local(table.location()) / "data"
    (data / "kind=a").rename(data / "moved")
    (data / "kind=a").symlink_to(data / "moved")
    all_aged(table)
    assert search().files_deleted == 0
    check(search.table)


def test_a_file_that_becomes_needed_under_another_name_is_spared(
    lake: SqlCatalog, search: Search, tmp_path: Path
) -> None:
    """It joins the table through a link after it was found."""
    table = make_table(lake, {})
    append(lake, [1])
    orphan = local(leftover(table, "data/x.parquet"))
    pq.write_table(arrow([2]), orphan)
    aged(orphan)
    (tmp_path / "link.parquet").symlink_to(orphan)
    on_load(search, 3, lambda: lake.load_table("db.t").add_files([f"file://{tmp_path}/link.parquet"]))
    report = search()
    assert (report.files_deleted, report.notes) == (0, ("1 file became part of the table during the run",))
    assert ids_of(lake) == [1, 2]


def neighbour(lake: SqlCatalog, properties: dict[str, str], name: str = "db.other") -> Table:
    """A table elsewhere with a row, of which some files may lie below the first one's location."""
    other = lake.create_table(name, SCHEMA, properties=properties)
    other.append(arrow([7]))
    return lake.load_table(name)


@pytest.mark.parametrize(
    "key",
    ["write.data.path", "write.object-storage.path", "write.folder-storage.path"],
)
def test_what_other_tables_keep_here_stays(lake: SqlCatalog, search: Search, key: str) -> None:
    """Their folders show which ones to read; what nobody refers to goes from the same folder."""
    table = two_files(lake)
    place = f"{table.location()}/data/other"
    # PyIceberg writes by the first of these only
    other = neighbour(lake, {"write.data.path": place})
    with other.transaction() as change:
        change.remove_properties("write.data.path")
        change.set_properties({key: place})
    old = leftover(table, "data/other/x.parquet")
    all_aged(table)
    report = search()
    assert (report.files_deleted, exists(old)) == (1, False)
    assert report.notes == ("1 file left alone: needed by other tables (db.other)",)
    assert ids_of(lake, "db.other") == [7]
    check(search.table)


def test_a_table_whose_folder_holds_the_location_keeps_its_files(lake: SqlCatalog, search: Search) -> None:
    """A folder above this one, in a namespace within another, spelt as Java spells it, through a link."""
    table = two_files(lake)
    above = local(table.location()).parent
    link = above.parent / "link"
    link.symlink_to(above)
    lake.create_namespace("db.inner")
    neighbour(lake, {"write.data.path": f"file:{link}/t"}, "db.inner.other")
    all_aged(table)
    assert search().files_deleted == 0
    assert ids_of(lake, "db.inner.other") == [7]


@pytest.mark.parametrize("hidden", ["load", "column", "not found", "namespace", "list", "limit", "files"])
def test_tables_that_cannot_be_read_protect_all_but_our_own_files(
    lake: SqlCatalog, search: Search, hidden: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is damaged, a catalog that cannot list, too many tables: the report says so, an option overrides it."""
    table = two_files(lake)
    other = neighbour(lake, {"write.data.path": f"{table.location()}/data"})
    theirs, ours = leftover(table, "data/theirs.parquet"), left_by_batch(table, "s", 3, 4 * DAY_MS)
    vectors = leftover(
        table, f"data/{local(ours).relative_to(local(table.location()) / 'data').with_suffix('.puffin')}"
    )
    # as icesize writes the other table, in a folder that this one does not have
    named = leftover(table, f"data/other/{local(ours).name}")
    if hidden == "load":
        local(other.metadata_location).write_text("{")
    elif hidden == "column":
        metadata = local(other.metadata_location)
        metadata.write_text(metadata.read_text().replace('"long"', '"variant"'))
    elif hidden == "not found":
        only_without(lake, monkeypatch, "load_table", NoSuchTableError("no table"), "db.other")
    elif hidden == "namespace":
        only_without(lake, monkeypatch, "list_tables", NoSuchNamespaceError("no namespace"), "db")
    elif hidden == "list":
        monkeypatch.setattr(type(lake), "list_namespaces", lambda *_: (_ for _ in ()).throw(NotImplementedError("no")))
    elif hidden == "limit":
        search.changes["others"] = CatalogOwners(lake, ("db", "t"), most_tables=0)
    else:
        snapshot = other.current_snapshot()
        assert snapshot is not None
        local(snapshot.manifest_list).unlink()
    left = "2 files left alone: only files with icesize's own names go, as other tables may need files here"
    report = search()
    assert (report.files_deleted, exists(ours), exists(theirs), report.notes[0]) == (2, False, True, left)
    assert (exists(vectors), exists(named)) == (False, True)
    said = {
        "load": "1 table cannot be read, the first is db.other: ",
        "column": "1 table cannot be read, the first is db.other: Cannot open 'lake.db.other': PyIceberg cannot",
        "not found": "1 table cannot be read, the first is db.other: it is not found. ",
        "namespace": "the namespace 'db' is not found. ",
        "list": "the catalog cannot list its tables (NotImplementedError: no). ",
        "limit": "1 table beyond the first 0 were not loaded. ",
        "files": "1 table cannot be read, the first is db.other: FileNotFoundError",
    }
    assert report.notes[1].startswith(said[hidden])
    assert report.notes[1].endswith(". Use --trust-location if no other table has files here")
    report = search(trust_location=True)
    assert (report.files_deleted, exists(theirs), report.notes) == (2, False, ())
    check(search.table)


def only_without(lake: SqlCatalog, patch: pytest.MonkeyPatch, call: str, error: Exception, hidden: str) -> None:
    """Have a call of the catalog raise this for one name, as for a principal without a right."""
    real = getattr(lake, call)

    def refusing(name: str | tuple[str, ...]) -> Any:
        if ".".join((name,) if isinstance(name, str) else name) == hidden:
            raise error
        return real(name)

    patch.setattr(lake, call, refusing)


@pytest.mark.parametrize("moment", ["listed by its old name", "not listed at all"])
def test_a_table_that_is_renamed_while_the_catalog_is_listed_keeps_its_files(
    lake: SqlCatalog, search: Search, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found by its new name, also where the namespace of that name was listed before."""
    table = two_files(lake)
    lake.create_namespace("a")
    neighbour(lake, {"write.data.path": f"{table.location()}/data/other"})
    all_aged(table)
    real, before = lake.list_tables, {("a",): lake.list_tables("a"), ("db",): lake.list_tables("db")}

    def list_tables(namespace: tuple[str, ...]) -> list[tuple[str, ...]]:
        if lake.table_exists("db.other") and namespace == ("db",):
            lake.rename_table("db.other", "a.other")
            if moment == "listed by its old name":
                return before.pop(namespace)
        return before.pop(namespace) if namespace == ("a",) and namespace in before else real(namespace)

    monkeypatch.setattr(lake, "list_tables", list_tables)
    assert search().files_deleted == 0
    assert ids_of(lake, "a.other") == [7]


@pytest.mark.parametrize("kind", ["view", "not Iceberg"])
def test_what_is_certainly_no_table_is_no_doubt(
    lake: SqlCatalog, search: Search, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A view has no files, and a table of another format is in no Iceberg metadata: orphans go beside them."""
    table = two_files(lake)
    neighbour(lake, {})
    error = NoSuchTableError("no table") if kind == "view" else NoSuchIcebergTableError("of another format")
    only_without(lake, monkeypatch, "load_table", error, "db.other")
    monkeypatch.setattr(lake, "view_exists", lambda _: kind == "view")
    old = leftover(table, "data/x.parquet")
    report = search()
    assert (report.files_deleted, report.notes, exists(old)) == (1, (), False)


def test_a_table_with_a_column_that_cannot_be_read_is_a_doubt(lake: SqlCatalog, search: Search) -> None:
    """It may have files at the same place: nothing is deleted, although a view with such an error would be none."""
    table = two_files(lake)
    neighbour(lake, {})

    def with_variant(document: dict[str, Any]) -> None:
        document["schemas"][-1]["fields"][0]["type"] = "variant"

    with suppress(Exception):  # PyIceberg loads what it registers
        with_document(lake, with_variant, "db.other")
    old = leftover(table, "data/x.parquet")
    report = search()
    assert (report.files_deleted, exists(old)) == (0, True)
    assert "Unsupported field type: 'variant'" in str(report.notes)


def test_files_in_a_former_folder_of_another_table_stay(lake: SqlCatalog, search: Search) -> None:
    """Its manifests name them, although no folder of that table lies here any more; an orphan beside them goes."""
    table = two_files(lake)
    place = f"{table.location()}/inner"
    other = neighbour(lake, {"write.data.path": place})
    with other.transaction() as change:
        change.remove_properties("write.data.path")
    lake.load_table("db.other").append(arrow([8]))
    old = leftover(table, "inner/x.parquet")
    all_aged(table)
    report = search()
    assert (report.files_deleted, exists(old)) == (1, False)
    assert report.notes == ("1 file left alone: needed by other tables (db.other)",)
    assert ids_of(lake, "db.other") == [7, 8]
    check(search.table)


def test_other_tables_are_loaded_only_if_they_matter(
    lake: SqlCatalog, search: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None when nothing is due or the location is trusted; else each once, also in a pass over several tables."""
    table = two_files(lake)
    neighbour(lake, {})
    loaded: list[Any] = []
    real = lake.load_table

    def counted(name: Any) -> Table:
        loaded.append(name)
        return real(name)

    monkeypatch.setattr(lake, "load_table", counted)
    search()
    old = leftover(table, "data/x.parquet")
    search(trust_location=True, dry_run=True)
    assert ("db", "other") not in loaded
    search.changes["others"] = CatalogOwners(lake)
    assert [search(dry_run=True).files_found for _ in range(2)] == [1, 1]
    assert (loaded.count(("db", "other")), search().files_deleted, exists(old)) == (1, 1, False)


@pytest.mark.parametrize(
    "needed",
    [
        "s3://mirror/lake/t/data/k=1/a.parquet",
        "gs://bucket/lake/t/data/k=1/a.parquet",
        "s3://bucket/mounted/t/data/k=1/a.parquet",
        "s3a://bucket/lake/old/data/k=1/a.parquet",
    ],
)
def test_a_file_that_may_be_needed_under_another_name(needed: str) -> None:
    """The same path elsewhere may be the same file: another bucket, another store, another folder."""
    suspect = "s3://bucket/lake/t/data/k=1/a.parquet"
    reachable = Reachable()
    metadata = new_table_metadata(SCHEMA, spec_of({}), UNSORTED_SORT_ORDER, "s3://x/y", {})
    reachable.add(metadata, needed, PyArrowFileIO())
    with pytest.raises(TableError) as refused:
        check_spelling("s3://bucket/lake/t", reachable, ["s3://bucket/lake/t/data/z.parquet", suspect])
    assert str(refused.value) == (
        f"Cannot look for orphan files: the table needs {needed}, and {suspect} may be the same file under another "
        "name; write the table's location in the same form as the file paths in its metadata"
    )


@pytest.mark.parametrize(
    "needed", ["s3://other/x/data/k=2/a.parquet", "s3://bucket/lake/t2/a.parquet", "s3a://bucket/lake/t/data/b.parquet"]
)
def test_names_alone_are_no_doubt(needed: str) -> None:
    """Files that were added from elsewhere may share a file name with an orphan, not its path."""
    reachable = Reachable()
    metadata = new_table_metadata(SCHEMA, spec_of({}), UNSORTED_SORT_ORDER, "s3://x/y", {})
    reachable.add(metadata, needed, PyArrowFileIO())
    suspects = ["s3://bucket/lake/t/data/k=1/a.parquet", "s3://bucket/lake/t/data/b.parquet"]
    check_spelling("s3://bucket/lake/t", reachable, suspects)
    # it is the path that makes the doubt
    same_path = f"s3://mirror/{needed.split('/', 3)[3]}"
    with pytest.raises(TableError, match="may be the same file under another name"):
        check_spelling("s3://mirror", reachable, [same_path])
