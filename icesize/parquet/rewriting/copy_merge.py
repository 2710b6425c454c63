"""Merging by moving compressed bytes, if that is possible and faster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from types import MappingProxyType

from pyroaring import BitMap

from icesize.parquet.files.data_file import CopiedFile, CopiedFrom, MergeResult
from icesize.parquet.files.new_files import NewFiles
from icesize.parquet.files.row_map import RowMap
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.format.refusals import CopyRefused, Refusal
from icesize.parquet.format.schema import Element
from icesize.parquet.format.sources import Source
from icesize.parquet.pages.column_plan import Part, plan_columns
from icesize.parquet.pages.page_copy import runs_of
from icesize.parquet.pages.reencode import most_decoded_bytes
from icesize.parquet.reading.conservation import Conservation
from icesize.parquet.reading.prefetch import Fetched
from icesize.parquet.rewriting.copy_or_decode import Candidate, CopyStrategy, candidate, judge, likely_copied
from icesize.parquet.rewriting.decoded_rows import EncodedRows, empty_like, encoded_rows
from icesize.parquet.rewriting.output_file import Contents, PageRun, write_copied
from icesize.parquet.row_groups.compatibility import rare_encodings
from icesize.parquet.row_groups.footer_lineage import LINEAGE_ELEMENTS
from icesize.planning.file_sizes import ROUND_DOWN_RATIO, least_output_bytes
from icesize.planning.files import FileFact
from icesize.planning.plan import FileGroup, MergeTask

_MOST_AT_ONCE = 2
"""Times `Limits.decoded_bytes` that a column may have which is encoded again as a whole: an upper limit is compared,
and row by row is the slower way."""

Find = Callable[[Sequence[FileFact]], Sequence[Source | Refusal]]
"""Gives a source for each file, or why there is none."""


@dataclass(frozen=True, slots=True)
class _Unit:
    """An indivisible part of an output: a row group that is copied, or an input file that is decoded (`part` None)."""

    fact: FileFact
    part: Part | None = None
    strategy: CopyStrategy = CopyStrategy.DECODE

    @property
    def size_bytes(self) -> int:
        """Bytes of the live rows."""
        part = self.part
        return self.fact.size_bytes if part is None else part.group.size_bytes * part.rows // part.group.rows


@dataclass(slots=True)
class _Input:
    """One input file: its row groups, or the reason why it is decoded."""

    fact: FileFact
    copied: Sequence[_Unit] | Refusal

    @property
    def units(self) -> Sequence[_Unit]:
        """The parts of the file that outputs can have."""
        return [_Unit(self.fact)] if isinstance(self.copied, Refusal) else self.copied


def copy_merge(
    group: MergeTask, new_files: NewFiles, fetched: Fetched, deleted: Mapping[str, BitMap] = MappingProxyType({})
) -> MergeResult[CopiedFile]:
    """Write the rows of all input files, except the `deleted` ones, into `group.outputs` files of about equal size.

    Everything that can be copied is copied. Rows keep their order within a row group; decoded rows come last in each
    output.

    Raises `CopyRefused` with the code of the obstacle if decoding everything is the better or only way; everything
    written is then removed. Raises `RewriteFailed` for an input file that cannot be decoded either.
    """
    plan = plan_copy(group.inputs, group.outputs, new_files.settings, fetched.fetch, deleted=deleted)
    files: list[CopiedFile] = []
    with new_files.all_or_none():
        for output in plan.outputs:
            counted = Conservation(new_files.settings)
            rows = _decoded(output, group, fetched, deleted, counted)
            files.append(write_copied(group.partition, output, rows, new_files, fetched.ahead, counted))
    return MergeResult(
        group.inputs,
        tuple(files),
        bytes_decoded=plan.bytes_decoded,
        bytes_copied=sum(output.bytes_copied for output in plan.outputs),
        pages_copied=sum(run.pages_copied for run in plan.runs),
        decode_reasons=dict(plan.decode_reasons),
        row_map=RowMap([span for output in plan.outputs for span in output.spans]),
    )


def plan_copy(
    facts: Sequence[FileFact],
    outputs: int,
    settings: WriteSettings,
    find: Find,
    share: float = 1.0,
    deleted: Mapping[str, BitMap] = MappingProxyType({}),
) -> CopyPlan:
    """Plan the contents of each output, from footers and from the dictionaries of the pages that would be joined.

    These decide how bytes move, except for damage that shows only when pages are read. A forecast calls this function
    with some files of a merge, which have this `share` of its bytes. Row groups with `deleted` rows are encoded again,
    column by column.

    Raises `CopyRefused` with the code of the obstacle if decoding everything is the better or only way.
    """
    least = round(share * settings.limits.least_copied_bytes)
    inputs = _decide(facts, settings, find, least, deleted)
    planned = _planned(inputs, outputs, settings, least)
    return CopyPlan(planned, [(each.fact, each.copied) for each in inputs if isinstance(each.copied, Refusal)])


def _decide(
    facts: Sequence[FileFact], settings: WriteSettings, find: Find, least_bytes: int, deleted: Mapping[str, BitMap]
) -> list[_Input]:
    """Read the footers of the input files that may be worth copying, and decide what is copied of each."""
    likely = likely_copied(facts, settings)
    if sum(fact.size_bytes for fact in likely) < least_bytes:
        raise CopyRefused(Refusal.TINY)
    found = [
        source if isinstance(source, Refusal) else candidate(fact, source, settings)
        for fact, source in zip(likely, find(likely), strict=True)
    ]
    readable = [file for file in found if isinstance(file, Candidate)]
    judge(readable, settings, others=len(readable) < len(facts))
    by_path = {fact.path: file for fact, file in zip(likely, found, strict=True)}
    inputs = [_Input(fact, _copied(fact, by_path.get(fact.path, Refusal.TINY), settings)) for fact in facts]
    for each in inputs:
        if (places := deleted.get(each.fact.path)) and not isinstance(each.copied, Refusal):
            # new pages would have no bloom filters
            each.copied = Refusal.DELETED_ROWS if settings.parquet.bloom_fpp else _without(each.copied, places)
    return inputs


def _copied(fact: FileFact, file: Candidate | Refusal, settings: WriteSettings) -> list[_Unit] | Refusal:
    if isinstance(file, Refusal):
        return file
    if isinstance(file.judged, Refusal):
        return file.judged
    copied, first = list[_Unit](), 0
    for group, strategy in zip(file.footer.row_groups, file.judged, strict=True):
        inherited = fact.inherited(first) if settings.stores_lineage else None
        span = (fact.path, first, first + group.rows)
        copied.append(_Unit(fact, Part(file.source, file.footer, group, inherited=inherited, span=span), strategy))
        first += group.rows
    return copied


def _without(copied: Sequence[_Unit], deleted: BitMap) -> list[_Unit]:
    """Return the row groups of one file without deleted rows; row groups without live rows are omitted."""
    found = list[_Unit]()
    for unit in copied:
        if unit.part is None:
            continue
        _, first, end = unit.part.span
        here = deleted & BitMap(range(first, end))
        if not here:
            found.append(unit)
        elif len(here) < unit.part.group.rows:
            found.append(_Unit(unit.fact, replace(unit.part, deleted=here.shift(-first)), CopyStrategy.PAGES))
    return found


def _check_worth(inputs: Sequence[_Input], least_bytes: int) -> None:
    """Raise `CopyRefused` with the most frequent refusal, by bytes, if too little is left to copy."""
    bytes_left, codes = 0, Counter[Refusal]()
    for input_file in inputs:
        if isinstance(input_file.copied, Refusal):
            codes[input_file.copied] += input_file.fact.size_bytes
        else:
            bytes_left += input_file.fact.size_bytes
    if bytes_left < least_bytes:
        raise CopyRefused(codes.most_common(1)[0][0] if codes else Refusal.TINY)


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """The contents of each output, and the decoded files with the reasons."""

    outputs: list[Contents]
    refused: list[tuple[FileFact, Refusal]]

    @property
    def runs(self) -> list[PageRun]:
        """The row groups that are made of pages."""
        return [run for output in self.outputs for run in output.runs]

    @property
    def bytes_decoded(self) -> int:
        """Bytes of decoded files, and of columns encoded again in row groups whose other columns are copied."""
        reencoded = sum(run.plan.reencoded_bytes for run in self.runs)
        return sum(fact.size_bytes for fact, _ in self.refused) + reencoded

    @property
    def decode_reasons(self) -> Counter[str]:
        """Number of decoded files by reason, including files that are decoded in part because of deleted rows."""
        changed = {part.footer for run in self.runs for part in run.parts if part.deleted}
        codes = Counter(code.value for _, code in self.refused)
        return +(codes + Counter({Refusal.DELETED_ROWS.value: len(changed)}))


def _planned(inputs: Sequence[_Input], outputs: int, settings: WriteSettings, least_bytes: int) -> list[Contents]:
    """Return the contents of each output.

    An input file whose pages do not fit those of the other files is decoded. Then everything is divided again.
    """
    while True:
        _check_worth(inputs, least_bytes)
        if not any(isinstance(each.copied, Refusal) or each.copied for each in inputs):
            raise CopyRefused(Refusal.DELETED_ROWS, "no row is left")
        refused = set[FileFact]()
        planned = [_plan_output(units, settings, refused) for units in _divide(inputs, outputs, settings)]
        if not refused:
            return planned
        for input_file in inputs:
            if input_file.fact in refused:
                input_file.copied = Refusal.DICTIONARIES


def _plan_output(units: Sequence[_Unit], settings: WriteSettings, refused: set[FileFact]) -> Contents:
    whole = [unit.part for unit in units if unit.strategy is CopyStrategy.ROW_GROUPS and unit.part is not None]
    paged = {unit.part: unit.fact for unit in units if unit.strategy is CopyStrategy.PAGES and unit.part}
    contents = Contents(whole, copied_from=_origins(units))
    changed = [part for part in paged if part.deleted]
    untouched = [part for part in paged if not part.deleted]
    rows, size_bytes = settings.parquet.row_group_rows, settings.parquet.row_group_bytes
    for parts in chain(runs_of(untouched, rows, size_bytes), runs_of(changed, rows, size_bytes)):
        if len(parts) == 1 and _stays_whole(parts[0]):
            contents.whole += parts
            continue
        limits = settings.limits
        plan = plan_columns(parts)
        is_changed = parts[0].deleted is not None
        worth = is_changed or plan.copies(limits.least_chunk_bytes, parts)
        if plan.reencode and not (worth and most_decoded_bytes(parts, plan) <= _MOST_AT_ONCE * limits.decoded_bytes):
            refused.update(paged[part] for part in parts)
        contents.runs.append(PageRun(parts, plan))
    contents.decoded = tuple(unit.fact for unit in units if unit.part is None)
    if contents.decoded:
        contents.model = empty_like(settings, _schema_of(contents))
    return contents


def _stays_whole(part: Part) -> bool:
    """Return whether a row group that is joined with no other is copied whole."""
    return not part.footer.strict and not part.deleted and not rare_encodings(part.footer, [part.group])


def _decoded(
    output: Contents, group: MergeTask, fetched: Fetched, deleted: Mapping[str, BitMap], counted: Conservation
) -> Iterator[EncodedRows]:
    if not output.decoded:
        return iter(())
    inputs = FileGroup(output.decoded, group.partition)
    return encoded_rows(inputs, counted.settings, _schema_of(output), fetched, deleted, counted)


def _schema_of(contents: Contents) -> tuple[Element, ...]:
    """Return the schema of the copied row groups, with the columns of the row lineage; empty without any."""
    if not contents.parts:
        return ()
    first = contents.parts[0]
    return first.footer.schema + (() if first.inherited is None else LINEAGE_ELEMENTS)


def _origins(units: Sequence[_Unit]) -> tuple[CopiedFrom, ...]:
    rows = Counter[FileFact]()
    for unit in units:
        if unit.part is not None:
            rows[unit.fact] += unit.part.rows
    return tuple(CopiedFrom(fact.path, copied == fact.rows) for fact, copied in rows.items())


def _divide(inputs: Sequence[_Input], outputs: int, settings: WriteSettings) -> list[list[_Unit]]:
    """Divide the inputs, in their order, into outputs with about equal numbers of bytes.

    Raises `CopyRefused` if the units are so coarse that an output would be a small file again, or far too large.
    """
    units = [unit for input_file in inputs for unit in input_file.units]
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
