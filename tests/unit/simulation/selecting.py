"""Label and field selectors, read as an API server reads those that the project sends."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

Chooses = Callable[[Mapping[str, Any]], bool]


@functools.cache
def selection(namespace: str | None, labels: str | None, fields: str | None) -> Chooses:
    """Whether an object belongs to a collection."""
    of_labels = [_label(term) for term in re.split(r",(?![^(]*\))", labels)] if labels else []
    of_fields = [_field(term) for term in fields.split(",")] if fields else []

    def chosen(body: Mapping[str, Any]) -> bool:
        metadata = body["metadata"]
        if namespace is not None and metadata.get("namespace") != namespace:
            return False
        own = metadata.get("labels") or {}
        return all(one(own) for one in of_labels) and all(one(body) for one in of_fields)

    return chosen


def _label(term: str) -> Chooses:
    if found := re.fullmatch(r"(\S+) (in|notin) \((.*)\)", term):
        key, operator, text = found.groups()
        values = frozenset(text.split(","))
        return lambda labels: (labels.get(key) in values) == (operator == "in")
    if "!=" in term:
        key, _, value = term.partition("!=")
        return lambda labels: labels.get(key) != value
    if term.startswith("!"):
        return lambda labels: term[1:] not in labels
    key, equals, value = term.partition("=")
    return (lambda labels: labels.get(key) == value) if equals else (lambda labels: key in labels)


def _field(term: str) -> Chooses:
    path, _, value = term.partition("=")
    steps = path.split(".")
    differs = path.endswith("!")
    if differs:
        steps[-1] = steps[-1][:-1]

    def chosen(body: Mapping[str, Any]) -> bool:
        found: Any = body
        for step in steps:
            found = (found or {}).get(step)
        return ((found or "") == value) != differs

    return chosen
