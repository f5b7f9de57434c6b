"""Fields of a decoded policy file, read strictly: what is wrong is a ConfigError with the field's path. Pure."""

from __future__ import annotations

from typing import Any

from controller_runtime.api.readable import guess
from controller_runtime.errors import ConfigError


def count(document: dict[str, Any], key: str, where: str) -> int | None:
    """A number of pods; None: the document does not say."""
    value = document.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ConfigError(f"{join(where, key)}: {value!r}: write a number of pods, 0 for no limit")
    return value


def boolean(value: Any, where: str) -> bool:
    """True or false, and nothing that merely looks like it."""
    if not isinstance(value, bool):
        raise ConfigError(f"{where}: {value!r}: write true or false")
    return value


def mapping(value: Any, where: str) -> dict[str, Any]:
    """A mapping; empty where there is none."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: write a mapping")
    return value


def only(value: dict[str, Any], allowed: set[str], where: str) -> None:
    """Refuse a field that nobody would read."""
    for key in value:
        if key not in allowed:
            raise ConfigError(
                f"{join(where, str(key))}: unknown field; known are {', '.join(sorted(allowed))}"
                f"{guess(str(key), allowed)}"
            )


def join(where: str, key: str) -> str:
    """A field's path."""
    return f"{where}.{key}" if where else key
