"""How a catalog is talked to: states that are loaded, what is staged on them, and the answers to a commit."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol, TypeVar

from icesize.table.commit.request import CommitRequest


class CommitLost(Exception):
    """The catalog says that another commit came first. It is looked up before it is believed: 409 may come late."""


class CatalogBusy(CommitLost):
    """The catalog asks to come again later: a definite no that nobody else's commit explains."""


class CommitRefused(Exception):
    """The catalog will never accept this commit; nothing of ours landed. The text is a sentence for the user."""


L = TypeVar("L", bound="Loaded")


class Loaded(Protocol):
    """A table as the catalog had it at one moment."""

    @property
    def uuid(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def schema_id(self) -> int: ...
    @property
    def spec_id(self) -> int: ...
    @property
    def head_id(self) -> int | None: ...
    @property
    def properties(self) -> Mapping[str, str]: ...
    def snapshots_of(self, run_id: str) -> list[tuple[int, str]]: ...
    def any_live(self, paths: Collection[str]) -> bool: ...
    def misfit(self, request: CommitRequest) -> str | None:
        """Why the appended files could not be read in this state of the table, None when they can."""

    def lost_inputs(self, request: CommitRequest) -> dict[str, str]: ...
    def later_than(self: L, before: L) -> bool:
        """Whether something that a commit on `before` asserts has certainly changed since; a stale answer is no
        proof."""


class Staged(Protocol):
    """Snapshots that are written but not visible."""

    @property
    def snapshots(self) -> list[tuple[int, str]]: ...


LoadedT = TypeVar("LoadedT", bound=Loaded)
StagedT = TypeVar("StagedT", bound=Staged)


class Committer(Protocol[LoadedT, StagedT]):
    """How one kind of catalog is talked to.

    `commit` is one compare-and-swap; it raises CommitLost, CommitRefused, or anything else where nobody knows.
    """

    def load(self) -> LoadedT: ...
    def stage(self, loaded: LoadedT, request: CommitRequest) -> StagedT: ...
    def commit(self, loaded: LoadedT, staged: StagedT) -> None: ...
    def discard(self, staged: StagedT) -> None: ...
