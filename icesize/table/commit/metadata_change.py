"""Changes of a table's metadata other than batches: expiry, restore, rewritten manifests. Same door, same answers."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol, TypeVar

from icesize.table.commit.pyiceberg_committer import PyIcebergCommitter, PyIcebergLoaded, PyIcebergStaged
from icesize.table.commit.retry import Attempts, Timing

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class TableChange(Protocol[T_co]):
    """Something to be done to a table's metadata in one compare-and-swap.

    `found` gives the result when an earlier attempt landed. `stage` is called anew for every attempt, on the state
    that the swap asserts; it gives what to swap in (None: nothing to do) and the result. It refuses by raising.
    `advice` tells a person how to find out whether a change landed whose answer was lost.
    """

    @property
    def run_id(self) -> str: ...
    @property
    def advice(self) -> str: ...
    def found(self, loaded: PyIcebergLoaded) -> T_co | None: ...
    def stage(self, loaded: PyIcebergLoaded) -> tuple[PyIcebergStaged | None, T_co]: ...


def change_table(
    change: TableChange[T],
    committer: PyIcebergCommitter,
    timing: Timing,
    table_uuid: str,
    data_files: Collection[str] = (),
) -> T:
    """Make the change visible in one atomic step, or raise with nothing of it visible.

    `data_files` are those that it makes visible; they are removed when it raises and certainly has not landed. Raises
    CommitConflict (nothing landed), CommitStateUnknown (it may have landed), TableError and what `stage` refuses with.
    """
    return _Change(change, committer, timing, table_uuid, data_files).run()


class _Change(Attempts[PyIcebergLoaded, PyIcebergStaged, T]):
    """One change on its way; `_next` is what the newest attempt staged, and the result it would have."""

    def __init__(
        self,
        change: TableChange[T],
        committer: PyIcebergCommitter,
        timing: Timing,
        table_uuid: str,
        data_files: Collection[str],
    ) -> None:
        super().__init__(committer, timing, table_uuid, change.run_id)
        self._change = change
        self._committer, self._data_files = committer, data_files
        self._next: tuple[PyIcebergStaged | None, T] | None = None

    @property
    def advice(self) -> str:
        return self._change.advice

    def may_be_visible(self) -> set[str]:
        return set(self._data_files) if self.may_have_landed else set()

    def clean(self) -> None:
        self._committer.delete_data_files(self._data_files)

    def found(self, loaded: PyIcebergLoaded) -> T | None:
        return self._change.found(loaded)

    def prepare(self, loaded: PyIcebergLoaded) -> T | None:
        self._next = self._change.stage(loaded)
        staged, result = self._next
        return result if staged is None else None

    def stage(self, loaded: PyIcebergLoaded) -> PyIcebergStaged | None:
        return self._next[0] if self._next else None

    def landed(self, staged: PyIcebergStaged) -> T:
        if self._next is None:
            raise AssertionError("a change cannot land that was never staged")
        return self._next[1]
