"""The way that the bytes of each input file take: whole row groups, single pages, or decoding.

The decision uses footers that were read before, and the thresholds of `Limits`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from icesize.parquet.files.metrics import leaves
from icesize.parquet.files.settings import Limits, WriteSettings, derived
from icesize.parquet.format.fields import FileMetaData
from icesize.parquet.format.footer import Footer, RowGroup, read_footer
from icesize.parquet.format.pages import CODEC_NAMES, data_pages
from icesize.parquet.format.refusals import CopyRefused, Refusal
from icesize.parquet.format.schema import LINEAGE_IDS, OPTIONAL, REPEATED, REQUIRED, Column, Element, top_level_trees
from icesize.parquet.format.sources import Source
from icesize.parquet.format.statistics import column_orders
from icesize.parquet.ordering.sort_order import sorter_of
from icesize.parquet.reading.extremes import own_footer
from icesize.parquet.row_groups.compatibility import check_file, check_row_group, rare_codecs, rare_encodings
from icesize.parquet.row_groups.footer_lineage import without_lineage
from icesize.planning.files import FileFact


class CopyStrategy(Enum):
    """The way that the bytes of a row group take."""

    ROW_GROUPS = "row-groups"
    PAGES = "pages"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A table's requirements for its files.

    `schema` is the schema as icesize's own writer writes it. `codec` (parquet.thrift) is set if the table names one.
    `bloom_filters` are the field ids of columns with bloom filters.
    """

    schema: tuple[Element, ...]
    codec: int | None = None
    bloom_filters: frozenset[int] = field(default_factory=frozenset)


Judgement = tuple[CopyStrategy, ...] | Refusal
"""The treatment of an input file: the strategy of each of its row groups, or why all of it is decoded."""


@dataclass(slots=True, eq=False)
class Candidate:
    """An input file that may be copied, and the decision about it."""

    source: Source
    footer: Footer
    judged: Judgement = ()

    @property
    def has_pages(self) -> bool:
        """True if pages of the file are copied one by one."""
        return not isinstance(self.judged, Refusal) and CopyStrategy.PAGES in self.judged


def candidate(fact: FileFact, source: Source, settings: WriteSettings) -> Candidate | Refusal:
    """Read the footer of a file; return the reason if it cannot be copied."""
    try:
        footer = read_footer(source)
        footer = without_lineage(footer) if settings.stores_lineage else footer
    except CopyRefused as refused:
        return refused.code
    except OSError:
        return Refusal.SHORT_READ
    # the number of rows must be that of the manifest entry; otherwise the file is damaged
    return Candidate(source, footer) if footer.rows == fact.rows else Refusal.CORRUPT_FOOTER


def _loosen(files: Sequence[Candidate]) -> None:
    """Give footers that differ only in required columns the schema of the footer that requires the fewest.

    Spark writes a column as required if its rows cannot be null. Such columns are listed in `strict`, and encoded
    again.
    """
    if len({file.footer.meaning for file in files}) < 2:
        return  # the usual case
    kinds: defaultdict[Hashable, list[Candidate]] = defaultdict(list)
    for file in files:
        kinds[column_orders(file.footer), tuple(map(_loose, file.footer.schema[1:]))].append(file)
    for alike in kinds.values():
        if model := _loosest([file.footer for file in alike]):
            for file in alike:
                file.footer = _like(file.footer, model)


def _loose(element: Element) -> Element:
    """Return an element, with a required column as optional.

    This applies only to an element whose repetition affects the levels of one column.
    """
    return element._replace(repetition=OPTIONAL) if element.repetition == REQUIRED else element


def _loosest(alike: Sequence[Footer]) -> Footer | None:
    """Return the footer that requires only what all require; None without one, or if the footers do not differ."""
    required = {footer: frozenset(c.path for c in footer.columns if _is_strict(c)) for footer in alike}
    common = frozenset.intersection(*required.values())
    nested = {_nested(footer) for footer in alike}
    if len(set(required.values())) == 1 or len(nested) > 1:
        return None
    return next((footer for footer, found in required.items() if found == common), None)


def _is_strict(column: Column) -> bool:
    return len(column.path) == 1 and column.element.repetition == REQUIRED


def _nested(footer: Footer) -> tuple[object, ...]:
    """Return the elements of structs, lists and maps; their levels are part of the levels of all columns within."""
    trees = top_level_trees(footer.schema)
    return tuple(tree for name, tree in trees.items() if any(len(c.path) > 1 and c.top == name for c in footer.columns))


