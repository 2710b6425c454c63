"""Files that nobody sees yet do not outlive the call that wrote them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from icesize.clock import Commitment, Environment
from icesize.parquet.files.storage import Storage


@contextmanager
def nothing_left(storage: Storage, environment: Environment) -> Iterator[Environment]:
    """Files that were begun on `storage` go when an error or Ctrl-C leaves the block, wherever that happens, but for
    those that a commit made visible, or may have. Commits in the block are made with the environment it gives.
    """
    begun: list[Commitment] = []
    try:
        yield environment.also_telling(begun.append)
    except BaseException as error:
        # a commit cleans up after all that the catalog says and every failure: only an interrupt cuts that short
        if not begun or not isinstance(error, Exception):
            storage.abandon(keep=set().union(*(commitment.may_be_visible() for commitment in begun)))
        raise
