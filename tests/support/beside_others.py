"""Random histories of merges, while others change the files that are being merged.

After each commit, every snapshot of a merge has the rows and the row ids of the snapshot before it, and a batch of
upserts leaves one row per key: `ModelledTable.look` reads all of them by Iceberg's specification.

    python -m tests.support.beside_others --first 0 --stories 1000
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from pyiceberg.table.snapshots import Operation

import icesize
from icesize import failpoints
from icesize.errors import IcesizeError
from icesize.planning.files import FileFact
from icesize.report import Report
from icesize.sized_table import SizedTable
from icesize.table.manifests.packing import Split
from tests.support.delete_files import delete_positions
from tests.support.machine import ModelledTable, Row
from tests.support.puffin import exchange_vectors
from tests.support.row_deletes import delete_ids
from tests.support.tables import commit_built, request_on, run, small_files, sqlite_catalog, theirs

MOMENTS = ("planned", "files-written", "before-swap")
POLICIES: list[dict[str, object]] = [
    {"target-file-size-bytes": 2**20, "small-file-limit-bytes": 700_000},
    {"target-file-size-bytes": 3_000, "small-file-limit-bytes": 2_200},
]
"""One new file, or several."""


class Story:
    """One table, what we do to it, and what others do meanwhile; `seen` counts what happened."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.modelled = ModelledTable(folder / "warehouse")
        self.modelled.own_catalog = self.modelled.other_catalog = sqlite_catalog(folder)
        self.seen: Counter[str] = Counter()
        self._acting = False

    def play(self, steps: int = 2) -> Counter[str]:
        """Do it, and return what happened."""
        version = self.chance.choice("23")
        self.modelled.begin(version)
        for _ in range(self.chance.randrange(2, 5)):
            self.append()
        for _ in range(self.chance.randrange(3)):
            self.chance.choice([self.delete_positions, self.delete_equal, self.append])()
        self.look()
        for _ in range(steps):
            self._ours()
        self.modelled.own_catalog.close()
        return self.seen

    def _ours(self) -> None:
        """One of our operations, with others beside it."""
        how = self.chance.choice([self._compact, self._decode, self._cluster, self._cluster_in_order, self._upsert])
        try:
            with ExitStack() as armed:
                for moment in MOMENTS:
                    armed.enter_context(failpoints.armed(moment, self._others))
                report = how()
            self._noted(report)
        except IcesizeError as error:
            self.seen[f"failed: {type(error).__name__} {str(error)[:90]}"] += 1
            if "internal" in str(error).lower() or "report this" in str(error):
                raise
        self.look()

    def _noted(self, report: Report) -> None:
        assert report.internal_errors == ()
        self.seen["committed" if "replace" in report.operations else "no merge"] += 1
        for why in report.conflicts:
            self.seen["dropped: " + why.split(": ", 1)[-1]] += 1
        head = self.modelled.table().metadata.current_snapshot()
        facts = head.summary.additional_properties if head and head.summary else {}
        if head and head.snapshot_id in report.snapshot_ids and facts.get("added-delete-files"):
            self.seen["carried"] += 1

    def _others(self) -> None:
        """What others do at one of the moments; it passes the same moments."""
        if self._acting or self.chance.random() < 0.5:
            return
        self._acting = True
        try:
            for _ in range(self.chance.randrange(1, 3)):
                moves = [
                    self.delete_positions, self.delete_positions, self.delete_equal, self.append, self.rewrite_some,
                    self.drop_some, self.compact, self.rewrite_deletes, self.roll_back, self.expire,
                ]  # fmt: skip
                move = self.chance.choice(moves)
                move()
                self.seen[f"others: {move.__name__}"] += 1
                self.look()
        finally:
            self._acting = False

    def look(self) -> None:
        """The table as it is now, by the specification."""
        table = self.modelled.table()
        head = table.metadata.current_snapshot()
        self.modelled.rows = self.modelled.reader.rows(head, table.io) if head else Counter()
        self.modelled.look()

    # ours

    def _opened(self, **policy: object) -> SizedTable:
        return icesize.open(
            None, "db.t", catalog=self.modelled.own_catalog, policy=self.chance.choice(POLICIES) | policy,
            environment=self.modelled.environment(),
        )  # fmt: skip

    def _compact(self) -> Report:
        return self._opened().compact()

    def _decode(self) -> Report:
        return self._opened(**{"merge-by-copying": False}).compact()

    def _cluster(self) -> Report:
        return self._opened().cluster([self.modelled.table().schema().find_field(3).name])

    def _cluster_in_order(self) -> Report:
        return self._opened().cluster(["id"])

    def _upsert(self) -> Report:
        """Keys of rows that are there and new ones; each of them has one live row afterwards."""
        known = [row[0] for _, row in self.modelled.rows]
        keys = {*self.chance.sample(known, min(len(known), 4)), *self.modelled.new_ids(2)}
        self.modelled.updated |= keys
        rows = self.modelled.arrow(self.modelled.table(), sorted(keys), self.chance.choice("ab"))
        report = self._opened().upsert(rows, key=["id"])
        head = self.modelled.table().metadata.current_snapshot()
        if head is not None and head.snapshot_id in report.snapshot_ids:
            live = Counter(row[0] for _, row in self.modelled.reader.rows(head, self.modelled.table().io).elements())
            assert {key: live[key] for key in keys} == dict.fromkeys(keys, 1)
        return report

    # others

    def _file(self) -> FileFact | None:
        files = small_files(self.modelled.table())
        return self.chance.choice(files) if files else None

    def append(self) -> None:
        """New rows in one or two files."""
        table = self.modelled.other_catalog.load_table("db.t")
        counts = [self.chance.choice([1, 8, 30]) for _ in range(self.chance.randrange(1, 3))]
        written = [f for n in counts for f in self.modelled.write(table, self.modelled.new_ids(n), self._kind())]
        run(self.modelled.other_catalog, request_on(table, written), table)

    def _kind(self) -> str:
        return self.chance.choice("aaab")

    def delete_positions(self) -> None:
        """Some rows of some files of one partition: in a file for several of them, or in vectors that grow."""
        first = self._file()
        if first is None:
            return
        table = self.modelled.table()
        alike = [file for file in small_files(table) if file.partition == first.partition]
        chosen = {file.path: file for file in (first, self.chance.choice(alike))}.values()
        share = self.chance.choice([0.05, 0.2, 0.9])
        gone = {file: sorted(self.chance.sample(range(file.rows), max(1, int(share * file.rows)))) for file in chosen}
        if self.modelled.version == "2":
            positions = {file.path: rows for file, rows in gone.items()}
            delete_positions(table, positions, first.partition, granularity=self.chance.choice(["partition", "file"]))
            return
        head, replaced = table.metadata.current_snapshot(), list[tuple[str, int]]()
        assert head is not None
        for entry in self.modelled.reader.entries(head, table.io):
            for file in gone:
                if entry.referenced == file.path and entry.offset is not None:
                    gone[file] = sorted({*gone[file], *self.modelled.reader.deleted_by(entry)[file.path]})
                    replaced.append((entry.path, entry.offset))
        exchange_vectors(self.modelled.other_catalog, gone, replaced)

    def delete_equal(self) -> None:
        """Some ids of one partition."""
        file = self._file()
        if file is not None:
            rows = self.modelled.reader.rows_in(file.path)
            delete_ids(self.modelled.other_catalog, file, [row[0] for row in self._some(rows)])

    def _some(self, rows: list[Row]) -> list[Row]:
        return self.chance.sample(rows, min(len(rows), self.chance.choice([1, 3])))

    def rewrite_some(self) -> None:
        """The live rows of a file in a new one, with new rows, as an UPDATE with copy-on-write leaves them."""
        file = self._file()
        if file is not None:
            table = self.modelled.other_catalog.load_table("db.t")
            written = self.modelled.write(table, self.modelled.new_ids(2), self._kind(), [[file]])
            run(self.modelled.other_catalog, request_on(table, written, absorbed=[file]), table)

    def drop_some(self) -> None:
        """A whole file, as a DELETE of all its rows does it."""
        file = self._file()
        if file is not None:
            commit_built(
                self.modelled.other_catalog,
                lambda builder: builder.exchange(Operation.DELETE, builder.split([file.path], into=Split()), (), {}),
            )

    def compact(self) -> None:
        """Another compaction."""
        self._opened().compact()

    def rewrite_deletes(self) -> None:
        """Another job that puts delete files together."""
        self._opened().rewrite_deletes()

    def roll_back(self) -> None:
        """To the snapshot before."""
        table = self.modelled.other_catalog.load_table("db.t")
        head = table.metadata.current_snapshot()
        if head and head.parent_snapshot_id in {each.snapshot_id for each in table.metadata.snapshots}:
            theirs(table).manage_snapshots().set_current_snapshot(head.parent_snapshot_id).commit()

    def expire(self) -> None:
        """All snapshots but the newest."""
        table = self.modelled.other_catalog.load_table("db.t")
        old = {each.snapshot_id for each in table.metadata.snapshots} - {table.metadata.current_snapshot_id}
        theirs(table).maintenance.expire_snapshots().by_ids(sorted(old)).commit()


def play(seed: int) -> Counter[str]:
    """Play one story in a folder of its own."""
    folder = Path(tempfile.mkdtemp(prefix="icesize-beside-"))
    try:
        return Story(folder, seed).play()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Play stories, and print what happened in all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--stories", type=int, default=100)
    arguments, seen = parser.parse_args(), Counter[str]()
    for seed in range(arguments.first, arguments.first + arguments.stories):
        try:
            seen += play(seed)
        except BaseException:
            print(f"story {seed}")
            raise
    for what, count in seen.most_common():
        print(f"{count:6} {what}")


if __name__ == "__main__":
    main()
