"""The change that brings data files: new rows, and files in the place of others.

Each attempt looks whether this batch is there already and whether its files fit the table, and drops merges whose input
files others touched; the append stays whatever happens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from icesize.clock import Environment
from icesize.parquet.files.data_file import Merged
from icesize.planning.files import PartitionKey
from icesize.table.catalog.access_errors import brief
from icesize.table.commit.ledger import is_done
from icesize.table.commit.pyiceberg_committer import PyIcebergCommitter, PyIcebergLoaded, PyIcebergStaged
from icesize.table.commit.request import BASE_EXPIRED, CommitOutcome, CommitRequest, Overtaken
from icesize.table.commit.retry import DEADLINE_SECONDS, Attempts, commit_change
from icesize.table.commit.summary import RUN_ID, SMALL_FILES_MAX

SLOW_STAGE_SECONDS = 1.0
"""A merge that took longer to stage than this and lost the race is dropped at once: each retry would pay it again."""

_OUTDATED = "schema or partition spec changed while the merge ran"


def commit_files(
    request: CommitRequest,
    committer: PyIcebergCommitter,
    environment: Environment,
    deadline_seconds: float = DEADLINE_SECONDS,
) -> CommitOutcome:
    """Make the request visible in one atomic step, or raise with nothing of it visible.

    Raises as `commit_change` does, StreamMismatch or BatchOutOfOrder (refused), and Overtaken (what is `appended` or
    `absorbed` fits the table no more: nothing landed; plan anew).
    """
    change = _Files(request, committer)
    return commit_change(change, committer, environment, request.table_uuid, deadline_seconds)


class _Files:
    """A request on its way through its attempts: `_request` is what is left of it, as merges are dropped."""

    def __init__(self, request: CommitRequest, committer: PyIcebergCommitter) -> None:
        self.run_id = request.run_id
        self.advice = (
            f"Look for a snapshot whose summary has {RUN_ID}={self.run_id}; running the same batch again is safe"
        )
        self._wanted = self._request = request
        self._committer = committer
        self._stage_seconds = 0.0
        self._conflicts: list[str] = []
        self._contested: list[PartitionKey] = []

    def data_files(self, result: CommitOutcome) -> set[str]:
        appended = () if result.already_committed else self._wanted.appended
        return {f.path for f in appended} | {f.path for g in result.merged for f in g.files}

    def found(self, loaded: PyIcebergLoaded, attempts: Attempts[CommitOutcome]) -> CommitOutcome | None:
        """Our own earlier attempt, or a duplicate one that committed the same batch."""
        if snapshots := loaded.snapshots_of(self.run_id):
            replaced = {snapshot_id for snapshot_id, operation in snapshots if operation == "replace"}
            ours = (a.result for a in attempts.made if replaced.intersection(a.result.snapshot_ids))
            merged = next(ours, self._request).merged if replaced else ()
            return self._outcome(snapshots, merged)
        # a snapshot of ours may have expired since: then the ledger or the files themselves tell
        entry = self._request.ledger
        done = entry is not None and is_done(loaded.properties, entry, self._request.accept_new_checkpoint)
        if (done or attempts.may_have_landed) and loaded.any_live(self._wanted.paths()):
            landed = (group for group in self._wanted.merged if loaded.any_live([file.path for file in group.files]))
            return self._outcome([], tuple(landed))
        if not done:
            return None
        attempts.settle_loss(loaded)
        return CommitOutcome(conflicts=tuple(self._conflicts), already_committed=True)

    def stage(
        self, loaded: PyIcebergLoaded, attempts: Attempts[CommitOutcome]
    ) -> tuple[PyIcebergStaged | None, CommitOutcome]:
        slow = attempts.losses > 0 and self._stage_seconds > SLOW_STAGE_SECONDS
        if self._request.appended and (slow or attempts.losses >= 2):
            self._drop_merges("other commits kept coming first")
        self._hold_against(loaded)
        if not self._request.appended and not self._request.merged:
            return None, self._outcome([], ())
        began = attempts.environment.monotonic()
        try:
            staged = self._committer.stage(loaded, self._request)
        except Exception as error:
            if self._request.appended and self._request.merged:
                self._drop_merges(f"its manifests could not be written ({brief(error)})")
                return self.stage(loaded, attempts)
            raise
        self._stage_seconds = attempts.environment.monotonic() - began
        return staged, self._outcome(staged.snapshots, self._request.merged)

    def _outcome(self, snapshots: list[tuple[int, str]], merged: tuple[Merged, ...]) -> CommitOutcome:
        return CommitOutcome(
            snapshot_ids=tuple(snapshot_id for snapshot_id, _ in snapshots),
            operations=tuple(operation for _, operation in snapshots),
            merged=merged,
            conflicts=tuple(self._conflicts),
            contested=tuple(self._contested),
        )

    def _hold_against(self, loaded: PyIcebergLoaded) -> None:
        """Refuse new files that do not fit this state, and leave out merges that others made wrong."""
        request = self._request
        if (why := loaded.misfit(request)) is not None:
            raise Overtaken(why)
        lost = loaded.lost_inputs(request) if request.merged or request.absorbed else {}
        is_outdated = (loaded.schema_id, loaded.spec_id) != (request.schema.schema_id, request.spec.spec_id)
        self._check_absorbed(lost, is_outdated)
        if is_outdated:
            self._drop_merges(_OUTDATED)
        else:
            self._drop_lost(lost)

    def _check_absorbed(self, lost: Mapping[str, str], is_outdated: bool) -> None:
        """Files whose rows are in the new ones must be as they were: unlike merges they cannot be left out."""
        absorbed = self._request.absorbed
        if absorbed and is_outdated:
            raise Overtaken(_OUTDATED, tuple(dict.fromkeys(f.partition for f in absorbed)))
        gone = [f for f in absorbed if f.path in lost]
        if gone:
            why = lost[gone[0].path]
            raise Overtaken(why, () if why == BASE_EXPIRED else tuple(dict.fromkeys(f.partition for f in gone)))

    def _drop_lost(self, lost: Mapping[str, str]) -> None:
        kept = []
        for group in self._request.merged:
            why = next((lost[v.path] for v in group.inputs if v.path in lost), None)
            if why is None:
                kept.append(group)
                continue
            self._conflicts.append(_dropped((group,), why))
            if why != BASE_EXPIRED:
                self._contested.append(group.inputs[0].partition)
        self._keep(tuple(kept))

    def _drop_merges(self, why: str) -> None:
        if self._request.merged:
            self._conflicts.append(_dropped(self._request.merged, why))
            self._keep(())

    def _keep(self, merged: tuple[Merged, ...]) -> None:
        """Go on with these merges; what was counted with others of them is not known any more."""
        if len(merged) < len(self._request.merged):
            summary = {key: value for key, value in self._request.summary.items() if key != SMALL_FILES_MAX}
            self._request = replace(self._request, merged=merged, summary=summary)


def _dropped(groups: tuple[Merged, ...], why: str) -> str:
    return f"merge of {sum(len(g.inputs) for g in groups)} files dropped: {why}"
