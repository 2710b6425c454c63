"""Sizes from which on files are handled in another way. Each costs speed or memory where it is wrong, never rows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Travels with `WriteSettings` to every process that writes. The defaults were measured."""

    good_group_bytes: int = 8 * 2**20
    """Row groups from this size on are copied whole: smaller ones cost readers more than merging their pages does."""
    good_group_rows: int = 100_000
    """Row groups with as many rows are copied whole, too, unless their chunks are below `least_chunk_bytes`: hundreds
    of those in a file cost more in its footer than they hold, so their pages are joined."""
    least_chunk_bytes: int = 16 * 2**10
    """Mean size of a column chunk from which on pages are copied: a chunk costs 0.1 ms in Python, and decoding it no
    more where it is smaller."""
    least_page_rows: int = 2_000
    least_page_bytes: int = 32 * 2**10
    """Pages that are copied have as many rows, or as many bytes, on average: smaller ones make scans slower (1,000 rows
    per page cost Spark 12 %)."""
    least_copied_bytes: int = 256 * 2**10
    """A merge that could copy less than this is decoded as a whole: looking at footers costs 1-3 ms, as decoding this
    does (three files of 211 KiB take 7 ms when they are copied, 15 ms when they are decoded)."""

    whole_file_bytes: int = 64 * 2**20
    """A file that decodes to no more is read at once, a larger one in batches."""
    batch_rows: int = 65_536
    decoded_bytes: int = 256 * 2**20
    """Arrow memory of the rows that become one row group when files are merged, or are sorted together then."""

    fetched_in_memory_bytes: int = 32 * 2**20
    """Remote files of one merge that are kept in memory; further ones wait on the local disk."""
    fetched_whole_bytes: int = 64 * 2**20
    """Larger remote files are not held in memory, but go to the disk piece by piece."""
    fetched_piece_bytes: int = 16 * 2**20
    """What one request asks for then; object stores recommend 8-16 MiB."""

    open_files: int = 32
    """Files that one writer has open at a time."""

    sorted_bytes: int = 256 * 2**20
    """Arrow memory of the rows that clustering orders together."""
    sorted_rows: int = 4 * 2**20
    """Rows that are ordered together: ordering takes up to 60 bytes for each."""
    sorting_passes: int = 4
    """How often clustering decodes its input files at most: beyond that moving each row once, between processes, is
    faster."""
    scattered_bytes: int = 64 * 2**20
    """Arrow bytes of the rows that one task sends to others at once: with 300 shuffle partitions, what goes to each
    still has 0.2 MB."""
    blob_bytes: int = 16 * 2**20
    """Most Arrow bytes of the rows that are sent as one value."""
    waiting_bytes: int = 64 * 2**20
    """Rows of a task that wait in memory until all have arrived; when there are more, they go to its local disk."""
