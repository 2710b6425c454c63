"""Values by key that threads share: each is made once, and the least recently used go when there are too many."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

V = TypeVar("V")


@dataclass
class _Slot(Generic[V]):
    lock: threading.Lock = field(default_factory=threading.Lock)
    value: V | None = None


class Remembered(Generic[V]):
    """Up to `most` values. Each key has a lock of its own, so a value that takes long to make delays no other key."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._slots: OrderedDict[Hashable, _Slot[V]] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """Return the value of a key; `make` makes it where there is none, and its errors are raised."""
        slot = self._slot(key)
        with slot.lock:
            if slot.value is None:
                slot.value = make()
            return slot.value

    def _slot(self, key: Hashable) -> _Slot[V]:
        with self._lock:
            slot = self._slots.setdefault(key, _Slot())
            self._slots.move_to_end(key)
            while len(self._slots) > self._most:
                self._slots.popitem(last=False)
            return slot
