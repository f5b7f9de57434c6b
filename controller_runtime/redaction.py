"""Makes values safe to log: secrets are replaced and sizes limited, in time linear in the kept size.

Logged values contain text from tenants and API servers (a selector in an error message, a proxy's error
page). So text is cut before patterns are applied, and no pattern can backtrack over more than a word.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

REDACTED = "[redacted]"
LONGEST_VALUE = 4096
"""Maximum characters kept of one value."""
LONGEST_TRACEBACK = 16 * 1024
"""Maximum characters kept of a traceback, which contains values and code locations."""
LONGEST_LINE = 32 * 1024
"""Maximum characters of all values of one line; each list item and mapping entry also counts ``_ITEM``."""

_LONGEST_NAME = 256
_LONGEST_SECRET_NAME = 64
"""Maximum characters of a key that is compared with ``_SECRET_NAMES``; the result is cached. Tenants may control keys
of logged mappings."""
_NESTING = 8
_PLAIN = (bool, int, float)  # not a union, which each call would build again
_ITEM = 8
"""Characters that each value counts in addition to its text, so that a million empty values are limited,
too."""
_TRACEBACKS = frozenset({"exception", "stack"})
_SECRET_NAMES = frozenset(
    {
        "accesstoken",
        "authorization",
        "bearertoken",
        "clientkey",
        "clientkeydata",
        "cookie",
        "idtoken",
        "passwd",
        "password",
        "privatekey",
        "proxyauthorization",
        "refreshtoken",
        "setcookie",
        "token",
    }
)
_SECRET_TEXT = re.compile(
    r"(?P<scheme>\b(?:bearer|basic)\s++)[\w\-.~+/=]{8,}+"
    r"|-----BEGIN [A-Z ]{0,64}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,64}PRIVATE KEY-----|\Z)"
    # A JWT, also a truncated one without its dots.
    r"|\b(?-i:eyJ)[\w-]{8,}+(?:\.[\w-]*+){0,2}",
    re.IGNORECASE | re.DOTALL,
)


def redact(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a log line without secrets and within the limits of this module."""
    cleaner = _Cleaner()
    return {key: cleaner.clean(key, value, _NESTING) for key, value in line.items()}


class _Cleaner:
    """Cleans the values of one line, which share the limit of the line."""

    def __init__(self) -> None:
        self._left = LONGEST_LINE

    def clean(self, key: object, value: Any, depth: int) -> Any:
        """Return a value without secrets; containers nested more than ``depth`` levels are replaced by their size."""
        self._left -= _ITEM
        if value is None or isinstance(value, _PLAIN):
            return value
        if isinstance(key, str) and _is_secret(key):
            return REDACTED
        if isinstance(value, str):
            return self._text(value, LONGEST_TRACEBACK if key in _TRACEBACKS else LONGEST_VALUE)
        if isinstance(value, datetime):
            return value
        if isinstance(value, bytes | bytearray):
            return self._text(bytes(value).decode("utf-8", "replace"), LONGEST_VALUE)
        if not isinstance(value, Mapping | list | tuple | set | frozenset):
            return self._text(str(value), LONGEST_VALUE)
        if depth == 0:  # The names of nested fields, which reveal secrets, are no longer checked.
            return f"… {len(value)} nested items"
        return self._mapping(value, depth) if isinstance(value, Mapping) else self._items(value, depth)

    def _mapping(self, value: Mapping[Any, Any], depth: int) -> dict[Any, Any]:
        hidden = {"data", "stringData"} if value.get("kind") == "Secret" else frozenset()
        cleaned: dict[Any, Any] = {}
        for name, item in value.items():
            if self._left <= 0:
                cleaned["…"] = f"{len(value) - len(cleaned)} more"
                break
            shown = self._text(name, _LONGEST_NAME) if isinstance(name, str) else name
            cleaned[shown] = REDACTED if name in hidden else self.clean(name, item, depth - 1)
        return cleaned

    def _items(self, value: Collection[Any], depth: int) -> list[Any]:
        cleaned: list[Any] = []
        for item in value:
            if self._left <= 0:
                cleaned.append(f"… {len(value) - len(cleaned)} more")
                break
            cleaned.append(self.clean(None, item, depth - 1))
        return cleaned

    def _text(self, text: str, longest: int) -> str:
        size = len(text)
        if size <= longest and size <= self._left:
            self._left -= size
            return _without_secrets(text)
        kept = min(longest, max(0, self._left))
        self._left -= kept
        return f"{_without_secrets(text[:kept])}… ({size - kept} more characters)"


def _without_secrets(text: str) -> str:
    return _SECRET_TEXT.sub(lambda match: (match["scheme"] or "") + REDACTED, text)


def _is_secret(key: str) -> bool:
    return len(key) <= _LONGEST_SECRET_NAME and _is_short_secret(key)


@functools.lru_cache(maxsize=1024)
def _is_short_secret(key: str) -> bool:
    return key.replace("-", "").replace("_", "").lower() in _SECRET_NAMES
