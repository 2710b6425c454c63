"""Values by key that threads share: each is made once, and the least recently used go when there are too many.

A value that something still refers to is never made a second time.
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
    """Up to `most` values, and those in use elsewhere, which are found as long as they live.

    Each key has a lock of its own, so a value that takes long to make delays no other key.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._slots: OrderedDict[Hashable, _Slot[V]] = OrderedDict()
        self._alive: WeakValueDictionary[Hashable, V] = WeakValueDictionary()

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """Return the value of a key; `make` makes it where there is none, and its errors are raised."""
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
