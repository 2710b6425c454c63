"""What a table's own metadata and bounds say about columns to cluster by, and whether clustering keeps the promise."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.table.statistics import BlobMetadata, StatisticsFile

import icesize
from icesize.planning.insight.inspection import Inspection
from icesize.sized_table import SizedTable
from icesize.table.state import column_advice
from tests.support.tables import arrow, make_table

FILES, ROWS = 12, 400
SIZES = {"target-file-size-bytes": 5000, "small-file-limit-bytes": 3000}


def opened(lake: SqlCatalog) -> SizedTable:
    return icesize.open(None, "lake.db.t", catalog=lake, policy=SIZES)


def inspected(lake: SqlCatalog, **options: Iterable[str]) -> Inspection:
    return opened(lake).inspect(**options)


def advice(lake: SqlCatalog) -> list[str]:
    return [advice.sentence for advice in inspected(lake).advice if "clustering" in advice.sentence]


@pytest.fixture
def table(lake: SqlCatalog) -> Table:
    """Files in order of nothing: ids at random, of one kind, times that are the ids."""
    made, chance = make_table(lake), random.Random(1)
    for _ in range(FILES):
        made.append(arrow(chance.sample(range(10**6), ROWS)))
    return made


def test_columns_that_queries_may_ask_for_are_named(table: Table, lake: SqlCatalog) -> None:
    """Without a reason to choose one, and never a partition column; in the report as well."""
    [sentence] = advice(lake)
    assert re.match(
        r"a query for one value of id opens 1[012]\.\d of 12 files on average, about 1\.\d after clustering", sentence
    )
    assert sentence.endswith(
        "by it (the same holds for ts); to see the columns to cluster by, run `icesize inspect` with `--filter` and "
        "your query filters"
    )
    assert "kind" not in sentence
    told = opened(lake).report().advice
    assert any("A query for one value of id opens" in each.sentence for each in told)


def test_the_promise_is_kept(table: Table, lake: SqlCatalog) -> None:
    """What clustering by the column then comes to, by the files that it has written; after it nothing is advised."""
    [sentence] = advice(lake)
    files, promised = re.findall(r"opens ([\d.]+) of 12 files on average, about ([\d.]+)", sentence)[0]
    before = opened(lake).plan_clustering("id")
    assert before is not None
    assert before.clustering is not None
    assert before.clustering.before["id"].point_files == pytest.approx(float(files), abs=0.5)
    report = opened(lake).cluster("id")
    assert report.clustering is not None
    assert report.clustering["after"]["id"]["point_files"] == pytest.approx(float(promised), abs=0.3)
    assert advice(lake) == []


@pytest.mark.parametrize("reason", ["sort order", "identifier"])
def test_what_the_table_says_itself_is_a_reason(table: Table, lake: SqlCatalog, reason: str) -> None:
    """The first column of its sort order, and identifier fields, come first, with the command."""
    if reason == "sort order":
        with table.update_sort_order() as change:
            change.asc("ts", "identity")
        [sentence] = advice(lake)
        assert "a query for one value of ts, the first of the table's sort order, opens " in sentence
        assert sentence.endswith(": `icesize cluster lake.db.t --by ts`")
    else:
        with table.update_schema(allow_incompatible_changes=True) as schema:
            schema.update_column("id", required=True)
            schema.set_identifier_fields("id")
        [sentence] = advice(lake)
        assert "a query for one value of id, an identifier field, opens " in sentence


def test_numbers_of_values_come_from_statistics(lake: SqlCatalog) -> None:
    """Files that all begin and end with the same ids say nothing; what an engine has counted does."""
    made, chance = make_table(lake), random.Random(1)
    for _ in range(FILES):
        made.append(arrow([0, *chance.sample(range(1, 999), ROWS), 999]))
    assert advice(lake) == []
    head = made.refresh().current_snapshot()
    assert head is not None
    for count, said in (("4", False), ("1000", True)):
        blob = BlobMetadata(
            type="apache-datasketches-theta-v1", snapshot_id=head.snapshot_id, sequence_number=1, fields=[1],
            properties={"ndv": count},
        )  # fmt: skip
        path = f"{made.location()}/metadata/{count}.stats"
        with made.update_statistics() as change:
            change.set_statistics(
                StatisticsFile(
                    snapshot_id=head.snapshot_id, statistics_path=path, file_size_in_bytes=1,
                    file_footer_size_in_bytes=1, blob_metadata=[blob],
                )
            )  # fmt: skip
        assert bool(advice(lake)) == said


def test_nothing_is_said_unasked_where_it_costs_or_is_known(
    table: Table, lake: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many files bounds are read for filters only; filters, and a table that is to be clustered, speak for
    themselves."""
    assert advice(lake) != []
    assert not any("the same holds" in advice.sentence for advice in inspected(lake, filters=["id = 7"]).advice)
    with monkeypatch.context() as patched:
        patched.setattr(column_advice, "MOST_FILES", FILES - 1)
        assert advice(lake) == []
    with table.transaction() as change:
        change.set_properties({"icesize.cluster.by": "ts"})
    assert advice(lake) == []
