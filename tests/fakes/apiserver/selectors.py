"""Label and field selectors, read as an API server reads those that the project sends."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

Matches = Callable[[Mapping[str, Any]], bool]
"""Report whether an object belongs to a collection."""


@functools.cache
def selection(namespace: str | None, labels: str | None, fields: str | None) -> Matches:
    """Return the function that reports whether an object belongs to a collection."""
    label_terms = [_label(term) for term in re.split(r",(?![^(]*\))", labels)] if labels else []
    field_terms = [_field(term) for term in fields.split(",")] if fields else []

    def matches(body: Mapping[str, Any]) -> bool:
        metadata = body["metadata"]
        if namespace and metadata.get("namespace") != namespace:
            return False
        own = metadata.get("labels") or {}
        return all(term(own) for term in label_terms) and all(term(body) for term in field_terms)

    return matches


def _label(term: str) -> Matches:
    term = term.strip()
    if found := re.fullmatch(r"(\S+)\s+(in|notin)\s+\((.*)\)", term):
        key, operator, text = found.groups()
        values = frozenset(value.strip() for value in text.split(","))
        return lambda labels: (labels.get(key) in values) == (operator == "in")
    if "!=" in term:
        key, _, value = term.partition("!=")
        return lambda labels: labels.get(key) != value
    if term.startswith("!"):
        return lambda labels: term[1:] not in labels
    key, equals, value = term.replace("==", "=").partition("=")
    return (lambda labels: labels.get(key) == value) if equals else (lambda labels: key in labels)


def _field(term: str) -> Matches:
    path, _, value = term.replace("==", "=").partition("=")
    differs = path.endswith("!")
    steps = path.removesuffix("!").split(".")

    def matches(body: Mapping[str, Any]) -> bool:
        found: Any = body
        for step in steps:
            found = (found or {}).get(step)
        return ((found or "") == value) != differs

    return matches
