"""Moves required pod anti-affinity over hostnames of a pod to pods of its own kind to the annotation. Does no IO.

The upper scheduler takes a virtual node for one host, so such a term allows one replica per lower cluster. In the
annotation, only the lower scheduler applies it, and each replica gets a lower node of its own.

A term about other pods stays, because these pods may run on real upper nodes, where the lower scheduler sees none of
them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from clusterset.model import names
from clusterset.model.pod import affinity_terms
from clusterset.model.policy.rules import matches
from controller_runtime.apimachinery import matching
from controller_runtime.apimachinery.matching import REQUIRED
from webhook.mutation import selectors
from webhook.mutation.validation import MAX_ENTRIES, RefusedError

_KIND = "podAntiAffinity"
_ANNOTATION = names.ANNOTATION_MOVE_ANTI_AFFINITY


def is_wanted(annotations: Mapping[str, str] | None, namespace: str, namespaces: Collection[str]) -> bool:
    """Report whether the terms of a pod move.

    Args:
        annotations: of the pod; the one for this decision overrides the setting.
        namespace: of the pod.
        namespaces: shell patterns of the namespaces whose pods move their terms.

    Raises:
        RefusedError: the annotation has another value than true and false.
    """
    value = (annotations or {}).get(_ANNOTATION)
    if value not in {None, "true", "false"}:
        raise RefusedError(f"metadata.annotations[{_ANNOTATION}]: {value!r}: write true or false")
    return value == "true" if value is not None else matches(namespace, tuple(namespaces))


def split(
    spec: Mapping[str, Any], labels: Mapping[str, str], namespace: str
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a pod spec without the moving terms, and these terms.

    A moving term has the requirements of its ``matchLabelKeys``, which the API server adds only to the spec.

    Raises:
        RefusedError: there are too many terms.
    """
    affinity = spec.get("affinity") or {}
    anti_affinity = affinity.get(_KIND) or {}
    terms = anti_affinity.get(REQUIRED) or ()
    if len(terms) > MAX_ENTRIES:
        raise RefusedError(
            f"spec.affinity.{_KIND}.{REQUIRED}: {len(terms)} entries. Write at most {MAX_ENTRIES}"
        )
    staying, moving = [], []
    for term in terms:
        complete = affinity_terms.expanded(term, labels)
        if _selects_its_own_pod(complete, labels, namespace):
            moving.append(complete)
        else:
            staying.append(term)
    if not moving:
        return dict(spec), []
    rest, kept, kept_anti_affinity = dict(spec), dict(affinity), dict(anti_affinity)
    selectors.put(kept_anti_affinity, REQUIRED, staying)
    selectors.put(kept, _KIND, kept_anti_affinity)
    selectors.put(rest, "affinity", kept)
    return rest, moving


def merge(selector: Mapping[str, Any], moved: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a clusterSelector that also has the moved terms."""
    affinity = dict(selector.get("affinity") or {})
    present = (affinity.get(_KIND) or {}).get(REQUIRED) or []
    affinity[_KIND] = {REQUIRED: [*present, *selectors.without(moved, present)]}
    return {**selector, "affinity": affinity}


def _selects_its_own_pod(term: Mapping[str, Any], labels: Mapping[str, str], namespace: str) -> bool:
    """Report whether a term over hostnames selects the pod that has it; False: also if that is not known."""
    if term.get("topologyKey") != names.LABEL_HOSTNAME or term.get("labelSelector") is None:
        return False
    named, selector = term.get("namespaces") or (), term.get("namespaceSelector")
    # An empty selector means all namespaces. The labels of the namespace are not known here.
    is_about_own = namespace in named or selector == {} or (not named and selector is None)
    try:
        return is_about_own and matching.compile_selector(term["labelSelector"])(labels)
    except ValueError:
        return False  # the API server names the field
