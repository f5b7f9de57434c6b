"""Decides whether a node admits a pod by labels, affinity and taints, with kube-scheduler's rules. No IO.

Source: core/v1 NodeSelectorTerm, Toleration; apimachinery ``pkg/labels`` for selectors as text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

Matcher = Callable[[Mapping[str, str]], bool]
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
"""Fields of each kind of affinity: the terms that must hold, and those that should."""

_PART = re.compile(r"(?:[^,(]++|\([^)]*+\)?+)++")
_SET = re.compile(r"([\w./-]++)\s++(in|notin)\s*+\(([^)]*+)\)", re.ASCII)
_EQUALS = re.compile(r"([\w./-]++)\s*+(==|=|!=)\s*+([\w.-]*+)", re.ASCII)
_COMPARES = re.compile(r"([\w./-]++)\s*+([<>])\s*+([+-]?[0-9]++)", re.ASCII)
_EXISTS = re.compile(r"(!?)\s*+([\w./-]++)", re.ASCII)
LABEL_OPERATORS = frozenset({"In", "NotIn", "Exists", "DoesNotExist"})
"""The operators of a LabelSelectorRequirement."""
_SELECTOR_FIELDS = ("matchLabels", "matchExpressions")
_SCHEDULING_EFFECTS = frozenset({"NoSchedule", "NoExecute"})


class Requirement(msgspec.Struct):
    """A LabelSelectorRequirement or NodeSelectorRequirement, to check the types of its fields."""

    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class LabelSelector(msgspec.Struct, rename="camel"):
    """A metav1.LabelSelector, to check the types of its fields."""

    match_labels: dict[str, str] | None = None
    match_expressions: list[Requirement] | None = None


def parse_selector(text: str) -> Matcher:
    """Return a matcher for a label selector as kubectl's ``-l``; empty: matches everything.

    Raises:
        ValueError: not a label selector.
    """
    # A comma separates the parts, except in parentheses.
    requirements = [_requirement(part.strip()) for part in _PART.findall(text) if part.strip()]
    return lambda labels: all(holds(requirement, labels) for requirement in requirements)


def compile_selector(selector: Mapping[str, Any]) -> Matcher:
    """Return a matcher for a metav1.LabelSelector; empty: matches everything.

    Raises:
        ValueError: an operator is unknown, or a field has the wrong type.
    """
    msgspec.convert(selector, LabelSelector)
    # Users write long selectors and lists of values, and a matcher is called for many objects.
    requirements = [
        _label_requirement(key, "In", (value,)) for key, value in (selector.get("matchLabels") or {}).items()
    ]
    for expression in selector.get("matchExpressions") or ():
        key, values = expression.get("key", ""), expression.get("values") or ()
        requirements.append(_label_requirement(key, expression.get("operator"), values))
    if len(requirements) == 1:
        return requirements[0]

    def matches(labels: Mapping[str, str]) -> bool:
        for holds_for in requirements:  # noqa: SIM110 - ``all`` takes twice as long
            if not holds_for(labels):
                return False
        return True

    return matches


def conjunction(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return a metav1.LabelSelector that matches what both selectors match. Other fields of the selectors are kept."""
    expressions: list[Any] = []
    for selector in (first, second):
        labels = selector.get("matchLabels") or {}
        expressions += [{"key": key, "operator": "In", "values": [value]} for key, value in labels.items()]
        expressions += selector.get("matchExpressions") or ()
    others = {key: value for key, value in {**first, **second}.items() if key not in _SELECTOR_FIELDS}
    return {**others, "matchExpressions": expressions}


def _label_requirement(key: str, operator: Any, values: Collection[str]) -> Matcher:
    allowed = frozenset(values)
    match operator:
        case "In":
            return lambda labels: labels.get(key) in allowed
        case "NotIn":
            return lambda labels: labels.get(key) not in allowed
        case "Exists":
            return lambda labels: labels.get(key) is not None
        case "DoesNotExist":
            return lambda labels: labels.get(key) is None
    raise ValueError(f"operator {operator!r}: write In, NotIn, Exists or DoesNotExist")


