"""Distinguishes a query that was stopped from one that failed.

Spark stops a query by interrupting the call that runs its batch. It recognizes the resulting error by its text, with a
regular expression that recurses once per character. A chain of errors contains the text of two Java stack traces. On
that text, the query's thread dies of a StackOverflowError instead of ending quietly.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

from icesize.errors import BatchInterrupted

_INTERRUPTED = re.compile(
    r"An error occurred while calling [^\n]*\n: "
    r"(java\.lang\.InterruptedException|java\.io\.InterruptedIOException|java\.nio\.channels\.ClosedByInterrupt)"
    r"|cancelled part of cancelled job group"
    r"|cancelled Query \[id = [^\]\n]*\] was stopped"
)
"""Matches the error of an interrupted call, or of a job that was cancelled with its query.

An interruption deeper inside the text of another error does not count: it belongs to that error.
"""

_KNOWN_TO_SPARK = "py4j.protocol.Py4JJavaError: An error occurred while calling Spark: java.lang.InterruptedException"


def was_interrupted(error: BaseException) -> bool:
    """Return True if an error, or one it is chained to, is the interruption of a call or a job."""
    each: BaseException | None = error
    while each is not None:
        if _INTERRUPTED.search(_text(each)):
            return True
        each = each.__cause__ or each.__context__
    return False


@contextmanager
def interruptions_reported(stream_id: str, batch_id: int) -> Iterator[None]:
    """Raise BatchInterrupted in place of any error that an interruption caused; Spark recognizes its text."""
    try:
        yield
    except Exception as error:
        if not was_interrupted(error):
            raise
        raise BatchInterrupted(
            f"Batch {batch_id} of stream '{stream_id}' was not finished: its query was stopped. After a restart, "
            f"Spark delivers the batch again ({_KNOWN_TO_SPARK})",
            batch_id=batch_id,
        ) from None


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # Py4J reads the text from a JVM that may be gone
        return ""


def _is_a_failure(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], BatchInterrupted))


# Py4J logs every error that it passes to the JVM, also this one, which is no failure
logging.getLogger("py4j.clientserver").addFilter(_is_a_failure)
