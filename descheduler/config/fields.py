"""Read fields of a decoded policy file strictly: a wrong value raises ConfigError with the field's path."""

from __future__ import annotations

from typing import Any

from controller_runtime.apimachinery.readable import guess
from controller_runtime.errors import ConfigError


def count(document: dict[str, Any], key: str) -> int | None:
    """Return a number of pods; None if the document does not have the field."""
    value = document.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ConfigError(f"{key}: {value!r}: write a number of pods, 0 for no limit")
    return value


def boolean(value: Any, where: str) -> bool:
    """Return the value if it is a boolean; raise ConfigError for texts and numbers."""
    if not isinstance(value, bool):
        raise ConfigError(f"{where}: {value!r}: write true or false")
    return value


def mapping(value: Any, where: str) -> dict[str, Any]:
    """Return the value if it is a mapping, and an empty mapping for None."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: write a mapping")
    return value


def only(value: dict[str, Any], allowed: set[str], where: str) -> None:
    """Raise ConfigError for a field that is not allowed."""
    for key in value:
        if key not in allowed:
            raise ConfigError(
                f"{join(where, str(key))}: unknown field; known are {', '.join(sorted(allowed))}"
                f"{guess(str(key), allowed)}"
            )


def join(where: str, key: str) -> str:
    """Return the path of field ``key`` within the field ``where``; empty ``where``: the top level."""
    return f"{where}.{key}" if where else key
