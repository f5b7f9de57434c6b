"""The ``clusterSelector`` annotation: scheduling fields for the lower cluster's scheduler.

JSON ``{"nodeSelector": …, "affinity": {"nodeAffinity": …, "podAntiAffinity": …}, "tolerations": […]}``, all members
optional. Of ``podAntiAffinity``, only the required terms count, in addition to those of the spec. A fourth member,
``upperNodeSelectorTerms``, exists only if the terms of a required node affinity have different requirements of the
*upper* node. For each required term it has the term that the virtual node must match, or null. ``resolve`` applies it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from controller_runtime.apimachinery import decoding, matching
from controller_runtime.apimachinery.matching import PREFERRED, REQUIRED

UPPER_TERMS = "upperNodeSelectorTerms"
_WRONG_FIELD = re.compile(r"(.*) - at `(key in )?\$(.*)`", re.DOTALL)


class _Term(msgspec.Struct, rename="camel"):
    match_expressions: list[matching.Requirement] | None = None
    match_fields: list[matching.Requirement] | None = None


class _Required(msgspec.Struct, rename="camel"):
    node_selector_terms: list[_Term] | None = None


class _Preferred(msgspec.Struct):
    weight: int | None = None
    preference: _Term | None = None


class _NodeAffinity(msgspec.Struct):
    required: _Required | None = msgspec.field(name=REQUIRED, default=None)
    preferred: list[_Preferred] | None = msgspec.field(name=PREFERRED, default=None)


class _PodTerm(msgspec.Struct, rename="camel"):
    label_selector: matching.LabelSelector | None = None
    topology_key: str | None = None
    namespaces: list[str] | None = None
    namespace_selector: matching.LabelSelector | None = None


class _PodAntiAffinity(msgspec.Struct):
    required: list[_PodTerm] | None = msgspec.field(name=REQUIRED, default=None)


class _Affinity(msgspec.Struct, rename="camel"):
    node_affinity: _NodeAffinity | None = None
    pod_anti_affinity: _PodAntiAffinity | None = None


class _Toleration(msgspec.Struct, rename="camel"):
    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None
    toleration_seconds: int | None = None


class _Selector(msgspec.Struct, rename="camel"):
    """The members of the annotation that are read; other members are ignored."""

    node_selector: dict[str, str] | None = None
    affinity: _Affinity | None = None
    tolerations: list[_Toleration] | None = None
    upper_node_selector_terms: list[_Term | None] | None = None


def parse(text: str) -> dict[str, Any]:
    """Return the members of the annotation that exist and are not empty.

    Raises:
        ValueError: not JSON, or a field has the wrong type; the message names the field.
    """
    try:
        found = decoding.decode(text)
    except msgspec.DecodeError as error:
        raise ValueError(f"clusterSelector: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError("clusterSelector: expected a JSON object")
    try:
        msgspec.convert(found, _Selector)
    except msgspec.ValidationError as error:
        what = _WRONG_FIELD.fullmatch(str(error))
        field, problem = (what[3], what[1]) if what else ("", str(error))
        raise ValueError(f"clusterSelector{field}: {problem.lower()}") from None
    return {member: found[member] for member in _Selector.__struct_encode_fields__ if found.get(member)}


def resolve(selector: Mapping[str, Any], *, node_name: str, node_labels: Mapping[str, str]) -> dict[str, Any]:
    """Return the selector as the lower cluster of one virtual node applies it.

    A required term is kept only if the virtual node matches the term in ``upperNodeSelectorTerms`` for it, if
    any. If a kept term is empty, every lower node is allowed, so the required affinity is removed.
    """
    upper_terms = selector.get(UPPER_TERMS)
    resolved = {member: value for member, value in selector.items() if member != UPPER_TERMS}
    if not upper_terms:
        return resolved
    affinity = dict(resolved.get("affinity") or {})
    node_affinity = dict(affinity.get("nodeAffinity") or {})
    terms = (node_affinity.get(REQUIRED) or {}).get("nodeSelectorTerms") or []
    kept = [
        term
        for term, upper in zip(terms, upper_terms, strict=False)
        if not upper or matching.matches_term(upper, name=node_name, labels=node_labels)
    ]
    if any(not term for term in kept):
        node_affinity.pop(REQUIRED, None)
    else:
        # If no term is kept, the pod must not run in this cluster: a list of one empty term matches no lower
        # node.
        node_affinity[REQUIRED] = {"nodeSelectorTerms": kept or [{}]}
    affinity["nodeAffinity"] = node_affinity
    if not node_affinity:
        affinity.pop("nodeAffinity")
    resolved["affinity"] = affinity
    return {member: value for member, value in resolved.items() if value}


def anti_affinity(selector: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return the required pod anti-affinity terms of a selector."""
    affinity = (selector or {}).get("affinity") or {}
    return (affinity.get("podAntiAffinity") or {}).get(REQUIRED) or []


def with_anti_affinity(spec: Mapping[str, Any], selector: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return an upper pod's spec with the required pod anti-affinity of its selector in addition to its own."""
    if not (terms := anti_affinity(selector)):
        return spec
    affinity = spec.get("affinity") or {}
    own = affinity.get("podAntiAffinity") or {}
    both = {**own, REQUIRED: [*(own.get(REQUIRED) or ()), *terms]}
    return {**spec, "affinity": {**affinity, "podAntiAffinity": both}}


def of(annotations: Mapping[str, str] | None, key: str) -> dict[str, Any] | None:
    """Return the selector in an object's annotations; None if there is none or it is invalid."""
    text = (annotations or {}).get(key)
    if not text:
        return None
    try:
        return parse(text)
    except ValueError:
        return None


def refusal(annotations: Mapping[str, str] | None, key: str) -> str:
    """Return why a pod with these annotations is refused; empty if its selector is valid or missing.

    An invalid selector is refused, because without a selector the pod would run on any lower node.
    """
    text = (annotations or {}).get(key)
    if text:
        try:
            parse(text)
        except ValueError as error:
            return f"Annotation {error}; correct or remove the annotation"
    return ""
