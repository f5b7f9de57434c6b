"""A limit on the bytes that many holders, such as connections, have in memory at the same time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

_Holder = TypeVar("_Holder")


class ByteBudget(Generic[_Holder]):
    """Counts bytes by holder. Above the limit, the holders that began first are dropped.

    A normal client sends a request within milliseconds, so the oldest holders are stalled clients.
    """

    def __init__(self, limit: int, *, drop: Callable[[_Holder], None]) -> None:
        """Create a budget; ``drop`` is called with a holder that must stop, and its bytes no longer count."""
        self._limit = limit
        self._drop = drop
        self._held: dict[_Holder, int] = {}
        self._sum = 0

    @property
    def held(self) -> int:
        """Return the bytes of all holders."""
        return self._sum

    def set(self, holder: _Holder, size: int) -> None:
        """Set the bytes of a holder; 0 removes it."""
        self._sum += size - self._held.get(holder, 0)
        if size:
            self._held[holder] = size
        else:
            self._held.pop(holder, None)
        while self._sum > self._limit:
            oldest = next(iter(self._held))
            self._sum -= self._held.pop(oldest)
            self._drop(oldest)
