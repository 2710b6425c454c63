"""Start-up and exit shortcuts of the `icesize` process, which loads much, runs one command and exits.

They affect the whole process, so the library never uses them.
"""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader

_RARELY_USED = ("pyiceberg.expressions.parser", "strictyaml")
"""Modules that PyIceberg imports and that few commands use: for a filter (with pyparsing), for a file of settings.

They took 30 of the 620 ms that `compact` spent on imports.
"""


def collect_later() -> None:
    """Collect no garbage until `collect_from_now_on`, and none at the end of the process.

    A command loads a thousand modules, which contain no garbage. The collector would still scan all of them repeatedly.
    """
    gc.disable()
    atexit.register(gc.freeze)


def collect_from_now_on() -> None:
    """Collect the garbage that is created after this call; do nothing if collection is already on.

    A command calls this when its work begins.
    """
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def load_arrow_alone() -> None:
    """Load Arrow without pandas.

    Before Arrow creates its first array, it checks for pandas and imports it. That takes a fifth of the time of a
    command that finds nothing to do. During this call, pandas cannot be imported. Arrow checks again before it creates
    a DataFrame, and all other code can import pandas as usual.
    """
    if "pyarrow" in sys.modules or "pandas" in sys.modules:
        return
    refusal = _NoPandas()
    sys.meta_path.insert(0, refusal)
    try:
        import pyarrow as pa

        pa.array([0])
    finally:
        sys.meta_path.remove(refusal)


def load_rarely_used_later() -> None:
    """Run modules that few commands use only when their first attribute is read."""
    if not any(isinstance(finder, _Later) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Later())


class _Later(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        """Return the usual spec of a module of `_RARELY_USED` with a lazy loader; None for all other modules."""
        spec = PathFinder.find_spec(name, path) if name in _RARELY_USED else None
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


class _NoPandas(MetaPathFinder):
    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Raise ModuleNotFoundError for pandas; leave all other modules to the other finders."""
        if name == "pandas":
            raise ModuleNotFoundError("pandas is not needed here", name=name)
