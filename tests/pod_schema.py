"""The fields of a pod's spec in ``tests/pod_fields.txt``, with their paths and values that have their kinds."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FILE = Path(__file__).parent / "pod_fields.txt"
_FIELD = re.compile(r"  (\w+): (?P<list>\[\])?(?P<map>map )?(?P<kind>[\w-]+)(?: \((?P<releases>.*)\))?")
OLDEST, NEWEST = "1.34", "1.37"
_VALUES: dict[str, Any] = {
    "boolean": True,
    "integer": 1,
    "int-or-string": 8080,
    "number": 1.0,
    "object": {},
    "quantity": "1",
    "string": "/x",
    "time": "2026-01-01T00:00:00Z",
}
_REQUIRED: dict[str, dict[str, Any]] = {
    **{
        kind: {"name": "x"}
        for kind in ("containers", "initContainers", "ephemeralContainers", "env", "volumes")
    },
    "serviceAccountToken": {"path": "token"},
}
"""Fields that other fields need beside them, by the field that has both."""


@dataclass(frozen=True, slots=True)
class PodField:
    """One field, at one place of the spec."""

    path: str
    """With marks for lists and maps: ``containers[].resources.limits{}``."""
    kind: str
    """``string``, ``Container``, …: of the field, or of the items of its list or map."""
    is_leaf: bool
    """Whether the kind has no fields."""
    releases: tuple[str, ...]
    """The releases that have the field; empty: all of the file."""

    @property
    def plain(self) -> str:
        """Return the path as ``spec_fields`` has it."""
        path = re.sub(r"\[\]|\{\}", "", self.path)
        return re.sub(r"^(initContainers|ephemeralContainers(?=\.))", "containers", path)

    @property
    def is_new(self) -> bool:
        """Report whether the oldest release of the file does not have the field."""
        return bool(self.releases) and OLDEST not in self.releases

    def value(self) -> Any:
        """Return a value of the field that is not its default."""
        value = _VALUES.get(self.kind, {})
        if self.path.endswith("[]"):
            return [value]
        return {"x": value} if self.path.endswith("{}") else value


@functools.cache
def pod_fields(release: str = NEWEST) -> tuple[PodField, ...]:
    """Return all fields of a pod's spec in a release."""
    return tuple(_fields("PodSpec", "", release, ()))


def placed(path: str, value: Any) -> dict[str, Any]:
    """Return the part of a pod's spec that has a value at a path, and on the way the fields that API servers require."""
    first, _, rest = path.partition(".")
    name = re.sub(r"\[\]|\{\}", "", first)
    if not rest:
        return {name: value}
    inner = {**_REQUIRED.get(name, {}), **placed(rest, value)}
    return {name: [inner] if first.endswith("[]") else inner}


def values_at(spec: Any, path: str) -> list[Any]:
    """Return the values that a spec has at a path, one for each item of the lists on the way."""
    if isinstance(spec, list):
        return [value for item in spec for value in values_at(item, path)]
    first, _, rest = path.partition(".")
    if not isinstance(spec, dict) or (name := re.sub(r"\[\]|\{\}", "", first)) not in spec:
        return []
    return values_at(spec[name], rest) if rest else [spec[name]]


def _fields(kind: str, begin: str, release: str, inside: tuple[str, ...]) -> Iterator[PodField]:
    types = _types()
    for name, found in types[kind].items():
        releases = tuple((found["releases"] or "").split())
        if releases and release not in releases:
            continue
        path = begin + name + (found["list"] or "") + ("{}" if found["map"] else "")
        is_leaf = found["kind"] not in types
        yield PodField(path, found["kind"], is_leaf, releases)
        if not is_leaf and found["kind"] not in inside:
            yield from _fields(found["kind"], f"{path}.", release, (*inside, found["kind"]))


@functools.cache
def _types() -> dict[str, dict[str, re.Match[str]]]:
    types: dict[str, dict[str, re.Match[str]]] = {}
    fields: dict[str, re.Match[str]] = {}
    for line in _FILE.read_text(encoding="utf-8").splitlines()[1:]:
        if match := _FIELD.fullmatch(line):
            fields[match[1]] = match
        else:
            fields = types[line] = {}
    return types
