"""The ``matchLabelKeys`` of pod (anti-)affinity and topology spread, which the API server expands once. No IO.

At creation the API server adds ``key In [the pod's value]`` to the labelSelector for every key of
``matchLabelKeys`` (``NotIn`` for ``mismatchLabelKeys``) and keeps the keys. A pod created from a stored pod's
spec would get the expressions twice and is refused: "exists in both matchLabelKeys and labelSelector". API
servers do this for affinity since 1.29 (KEP-3633) and for topology spread since 1.34 (KEP-3243).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controller_runtime.apimachinery.matching import REQUIRED

_LISTS = ("matchLabelKeys", "mismatchLabelKeys")
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def settled(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored pod's spec for another creation, without label keys that are already in its labelSelectors."""
    made = dict(spec)
    if affinity := spec.get("affinity"):
        made["affinity"] = {
            kind: _affinity(value) if kind in {"podAffinity", "podAntiAffinity"} else value
            for kind, value in affinity.items()
        }
    if constraints := spec.get("topologySpreadConstraints"):
        made["topologySpreadConstraints"] = [_selecting(constraint) for constraint in constraints]
    return made


def expanded(term: Mapping[str, Any], labels: Mapping[str, str]) -> dict[str, Any]:
    """Return an affinity term with the requirements that the API server adds for its label keys, without the keys.

    Args:
        term: of a pod that is being created.
        labels: labels of the pod.
    """
    made = {key: value for key, value in term.items() if key not in _LISTS}
    added = [
        {"key": key, "operator": operator, "values": [labels[key]]}
        for name, operator in zip(_LISTS, ("In", "NotIn"), strict=True)
        for key in term.get(name) or ()
        if key in labels
    ]
    if added and (selector := term.get("labelSelector")) is not None:
        expressions = [*(selector.get("matchExpressions") or ()), *added]
        made["labelSelector"] = {**selector, "matchExpressions": expressions}
    return made


def _affinity(affinity: Mapping[str, Any]) -> dict[str, Any]:
    made = dict(affinity)
    if required := affinity.get(REQUIRED):
        made[REQUIRED] = [_selecting(term) for term in required]
    if preferred := affinity.get(_PREFERRED):
        made[_PREFERRED] = [
            {**weighted, "podAffinityTerm": _selecting(weighted["podAffinityTerm"])} for weighted in preferred
        ]
    return made


def _selecting(holder: Mapping[str, Any]) -> dict[str, Any]:
    """Return a term or a constraint without the label keys for which its labelSelector has expressions."""
    made = dict(holder)
    named = {
        expression.get("key")
        for expression in (holder.get("labelSelector") or {}).get("matchExpressions") or ()
    }
    for name in _LISTS:
        if name in made and named:
            made[name] = [key for key in made[name] if key not in named]
            if not made[name]:
                del made[name]
    return made