def selector_problems(where: str, selector: Mapping[str, Any]) -> list[str]:
    """Return the errors of a metav1.LabelSelector in a configuration, each as ``field: what``; empty: none."""
    unknown = selector.keys() - {"matchLabels", "matchExpressions"}
    if unknown:
        return [f"{where}: unknown {', '.join(sorted(unknown))}; matchLabels and matchExpressions are known"]
    try:
        compile_selector(selector)
    except (ValueError, AttributeError, TypeError) as error:
        return [f"{where}: {error}"]
    return [
        f"{where}.matchExpressions[{position}]: unknown {', '.join(sorted(unknown))}; key, operator and values are known"
        for position, expression in enumerate(selector.get("matchExpressions") or ())
        if (unknown := expression.keys() - {"key", "operator", "values"})
    ]


def holds(requirement: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Report whether labels satisfy one requirement of a selector or node affinity."""
    key, values = requirement.get("key", ""), requirement.get("values") or ()
    value = labels.get(key)
    match requirement.get("operator"):
        case "In":
            return value is not None and value in values
        case "NotIn":
            return value is None or value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator:
            return _compares(operator, str(value), "".join(values), _INTEGER)
        case _:
            return False


_INTEGER = re.compile(r"[+-]?[0-9]+")
_DECIMAL_INTEGER = re.compile(r"0|-?[1-9][0-9]*")
"""As tolerations need it: without sign plus, and without leading zeros."""
_LONGEST = 63
"""Largest length of the value of a label or taint."""


def _compares(operator: str, text: str, bound: str, pattern: re.Pattern[str]) -> bool:
    """Report whether a value is greater (``Gt``) or less than the bound; False if one is not an integer of 64 bits."""
    if max(len(text), len(bound)) > _LONGEST or not (pattern.fullmatch(text) and pattern.fullmatch(bound)):
        return False
    numbers = int(text), int(bound)
    if not all(-(1 << 63) <= number < 1 << 63 for number in numbers):
        return False
    return numbers[0] > numbers[1] if operator == "Gt" else numbers[0] < numbers[1]


def admits(
    spec: Mapping[str, Any],
    *,
    name: str,
    labels: Mapping[str, str],
    taints: Collection[Mapping[str, Any]],
) -> bool:
    """Report whether a node's name, labels and taints admit a pod by its selector, affinity and tolerations."""
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    node_affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = node_affinity.get(REQUIRED)
    if required and not any(
        matches_term(term, name=name, labels=labels) for term in required.get("nodeSelectorTerms") or ()
    ):
        return False
    tolerations = spec.get("tolerations") or ()
    return all(
        taint.get("effect") not in _SCHEDULING_EFFECTS
        or any(tolerates(toleration, taint) for toleration in tolerations)
        for taint in taints
    )


def matches_term(term: Mapping[str, Any], *, name: str, labels: Mapping[str, str]) -> bool:
    """Report whether a node matches a NodeSelectorTerm; an empty term matches no node."""
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not expressions and not fields:
        return False
    return all(holds(expression, labels) for expression in expressions) and all(
        holds(field, {"metadata.name": name}) for field in fields
    )


def tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    """Report whether a toleration tolerates a taint."""
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if toleration.get("key") and toleration["key"] != taint.get("key"):
        return False
    value, bound = taint.get("value") or "", toleration.get("value") or ""
    match toleration.get("operator") or "Equal":
        case "Exists":
            return True
        case "Equal":
            return bool(toleration.get("key")) and value == bound
        case "Gt" | "Lt" as operator:  # KEP-5471
            return bool(toleration.get("key")) and _compares(
                operator, str(value), str(bound), _DECIMAL_INTEGER
            )
    return False


def _requirement(part: str) -> dict[str, Any]:
    if match := _SET.fullmatch(part):
        values = [value.strip() for value in match[3].split(",")]
        return {"key": match[1], "operator": "In" if match[2] == "in" else "NotIn", "values": values}
    if match := _EQUALS.fullmatch(part):
        return {"key": match[1], "operator": "NotIn" if match[2] == "!=" else "In", "values": [match[3]]}
    if match := _COMPARES.fullmatch(part):
        return {"key": match[1], "operator": "Gt" if match[2] == ">" else "Lt", "values": [match[3]]}
    if match := _EXISTS.fullmatch(part):
        return {"key": match[2], "operator": "DoesNotExist" if match[1] else "Exists"}
    raise ValueError(f"{part!r} is not a label selector such as zone=a or 'zone in (a, b)'")
