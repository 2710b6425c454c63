"""Merging by moving compressed bytes, wherever that is possible and pays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from icesize.parquet.copied_file import Contents, PageRun, write_copied
from icesize.parquet.encoded_rows import EncodedRows, empty_like, encoded_rows
from icesize.parquet.encoder import remove_files
from icesize.parquet.fetched import Fetched
from icesize.parquet.footer import Footer
from icesize.parquet.footer_schema import Element
from icesize.parquet.lanes import LEAST_COPIED_BYTES, Judged, Lane, judge
from icesize.parquet.merge_task import MergeOutcome, MergeTask
from icesize.parquet.names import FileNames
from icesize.parquet.page_merge import runs_of
from icesize.parquet.page_plan import Part, plan_columns
from icesize.parquet.refusal import CopyRefused, Refusal
from icesize.parquet.settings import WriteSettings
from icesize.parquet.source import Source
from icesize.parquet.wanted import footer_or_refusal, likely_copied, wanted_of
from icesize.parquet.written import CopiedFrom, WrittenFile
from icesize.planning.layout import FileFact
from icesize.planning.sizing import ROUND_DOWN_RATIO, least_output_bytes

MOST_REENCODED = 0.3
"""Share of the bytes of a row group that may have to be encoded again, column by column, when pages are merged: copying
runs at 500 MB/s and this at 60, decoding everything at 70 (measured)."""


Find = Callable[[Sequence[FileFact]], Sequence[Source | CopyRefused]]
"""Gives a source for each file, or why there is none."""


@dataclass(slots=True)
class _Victim:
    """One victim: where its bytes are and what was decided; `refused` when it is decoded."""

    fact: FileFact
    source: Source | None = None
    footer: Footer | None = None
    lanes: tuple[Lane, ...] = ()
    refused: CopyRefused | None = None

    def refuse(self, refused: CopyRefused) -> None:
        self.refused, self.lanes, self.source, self.footer = refused.alone(), (), None, None


@dataclass(frozen=True, slots=True)
class _Unit:
    """What one output takes as a whole: a row group that is copied, or a victim that is decoded (`part` None)."""

    victim: _Victim
    part: Part | None
    lane: Lane
    size_bytes: int


def copy_merge(task: MergeTask, settings: WriteSettings, names: FileNames, fetched: Fetched) -> MergeOutcome:
    """Write the rows of all victims into `task.outputs` files of about equal size, copying what can be copied.

    Rows keep their order within a row group; decoded ones come last in each output. Raises `CopyRefused` with the code
    of what stands against it, nothing being left, when decoding everything is the better or only way; `RewriteFailed`
    for a victim that cannot be decoded either.
    """
    plan = plan_copy(task.victims, task.outputs, settings, fetched.fetch)
    files: list[WrittenFile] = []
    try:
        for output in plan.outputs:
            rows = _decoded(output, task, settings, fetched)
            files.append(write_copied(output.contents, rows, settings, names, task.partition))
    except BaseException:
        remove_files(settings.storage, files)
        raise
    return MergeOutcome(
        tuple(files),
        task.size_bytes,
        task.rows,
        rows_out=sum(file.rows for file in files),
        bytes_decoded=plan.bytes_decoded,
        bytes_copied=sum(file.bytes_copied for file in files),
        pages_copied=sum(run.pages_copied for run in plan.runs),
        decoded_because=dict(plan.decoded_because),
    )


def plan_copy(
    facts: Sequence[FileFact], outputs: int, settings: WriteSettings, find: Find, share: float = 1.0
) -> CopyPlan:
    """What each output takes, from footers and from the dictionaries of the pages that would be joined: all that
    decides how bytes move, but for damage that only shows when pages are read. A forecast asks it of some files of a
    merge, which have this `share` of its bytes.

    Raises `CopyRefused` with the code of what stands against it, when decoding everything is the better or only way.
    """
    least = round(share * LEAST_COPIED_BYTES)
    victims = _look_at(facts, settings, find, least)
    planned = _planned(victims, outputs, settings, least)
    return CopyPlan(planned, [(victim.fact, victim.refused.code) for victim in victims if victim.refused is not None])


def _look_at(facts: Sequence[FileFact], settings: WriteSettings, find: Find, least_bytes: int) -> list[_Victim]:
    """Read the footers of the victims that may be worth it, and decide what is copied of each."""
    victims = [_Victim(fact) for fact in facts]
    worth = {fact.path for fact in likely_copied(facts, settings)}
    likely = [victim for victim in victims if victim.fact.path in worth]
    for victim in victims:
        if victim.fact.path not in worth:
            victim.refuse(CopyRefused(Refusal.TINY))
    _check_worth(victims, least_bytes)
    found = find([victim.fact for victim in likely])
    footers = [_footer(victim, source) for victim, source in zip(likely, found, strict=True)]
    for victim, source, footer, judged in zip(
        likely, found, footers, judge(footers, settings.derived(wanted_of)), strict=True
    ):
        _decide(victim, source, footer, judged)
    return victims


def _footer(victim: _Victim, source: Source | CopyRefused) -> Footer | CopyRefused:
    found = source if isinstance(source, CopyRefused) else footer_or_refusal(source)
    if isinstance(found, Footer) and found.rows != victim.fact.rows:
        return CopyRefused(Refusal.CORRUPT_FOOTER, f"{found.rows} rows, its manifest says {victim.fact.rows}")
    return found


def _decide(victim: _Victim, source: Source | CopyRefused, footer: Footer | CopyRefused, judged: Judged) -> None:
    if judged.refused is not None or isinstance(source, CopyRefused) or isinstance(footer, CopyRefused):
        victim.refuse(judged.refused or CopyRefused(Refusal.SHORT_READ))
    else:
        victim.source, victim.footer, victim.lanes = source, footer, judged.lanes


def _check_worth(victims: Sequence[_Victim], least_bytes: int) -> None:
    """Raise the most frequent refusal, by bytes, when too little is left to copy."""
    bytes_left, codes = 0, Counter[Refusal]()
    for victim in victims:
        if victim.refused is None:
            bytes_left += victim.fact.size_bytes
        else:
            codes[victim.refused.code] += victim.fact.size_bytes
    if bytes_left < least_bytes:
        raise CopyRefused(codes.most_common(1)[0][0] if codes else Refusal.TINY)


@dataclass(slots=True)
class _Output:
    """One output: what is copied into it, and the victims that are decoded."""

    contents: Contents
    decoded: tuple[FileFact, ...]


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """What is copied into each output, and the files that are decoded, with why."""

    outputs: list[_Output]
    refused: list[tuple[FileFact, Refusal]]

    @property
    def runs(self) -> list[PageRun]:
        """The row groups that are made of pages."""
        return [run for output in self.outputs for run in output.contents.runs]

    @property
    def reencoded_bytes(self) -> int:
        """Of columns that are encoded again in row groups whose other columns are copied."""
        return sum(run.plan.reencoded_bytes for run in self.runs)

    @property
    def bytes_decoded(self) -> int:
        return sum(fact.size_bytes for fact, _ in self.refused) + self.reencoded_bytes

    @property
    def decoded_because(self) -> Counter[str]:
        """Files by why they are decoded."""
        return Counter(code.value for _, code in self.refused)


def _planned(victims: Sequence[_Victim], outputs: int, settings: WriteSettings, least_bytes: int) -> list[_Output]:
    """What each output takes. Victims whose pages do not fit those of others are decoded, and all is divided anew."""
    while True:
        _check_worth(victims, least_bytes)
        refused: list[_Victim] = []
        planned = [_plan_output(units, settings, refused) for units in _divide(victims, outputs, settings)]
        if not refused:
            return planned
        for victim in refused:
            victim.refuse(CopyRefused(Refusal.DICTIONARIES))


def _plan_output(units: Sequence[_Unit], settings: WriteSettings, refused: list[_Victim]) -> _Output:
    whole = [unit.part for unit in units if unit.lane is Lane.SPLICE and unit.part is not None]
    paged = [unit.part for unit in units if unit.lane is Lane.PAGES and unit.part is not None]
    contents = Contents(whole, copied_from=_origins(units))
    for parts in runs_of(paged, settings.parquet.row_group_rows, settings.parquet.row_group_bytes):
        if len(parts) == 1:
            contents.whole += parts
            continue
        plan = plan_columns(parts)
        if plan.reencoded_bytes > MOST_REENCODED * (plan.copied_bytes + plan.reencoded_bytes):
            owners = {id(part) for part in parts}
            refused += [unit.victim for unit in units if id(unit.part) in owners]
        contents.runs.append(PageRun(parts, plan))
    decoded = tuple(unit.victim.fact for unit in units if unit.part is None)
    if decoded:
        contents.model = empty_like(settings, _schema_of(contents))
    return _Output(contents, decoded)


def _decoded(output: _Output, task: MergeTask, settings: WriteSettings, fetched: Fetched) -> Iterator[EncodedRows]:
    if not output.decoded:
        return iter(())
    return encoded_rows(MergeTask(output.decoded, task.partition), settings, _schema_of(output.contents), fetched)


def _schema_of(contents: Contents) -> tuple[Element, ...]:
    """The schema of what is copied; empty when nothing is."""
    return contents.footers[0].schema if contents.whole or contents.runs else ()


def _origins(units: Sequence[_Unit]) -> tuple[CopiedFrom, ...]:
    groups = Counter(unit.victim.fact.path for unit in units if unit.part is not None)
    totals = {unit.victim.fact.path: len(unit.victim.lanes) for unit in units}
    return tuple(CopiedFrom(path, count == totals[path]) for path, count in groups.items())


def _divide(victims: Sequence[_Victim], outputs: int, settings: WriteSettings) -> list[list[_Unit]]:
    """What each output takes, in the order of victims, cut where the bytes come nearest to equal parts.

    Raises `CopyRefused` where the units are so coarse that an output would be a small file again, or far too large.
    """
    units = [unit for victim in victims for unit in _units(victim)]
    total = sum(unit.size_bytes for unit in units)
    parts: list[list[_Unit]] = [[] for _ in range(outputs)]
    before = 0
    for unit in units:
        middle = before + unit.size_bytes / 2
        parts[min(outputs - 1, int(middle * outputs / max(1, total)))].append(unit)
        before += unit.size_bytes
    if outputs > 1:
        least, most = least_output_bytes(settings.small_file_limit_bytes), ROUND_DOWN_RATIO**2 * total / outputs
        if not all(least <= sum(unit.size_bytes for unit in part) <= most for part in parts):
            raise CopyRefused(Refusal.UNEVEN)
    return parts


def _units(victim: _Victim) -> list[_Unit]:
    if victim.source is None or victim.footer is None or victim.refused is not None:
        return [_Unit(victim, None, Lane.DECODE, victim.fact.size_bytes)]
    groups = zip(victim.footer.row_groups, victim.lanes, strict=True)
    parts = [(Part(victim.source, victim.footer, group), lane) for group, lane in groups]
    return [_Unit(victim, part, lane, part.group.size_bytes) for part, lane in parts]
