"""A cache that threads share: each value is created once, and the least recently used are dropped.

A value that is still in use elsewhere is never created a second time.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

V = TypeVar("V")


@dataclass
class _Slot(Generic[V]):
    lock: threading.Lock = field(default_factory=threading.Lock)
    value: V | None = None


class Remembered(Generic[V]):
    """Up to `most` values. Values that are in use elsewhere are also found as long as they exist.

    Each key has its own lock, so a value that takes long to create delays no other key.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._slots: OrderedDict[Hashable, _Slot[V]] = OrderedDict()
        self._alive: WeakValueDictionary[Hashable, V] = WeakValueDictionary()

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """Return the value of a key. `make` creates it if there is none; its errors are raised."""
        with self._lock:
            slot = self._slots.setdefault(key, _Slot())
            self._slots.move_to_end(key)
            if len(self._slots) > self._most:
                self._slots.popitem(last=False)
        with slot.lock:
            if slot.value is None:
                value = self._alive.get(key)
                made = make() if value is None else value
                with self._lock:
                    slot.value = self._alive.setdefault(key, made)
            return slot.value
