"""The content of values.yaml: every value with its default and the comment before it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from hack.chart.rights import CHART

FILE = CHART / "values.yaml"
_KEY = re.compile(r"(?P<indent> *)(?P<key>[A-Za-z][A-Za-z0-9]*):(?: .*)?$")
_BEGINS = "-- "
WHOLE = frozenset(
    {
        "commonLabels",
        "commonAnnotations",
        "resources",
        "labels",
        "annotations",
        "agents",
        "ignoreSelectorKeys",
        "updateStrategy",
        "podSecurityContext",
        "containerSecurityContext",
    }
)
"""Keys that are documented as one value although they have parts."""


@dataclass(frozen=True, slots=True)
class Value:
    """One value that may be set.

    Attributes:
        path: dotted, as ``--set`` takes it.
        default: its value in values.yaml.
        meaning: the comment before it, on one line; empty when there is none.
    """

    path: str
    default: Any
    meaning: str


def read(text: str | None = None) -> list[Value]:
    """Return the values of a values.yaml, the chart's by default, in its order."""
    text = FILE.read_text(encoding="utf-8") if text is None else text
    meanings = comments(text)
    return [Value(path, default, meanings.get(path, "")) for path, default in leaves(yaml.safe_load(text))]


def leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Return paths and defaults of the values that may be set, descending into the chart's own maps."""
    for key, value in values.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict) and value and key not in WHOLE:
            yield from leaves(value, f"{path}.")
        else:
            yield path, value


def comments(text: str) -> dict[str, str]:
    """Return path → the ``# --`` comment before it."""
    found: dict[str, str] = {}
    path: list[str] = []
    pending: list[str] = []
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("#"):
            words = stripped.lstrip("#").strip()
            if words.startswith(_BEGINS):
                pending = [words.removeprefix(_BEGINS)]
            elif pending:
                pending.append(words)
            continue
        if match := _KEY.fullmatch(line):
            depth = len(match["indent"]) // 2
            path = [*path[:depth], match["key"]]
            if pending:
                found[".".join(path)] = " ".join(pending)
        pending = []
    return found
