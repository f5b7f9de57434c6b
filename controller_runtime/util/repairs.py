"""Limits the repairs of an object that another program changes again and again. Does no IO."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

_AT_ONCE = 3
"""Number of an object's first repairs, which have no pause."""
_LONGEST_PAUSE = 300.0


@dataclass(frozen=True, slots=True)
class _Repair:
    digest: bytes
    """Of the wanted state, which may be large."""
    at: float
    count: int

    @property
    def pause(self) -> float:
        return 0.0 if self.count < _AT_ONCE else min(_LONGEST_PAUSE, 2.0 ** min(self.count - _AT_ONCE, 10))


class Repairs:
    """The last repairs of objects. An object whose wanted state has changed counts as never repaired."""

    def __init__(self) -> None:
        self._last: dict[str, _Repair] = {}

    def wait(self, key: str, desired: Mapping[str, Any]) -> float:
        """Return the seconds until the next repair of an object; 0: repair it now, which is counted.

        Args:
            key: identifies the object.
            desired: the wanted state.
        """
        now, last = asyncio.get_running_loop().time(), self._last.get(key)
        digest = hashlib.blake2b(msgspec.json.encode(desired, order="sorted"), digest_size=16).digest()
        if last is None or last.digest != digest or now - last.at > 2 * _LONGEST_PAUSE:
            last = _Repair(digest, now, 0)
        if (left := last.at + last.pause - now) > 0:
            return left
        self._last[key] = _Repair(digest, now, last.count + 1)
        return 0.0

    def forget(self, key: str) -> None:
        """Forget the repairs of an object that is no longer wanted."""
        self._last.pop(key, None)
