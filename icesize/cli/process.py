"""The process of the program `icesize`: it loads much, works once and ends, and leaves out what only others need.

What is done here holds for the whole process, so the library never does it.
"""

from __future__ import annotations

import atexit
import gc
import sys
from importlib.abc import MetaPathFinder


def collect_later() -> None:
    """Collect no garbage until `collect_from_now_on`, and none at the end of the process.

    The thousand modules that a command loads hold none, but make the collector go through all of them again and again.
    """
    gc.disable()
    atexit.register(gc.freeze)


def collect_from_now_on() -> None:
    """Collect what becomes garbage after this; does nothing in a process that collects anyway.

    A command calls it when its work begins.
    """
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def load_arrow_alone() -> None:
    """Load Arrow without pandas.

    Before it makes its first array, Arrow asks whether there is pandas, which loads that: a fifth of what a command
    takes that finds nothing to do. Here it is told that there is none. It asks again when it is to make a DataFrame,
    and everybody else finds pandas as ever.
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


class _NoPandas(MetaPathFinder):
    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Raises ModuleNotFoundError for pandas, and leaves all else to the other finders."""
        if name == "pandas":
            raise ModuleNotFoundError("pandas is not needed here", name=name)
