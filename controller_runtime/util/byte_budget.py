"""A bound for the bytes that many hold at the same time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

_Holder = TypeVar("_Holder")


class ByteBudget(Generic[_Holder]):
    """Counts bytes by holder. Where they are too many together, the holders that began first lose theirs.

    A peer of good will sends a request within milliseconds, so it is never the oldest for long: those that stall are.
    """

    def __init__(self, limit: int, *, drop: Callable[[_Holder], None]) -> None:
        """Set up.

        Args:
            limit: bytes held together.
            drop: called with a holder that has to give up; what it holds does not count any more.
        """
        self._limit = limit
        self._drop = drop
        self._held: dict[_Holder, int] = {}
        self._sum = 0

    @property
    def held(self) -> int:
        """The bytes that all hold together."""
        return self._sum

    def set(self, holder: _Holder, size: int) -> None:
        """Note what a holder holds now; 0 forgets it."""
        self._sum += size - self._held.get(holder, 0)
        if size:
            self._held[holder] = size
        else:
            self._held.pop(holder, None)
        while self._sum > self._limit:
            oldest = next(iter(self._held))
            self._sum -= self._held.pop(oldest)
            self._drop(oldest)
