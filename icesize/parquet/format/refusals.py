"""Reasons why bytes of a file are decoded instead of copied, one code per reason."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

from icesize.errors import IcesizeError, is_from_outside
from icesize.failpoints import FailpointReached


class Refusal(str, Enum):
    """Codes that reports count: refused bytes are decoded, and only a file that cannot be decoded either is an error.

    The first codes are about the table. Then follow codes about a file's footer, files that do not belong together,
    pages, and copying that is not worth it.
    """

    COPYING_OFF = "copying-off"
    """The policy forbids it: `merge-by-copying` is false."""
    SORTED = "sorted"
    """The table has a sort order, which only decoded rows can be brought into."""
    BLOOM_FILTER = "bloom-filter"
    """The table requires bloom filters that the copy would not have."""
    CODEC = "codec"
    """The table requires another compression than the file has, or most of the others have another."""
    SCHEMA_EVOLVED = "schema-evolved"
    """Columns or types of the file are not those of the table's current schema."""
    MOVED = "moved"
    """Rows go from a partition of an old spec into several of the current one."""

    NOT_PARQUET = "not-parquet"
    CORRUPT_FOOTER = "corrupt-footer"
    """It cannot be read, or it contradicts itself."""
    LARGE_FOOTER = "large-footer"
    """Copying would take more memory for it than decoding."""
    ENCRYPTED = "encrypted"
    UNKNOWN_FIELD = "unknown-field"
    """A field that this version does not know is in a place of offsets: it may be one."""
    EXTERNAL_FILE = "external-file"
    """Column chunks lie in another file."""
    INDEX_PAGE = "index-page"
    INT96 = "int96"
    ROW_LINEAGE = "row-lineage"
    """Columns of format v3 that number rows."""
    CREATED_BY = "created-by"
    """A writer, or a version of one, whose statistics readers may not trust."""
    LEGACY_VALUES = "legacy-values"
    """Metadata say that dates or timestamps follow an old calendar, or that the file holds deletes."""

    DELETED_ROWS = "deleted-rows"
    """Rows of it are deleted, and are left out of what is written."""
    SCHEMA_DIFFERS = "schema-differs"
    """Parquet schemas differ, often in whether a column is required."""
    COLUMN_ORDERS = "column-orders"
    """Bounds are ordered in different ways, or in one that this version does not know."""
    ROW_GROUPS = "row-groups"
    """One file would have too many of them."""
    UNEVEN = "uneven"
    """Row groups are too coarse for outputs of about equal size."""

    PAGES = "pages"
    """Page headers do not add up to their column chunk."""
    CHECKSUM = "checksum"
    """A page does not match its checksum."""
    DICTIONARY_ORDER = "dictionary-order"
    """A page coded by a dictionary would follow one of another encoding; Spark would read wrong values."""
    ENCODING = "encoding"
    """Pages that some readers refuse."""
    SHORT_READ = "short-read"
    """Storage cannot read it, or cannot write its copy."""
    NO_ROOM = "no-room"
    """The local disk or the memory has no room for the bytes of it."""
    COUNTS = "counts"
    """The copy would not have the values and NULLs, or the exact bounds, of its parts."""
    INTERNAL_ERROR = "internal-error"
    """Copying failed by a bug of icesize; the log has the traceback."""

    TINY = "tiny"
    """Chunks or pages so small that copying costs more than decoding."""
    DICTIONARIES = "dictionaries"
    """Too many columns have a dictionary of their own in each file."""


LOG = logging.getLogger("icesize")

_MOST_DETAIL = 500
"""Characters of a detail: files may hold names and versions of any length."""


class CopyRefused(Exception):
    """Raised for bytes that cannot be copied; `code` is the reason. The caller discards everything that it began."""

    def __init__(self, code: Refusal, detail: str = "") -> None:
        super().__init__(f"{code.value}: {detail[:_MOST_DETAIL]}" if detail else code.value)
        self.code = code


class DamagedFile(CopyRefused):
    """Raised for bytes that their format does not allow; `damaged_as` replaces it with the code of the damaged part."""

    def __init__(self, detail: str) -> None:
        super().__init__(Refusal.CORRUPT_FOOTER)
        self.args = (detail[:_MOST_DETAIL],)


@contextmanager
def damaged_as(code: Refusal, what: str = "") -> Iterator[None]:
    """Raise `CopyRefused` with this code for damaged bytes; usable as a context manager or a decorator."""
    try:
        yield
    except DamagedFile as error:
        raise CopyRefused(code, f"{what}: {error}" if what else str(error)) from error


def log_internal_error(what: str, error: Exception) -> str:
    """Log an exception that is neither damage nor an error of storage, and return a clause about it.

    An error of the API, a lack of memory and a failpoint are not internal errors: they are raised again. An error of
    the packages that reach storage is not logged.
    """
    if log_if_internal(what, error):
        return f"internal error {type(error).__name__}: {error}, report this with the traceback in the log"
    if not is_from_outside(error):
        raise error
    return f"{type(error).__name__}: {(str(error) or 'no text').splitlines()[0]}, try again when storage answers"


def log_if_internal(what: str, error: Exception) -> bool:
    """Log an exception with its traceback if it is a mistake in icesize, and return whether it is one.

    The log record has the attribute `internal_error`, by which tests find it, and so does the error itself.
    """
    if isinstance(error, (IcesizeError, MemoryError, FailpointReached)) or is_from_outside(error):
        return False
    LOG.error("Internal error of icesize in %s, report this", what, exc_info=error, extra={"internal_error": True})
    error.__dict__[_IS_INTERNAL] = True
    return True


_IS_INTERNAL = "icesize_internal_error"


def is_internal(error: BaseException | None) -> bool:
    """Return whether `log_if_internal` has logged this error, or one that it was raised from."""
    return error is not None and (_IS_INTERNAL in error.__dict__ or is_internal(error.__cause__))