def _like(footer: Footer, model: Footer) -> Footer:
    if footer.meaning == model.meaning:
        return footer
    pairs = zip(footer.columns, model.columns, strict=True)
    strict = frozenset(own.top for own, other in pairs if own.levels != other.levels)
    fields = {**footer.fields, FileMetaData.SCHEMA: model.fields[FileMetaData.SCHEMA]}
    return replace(footer, fields=fields, schema=model.schema, columns=model.columns, strict=strict)


def judge(files: Sequence[Candidate], settings: WriteSettings, others: bool = False) -> None:
    """Decide what happens to each file; `others` means that more files are decoded beside them.

    All copied files must fit into one file. Among differing schemas, the one of most bytes is chosen. Among differing
    codecs of files whose pages are copied one by one, the one of most bytes is chosen. Codecs and encodings that some
    readers refuse are copied only if all input files have them in the same columns.
    """
    wanted = _wanted(settings)
    for file in files:
        file.judged = _alone(file.footer, wanted, settings.limits)
    _loosen(files)
    for file in files:
        if file.footer.strict and not isinstance(file.judged, Refusal):
            file.judged = _by_pages(file.footer, wanted)
    _keep_readable(files, wanted, others)
    kept = [file for file in files if not isinstance(file.judged, Refusal)]
    _keep_most(kept, lambda footer: (footer.meaning, column_orders(footer)), Refusal.SCHEMA_DIFFERS)
    of_pages = [file for file in kept if file.has_pages]
    _keep_most(of_pages, lambda f: frozenset(c.codec for g in f.row_groups for c in g.chunks), Refusal.CODEC)


def _by_pages(footer: Footer, wanted: _Wanted) -> Judgement:
    """Copy the file by pages: columns that cannot be copied are encoded again, and the others stay unchanged."""
    paged = (CopyStrategy.PAGES,) * len(footer.row_groups)
    return paged if _keeps_filters(footer, paged, wanted.bloom_filters) else Refusal.BLOOM_FILTER


def _keep_readable(files: Sequence[Candidate], wanted: _Wanted, others: bool) -> None:
    """Refuse copies that would hide rows of other files from a reader that can read those files.

    Files with rare codecs are refused. Row groups with rare encodings are copied by pages. Both are copied if all files
    have the same ones, including files that are decoded. The codecs and encodings of `others` are unknown.
    """
    kinds = [
        (rare_codecs(file.footer, file.footer.row_groups, wanted.codec), rare_encodings(file.footer, _whole(file)))
        for file in files
    ]
    if len({*kinds, *([(frozenset(), frozenset())] if others else [])}) < 2:
        return
    for file, (codecs, encodings) in zip(files, kinds, strict=True):
        if codecs and not isinstance(file.judged, Refusal):
            file.judged = Refusal.CODEC
        elif encodings and not isinstance(file.judged, Refusal):
            file.judged = _by_pages(file.footer, wanted)


def _whole(file: Candidate) -> Sequence[RowGroup]:
    """Return the row groups that are copied whole, or all of a file that is decoded.

    In the other row groups, columns with a rare encoding are encoded again.
    """
    groups = file.footer.row_groups
    if isinstance(file.judged, Refusal):
        return groups
    return [group for group, how in zip(groups, file.judged, strict=True) if how is CopyStrategy.ROW_GROUPS]


def _keep_most(files: Sequence[Candidate], kind: Callable[[Footer], Hashable], code: Refusal) -> None:
    """Refuse all files except those of the kind with the most bytes."""
    kinds = [kind(file.footer) for file in files]
    sizes: defaultdict[Hashable, int] = defaultdict(int)
    for found, file in zip(kinds, files, strict=True):
        sizes[found] += file.footer.start
    common = max(sizes, key=lambda found: sizes[found], default=None)
    for found, file in zip(kinds, files, strict=True):
        if found != common:
            file.judged = code


def _alone(footer: Footer, wanted: _Wanted, limits: Limits) -> Judgement:
    """Decide what happens to a file as far as that does not depend on other files."""
    try:
        check_file(footer)
        if not same_columns(footer.schema, wanted.schema):
            return Refusal.SCHEMA_EVOLVED
        chunks = [chunk for group in footer.row_groups for chunk in group.chunks]
        if wanted.codec is not None and any(chunk.codec != wanted.codec for chunk in chunks):
            return Refusal.CODEC
        for group in footer.row_groups:
            check_row_group(group, footer.columns)
        return _by_worth(footer, wanted, limits)
    except CopyRefused as refused:
        return refused.code


