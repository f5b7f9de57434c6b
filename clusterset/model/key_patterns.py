"""Sets of label and annotation keys that are given by shell patterns. No IO."""

from __future__ import annotations

import fnmatch
import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass

LONGEST = 4096
"""Maximum characters of a key that are compared. Valid keys are shorter."""


@dataclass(frozen=True, slots=True)
class KeyPatterns:
    """The keys that match any of some shell patterns, such as ``kueue.x-k8s.io/*``; without patterns, none."""

    patterns: tuple[str, ...] = ()

    def __contains__(self, key: object) -> bool:
        """Report whether a key matches."""
        return isinstance(key, str) and compiled(self.patterns).match(key[:LONGEST]) is not None

    def among(self, keys: Iterable[str]) -> list[str]:
        """Return the keys that match, in their order."""
        if not self.patterns:
            return []
        match = compiled(self.patterns).match
        return [key for key in keys if match(key[:LONGEST])]


@functools.lru_cache(maxsize=256)
def compiled(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """Return one expression for shell patterns; without patterns, it matches nothing."""
    return re.compile("|".join(map(fnmatch.translate, patterns)) or r"(?!)")
