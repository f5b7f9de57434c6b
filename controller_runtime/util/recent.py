"""A dict of bounded size that forgets what was not used for the longest time. No IO."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

MEMORY = 4096


class Recent(OrderedDict[K, V], Generic[K, V]):
    """A dict of the latest entries; setting or touching an entry makes it the newest."""

    def __init__(self, size: int = MEMORY) -> None:
        super().__init__()
        self._size = size

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self._size:
            self.popitem(last=False)

    def touch(self, key: K) -> V | None:
        """Return the entry and make it the newest; None if there is none."""
        if key not in self:
            return None
        self.move_to_end(key)
        return self[key]
