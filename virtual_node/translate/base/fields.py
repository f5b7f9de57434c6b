"""Readers that rebuild data of a lower cluster from the fields that we know.

A lower API server may send anything. What is written to the upper cluster is therefore never copied as it is: each
reader returns a new value with a bounded size, or None, and then the field is left out.
"""

from __future__ import annotations

import functools
import re
import socket
from collections.abc import Callable, Mapping
from typing import Any

from controller_runtime.apimachinery import quantity, timestamps

Reader = Callable[[Any], Any]
"""Returns the accepted value of a field; None: there is none."""

LONGEST_NAME = 253
"""Maximum length of a name in Kubernetes (DNS-1123 subdomain)."""
_LONGEST_LABEL = 63
_CUT = " ..."
_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")
_KEY_NAME = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LONGEST_TIME, _LONGEST_QUANTITY = 40, 64
_MOST_RESOURCES = 64
"""Maximum number of resources in a map; a node with many devices has about twenty."""
_INT32, _INT64, _UINT64 = 2**31 - 1, 2**63 - 1, 2**64 - 1


def cut(value: str, most: int) -> str:
    """Return a text of at most ``most`` bytes in UTF-8. A longer text ends with an ellipsis."""
    # A lower server can send megabytes; only what can be kept is encoded.
    if len(value) <= most // 4 or len(encoded := value[: most + 1].encode("utf-8", "replace")) <= most:
        return value
    return encoded[: most - len(_CUT)].decode("utf-8", "ignore") + _CUT


def is_dns_name(value: object) -> bool:
    """Report whether a value is a DNS-1123 subdomain, such as the name of a pod."""
    return (
        isinstance(value, str)
        and 0 < len(value) <= LONGEST_NAME
        and _NAME.fullmatch(value) is not None
        and all(len(label) <= _LONGEST_LABEL for label in value.split("."))
    )


def is_name(value: object) -> bool:
    """Report whether a value is a name of an object; its labels, unlike those of a DNS name, may have any length."""
    return isinstance(value, str) and 0 < len(value) <= LONGEST_NAME and _NAME.fullmatch(value) is not None


def is_key(value: object) -> bool:
    """Report whether a value is a qualified name, such as a resource or the type of a condition."""
    if not isinstance(value, str):
        return False
    prefix, slash, name = value.rpartition("/")
    return _KEY_NAME.fullmatch(name) is not None and (not slash or is_name(prefix))


def is_label_value(value: object) -> bool:
    """Report whether a value is a valid value of a label, also the empty one."""
    return value == "" or (isinstance(value, str) and _KEY_NAME.fullmatch(value) is not None)


def is_address(value: object) -> bool:
    """Report whether a value is an IP address without a zone."""
    if not isinstance(value, str) or not value.isascii() or "\0" in value:
        return False
    try:
        # Faster than ``ipaddress``, which takes a third of the time of a pod's status.
        socket.inet_pton(socket.AF_INET6 if ":" in value else socket.AF_INET, value)
    except OSError:
        return False
    return True


def text(most: int) -> Reader:
    """Return a reader of free text for people, which is cut to ``most`` bytes."""

    def read(value: Any) -> str | None:
        return cut(value, most) if isinstance(value, str) else None

    return read


def word(most: int) -> Reader:
    """Return a reader of printable text that programs compare; a longer one is left out, because its beginning is wrong."""

    def read(value: Any) -> str | None:
        return value if isinstance(value, str) and len(value) <= most and value.isprintable() else None

    return read


def choice(*values: str) -> Reader:
    """Return a reader that accepts these values only."""
    return lambda value: value if isinstance(value, str) and value in values else None


def matching(accepts: Callable[[object], bool]) -> Reader:
    """Return a reader of the values that a predicate accepts."""
    return lambda value: value if accepts(value) else None


def flag(value: Any) -> bool | None:
    """Read a boolean."""
    return value if isinstance(value, bool) else None


def _integer(least: int, most: int) -> Reader:
    def read(value: Any) -> int | None:
        is_integer = isinstance(value, int) and not isinstance(value, bool)
        return value if is_integer and least <= value <= most else None

    return read


def number(value: Any) -> int | float | None:
    """Read a measured number: finite, and not negative."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if is_number and 0 <= value <= _UINT64 else None


int32, int64 = _integer(-_INT32 - 1, _INT32), _integer(-_INT64 - 1, _INT64)
count = _integer(0, _INT32)


def moment(value: Any) -> str | None:
    """Read an RFC 3339 time."""
    return value if isinstance(value, str) and len(value) <= _LONGEST_TIME and _is_moment(value) else None


@functools.lru_cache(maxsize=1024)
def _is_moment(text: str) -> bool:
    """Report whether a text is an RFC 3339 time. A status has the same few times in each of its states."""
    try:
        timestamps.parse(text)
    except ValueError:
        return False
    return True


def mapped(entry: Reader) -> Reader:
    """Return a reader of values by resource, at most 64; refused values are left out."""

    def read(value: Any) -> dict[str, Any] | None:
        if not isinstance(value, Mapping):
            return None
        found: dict[str, Any] = {}
        for key, sent in value.items():
            if len(found) < _MOST_RESOURCES and is_key(key) and (accepted := entry(sent)) is not None:
                found[key] = accepted
        return found

    return read


def amount(value: Any) -> str | None:
    """Read a quantity, such as ``10Gi``."""
    if not isinstance(value, str) or len(value) > _LONGEST_QUANTITY:
        return None
    try:
        quantity.of("", value)
    except ValueError:
        return None
    return value


quantities = mapped(amount)
"""Reads quantities by resource, such as the capacity of a claim."""


def listed(entry: Reader, most: int) -> Reader:
    """Return a reader of a list's first ``most`` entries; refused entries are left out."""

    def read(value: Any) -> list[Any] | None:
        if not isinstance(value, list):
            return None
        return [accepted for one in value[:most] if (accepted := entry(one)) is not None]

    return read


def fields(readers: Mapping[str, Reader], *, required: tuple[str, ...] = ()) -> Reader:
    """Return a reader of an object with known fields; an object without a required field is refused.

    Null stays null, because API servers return times that are not set as null.
    """

    def read(value: Any) -> dict[str, Any] | None:
        # Faster for decoded JSON, because ``Mapping`` is an abstract class.
        if not isinstance(value, dict) and not isinstance(value, Mapping):
            return None
        found: dict[str, Any] = {}
        for key, sent in value.items():
            if (entry := readers.get(key)) is None:
                continue
            accepted = None if sent is None else entry(sent)
            if accepted is not None or sent is None:
                found[key] = accepted
        for key in required:
            if found.get(key) is None:
                return None
        return found

    return read