def same_columns(schema: Sequence[Element], wanted: Sequence[Element]) -> bool:
    """Return whether a file has exactly these columns, by field id, with these types.

    Names and nullability do not matter to Iceberg's readers.
    """
    return list(map(_column, schema[1:])) == list(map(_column, wanted[1:]))


def _column(element: Element) -> tuple[object, ...]:
    repeated = element.repetition == REPEATED
    return element.field_id, element.type, element.length, element.logical, element.children, repeated


def _by_worth(footer: Footer, wanted: _Wanted, limits: Limits) -> Judgement:
    """Copy a file if most of its bytes are worth copying, including its few small row groups."""
    strategies = [_strategy_of(group, limits) for group in footer.row_groups]
    sizes = [group.size_bytes for group in footer.row_groups]
    tiny = sum(size for size, strategy in zip(sizes, strategies, strict=True) if strategy is CopyStrategy.DECODE)
    if not sizes or 2 * tiny > sum(sizes):
        return Refusal.TINY
    copied = tuple(CopyStrategy.PAGES if strategy is CopyStrategy.DECODE else strategy for strategy in strategies)
    if wanted.bloom_filters and not _keeps_filters(footer, copied, wanted.bloom_filters):
        return Refusal.BLOOM_FILTER
    return copied


def _strategy_of(group: RowGroup, limits: Limits) -> CopyStrategy:
    columns, pages = len(group.chunks), sum(data_pages(chunk) for chunk in group.chunks)
    is_small = group.size_bytes < limits.least_chunk_bytes * columns
    if group.size_bytes >= limits.good_group_bytes or (group.rows >= limits.good_group_rows and not is_small):
        return CopyStrategy.ROW_GROUPS
    if is_small and group.rows < limits.good_group_rows:
        return CopyStrategy.DECODE
    if group.rows * columns < limits.least_page_rows * pages and group.size_bytes < limits.least_page_bytes * pages:
        return CopyStrategy.DECODE
    return CopyStrategy.PAGES


def _keeps_filters(footer: Footer, strategies: Sequence[CopyStrategy], bloom_filters: frozenset[int]) -> bool:
    """Return whether the copy has the bloom filters that the table requires; pages that move have no new ones."""
    asked = [i for i, column in enumerate(footer.columns) if column.element.field_id in bloom_filters]
    if not asked:
        return True
    return all(strategy is CopyStrategy.ROW_GROUPS for strategy in strategies) and all(
        group.chunks[i].bloom_filter is not None for group in footer.row_groups for i in asked
    )


_CODECS = {name: codec for codec, name in CODEC_NAMES.items()}
_CODEC_PROPERTY = "write.parquet.compression-codec"


def forbidden(settings: WriteSettings) -> Refusal | None:
    """Return the reason why no merge of this table may copy anything; None if merges may copy."""
    if not settings.merge_by_copying:
        return Refusal.COPYING_OFF
    return None if sorter_of(settings) is None else Refusal.SORTED


def likely_copied(files: Iterable[FileFact], settings: WriteSettings) -> list[FileFact]:
    """Return the files that are large enough to read their footers, judged from their manifest entries."""
    limits, columns = settings.limits, max(1, sum(leaf.field_id not in LINEAGE_IDS for leaf in leaves(settings)))

    def is_tiny(file: FileFact) -> bool:
        chunk_bytes = file.size_bytes / columns
        is_small = file.rows < limits.least_page_rows and chunk_bytes < limits.least_page_bytes
        # decoding many rows takes longer than reading the footer, even if they have few bytes
        return file.rows < limits.good_group_rows and (is_small or chunk_bytes < limits.least_chunk_bytes)

    return [file for file in files if not is_tiny(file)]


@derived
def _wanted(settings: WriteSettings) -> _Wanted:
    """Return the table's requirements for its files, from the footer of an empty file of its own."""
    options, schema = settings.parquet, without_lineage(own_footer(settings)).schema
    codec = _CODECS[options.codec] if _CODEC_PROPERTY in settings.properties else None
    filters = frozenset(leaf.field_id for leaf in leaves(settings) if leaf.name in options.bloom_fpp)
    return _Wanted(schema, codec, filters)
