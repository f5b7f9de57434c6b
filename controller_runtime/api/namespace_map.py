"""Which lower namespace stands for which upper one, and which upper ones may come. Pure.

An explicit entry wins over the prefix, the prefix over the same name. A name that a prefix makes longer than
Kubernetes allows is cut and ended with a hash of the whole, so two long names never meet.
"""

from __future__ import annotations

import fnmatch
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

NEVER_MIRRORED = "kube-system"
_LONGEST = 63


@dataclass(frozen=True, slots=True)
class NamespaceMap:
    """A function from upper namespaces to lower ones."""

    prefix: str = ""
    explicit: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, upper: str) -> str:
        """The lower namespace."""
        if upper in self.explicit:
            return self.explicit[upper]
        if not self.prefix:
            return upper
        name = self.prefix + upper
        if len(name) <= _LONGEST:
            return name
        return f"{name[: _LONGEST - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def allowed(namespace: str, patterns: Sequence[str]) -> bool:
    """Whether pods of an upper namespace may go below: it matches a shell pattern, or there are none."""
    return not patterns or any(fnmatch.fnmatchcase(namespace, pattern) for pattern in patterns)
