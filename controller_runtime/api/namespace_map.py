"""Which lower namespace stands for which upper one, and which upper ones may come. Pure.

An explicit entry wins over the prefix, the prefix over the same name. A name that a prefix makes longer than
Kubernetes allows is cut and ends with a hash of the whole. A name that only looks like such a result is hashed, too, so
that no two upper namespaces lead to one name.
"""

from __future__ import annotations

import fnmatch
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

NEVER_MIRRORED = "kube-system"
_LONGEST = 63
_SHORTENED = re.compile(r".{54}-[0-9a-f]{8}")


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
        if len(name) <= _LONGEST and not _SHORTENED.fullmatch(name):
            return name
        return f"{name[: _LONGEST - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"

    def given_to(self, upper: str) -> str:
        """Return the upper namespace that an explicit entry gives this one's lower namespace to; empty: none."""
        if upper in self.explicit:
            return ""
        lower = self(upper)
        return next((other for other, target in self.explicit.items() if target == lower), "")


def allowed(namespace: str, patterns: Sequence[str]) -> bool:
    """Whether pods of an upper namespace may go below: it matches a shell pattern, or there are none."""
    return not patterns or any(fnmatch.fnmatchcase(namespace, pattern) for pattern in patterns)


def adopts(namespace: str, adopt: bool | Sequence[str]) -> bool:  # noqa: FBT001 - the setting, which is both
    """Return whether an existing lower namespace may be used: always, never, or if a shell pattern matches it."""
    if isinstance(adopt, bool):
        return adopt
    return any(fnmatch.fnmatchcase(namespace, pattern) for pattern in adopt)
