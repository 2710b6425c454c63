"""Notices internal errors of icesize, which its log has with the attribute `internal_error`."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

LOG = logging.getLogger("icesize")


class _Collector(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "internal_error", False):
            self.found.append(self.format(record))


@contextmanager
def watched() -> Iterator[list[str]]:
    """Collect the internal errors that this process logs while the block runs, with their tracebacks."""
    collector = _Collector()
    LOG.addHandler(collector)
    try:
        yield collector.found
    finally:
        LOG.removeHandler(collector)
