"""Validates scheduling fields by the API server's rules before they move into the annotation. Does no IO.

The API server validates a pod's spec, but not the content of annotations. Without this validation, only the
lower cluster would refuse an invalid field, after the pod was bound. For workloads, there are also warnings about fields of the
pod template that do not apply in a lower cluster.

Source: core/v1 validation (``ValidateNodeSelector``, ``ValidatePreferredSchedulingTerms``, ``ValidateTolerations``),
https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sized
from itertools import islice
from typing import Any

from clusterset.model import cluster_selector, names
from clusterset.model.pod import own_annotations
from clusterset.model.policy.scheduling import SYSTEM_CLASSES
from controller_runtime.apimachinery import matching
from controller_runtime.apimachinery.decoding import decode
from controller_runtime.apimachinery.matching import PREFERRED, REQUIRED
from webhook.mutation import selectors

MAX_ENTRIES = 250
"""Maximum number of entries of a list or node selector, and of expressions of an affinity. All pods of the cluster wait
for the webhook, so no pod may take it long."""
_MAX_VALUES = 10 * MAX_ENTRIES
_MAX_WARNINGS = 10
"""Maximum number of unknown members that are named."""
_LONGEST = 100
"""Characters of a member's name in a warning."""
_MEMBERS = ("nodeSelector", "affinity", "tolerations", cluster_selector.UPPER_TERMS)
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", re.ASCII)
_PREFIX = re.compile(
    r"(?=.{1,253}$)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*", re.ASCII
)
_VALUES = {
    "In": "at least one value",
    "NotIn": "at least one value",
    "Exists": "none, because Exists takes none",
    "DoesNotExist": "none, because DoesNotExist takes none",
    "Gt": "one number",
    "Lt": "one number",
}
_TOLERATING = ("", "Exists", "Equal", "Lt", "Gt")
_EFFECTS = ("", "NoSchedule", "PreferNoSchedule", "NoExecute")


class RefusedError(ValueError):
    """The pod is invalid; the text says why, for its author."""


def check_spec(spec: Mapping[str, Any]) -> None:
    """Validate the fields of a pod spec that may move.

    Raises:
        RefusedError: a field is invalid; the message names it.
    """
    _check_selector(spec, "spec")
    _list(spec.get("tolerations"), "spec.tolerations")


def read_annotation(annotations: Mapping[str, str] | None, path: str = "metadata") -> dict[str, Any]:
    """Return the ``clusterSelector`` of a user or of an earlier mutation; empty without one.

    Args:
        annotations: annotations of the pod or the template.
        path: path of the field that has the annotations, for the message.

    Raises:
        RefusedError: the annotation is not valid JSON, or every lower cluster would refuse it; the message
            names the field.
    """
    text = (annotations or {}).get(names.ANNOTATION_CLUSTER_SELECTOR)
    if not text:
        return {}
    where = f"{path}.annotations[{names.ANNOTATION_CLUSTER_SELECTOR}]"
    try:
        found = cluster_selector.parse(text)
    except ValueError as error:
        raise RefusedError(f"{where}: {error}") from None
    _check_selector(found, where)
    for number, toleration in enumerate(_list(found.get("tolerations"), f"{where}.tolerations")):
        _check_toleration(toleration, f"{where}.tolerations[{number}]")
    _check_upper_terms(found, where)
    _check_pod_terms(found, f"{where}.")
    return found


def check_merged(selector: Mapping[str, Any]) -> None:
    """Check that a merged ``clusterSelector`` is not too large to be validated again.

    Raises:
        RefusedError: the fields of the pod and of its annotation are too many together; the message names the field.
    """
    where = f"the fields that move to annotation {names.ANNOTATION_CLUSTER_SELECTOR}, with its own"
    affinity = (selector.get("affinity") or {}).get("nodeAffinity") or {}
    for name, entries in (
        ("nodeSelector", selector.get("nodeSelector")),
        ("tolerations", selector.get("tolerations")),
        (f"affinity.nodeAffinity.{PREFERRED}", affinity.get(PREFERRED)),
    ):
        _check_count(entries or (), f"{where}: {name}")
    _check_size(affinity, f"{where}: affinity.nodeAffinity")
    _check_pod_terms(selector, f"{where}: ")


def unused(annotations: Mapping[str, str] | None, path: str = "metadata") -> Iterator[str]:
    """Yield a warning, with its field, for each member of a valid annotation that is not applied."""
    text = (annotations or {}).get(names.ANNOTATION_CLUSTER_SELECTOR)
    where = f"{path}.annotations[{names.ANNOTATION_CLUSTER_SELECTOR}]"
    found = decode(text) if text else {}
    for member in islice((one for one in found if one not in _MEMBERS), _MAX_WARNINGS):
        yield f"{where}.{member[:_LONGEST]}: it is not applied; known are {', '.join(_MEMBERS)}"
    affinity = found.get("affinity") or {}
    others = [one for one in affinity if one not in {"nodeAffinity", "podAntiAffinity"}]
    if PREFERRED in (affinity.get("podAntiAffinity") or {}):
        others.append(f"podAntiAffinity.{PREFERRED}")
    for member in islice(others, _MAX_WARNINGS):
        yield f"{where}.affinity.{member[:_LONGEST]}: it is not applied; write it in the pod's spec"


def _check_selector(holder: Mapping[str, Any], path: str) -> None:
    node_selector = holder.get("nodeSelector") or {}
    _check_count(node_selector, f"{path}.nodeSelector")
    for key, value in node_selector.items():
        where = f"{path}.nodeSelector[{key}]"
        _check_key(key, where)
        if value and not _NAME.fullmatch(value):
            raise RefusedError(f"{where}: {value!r} is not a label value")
    node_affinity = (holder.get("affinity") or {}).get("nodeAffinity") or {}
    _check_required(node_affinity.get(REQUIRED), f"{path}.affinity.nodeAffinity.{REQUIRED}")
    where = f"{path}.affinity.nodeAffinity.{PREFERRED}"
    for number, entry in enumerate(_list(node_affinity.get(PREFERRED), where)):
        at = f"{where}[{number}]"
        weight = _object(entry, at).get("weight")
        if not isinstance(weight, int) or isinstance(weight, bool) or not 1 <= weight <= 100:
            raise RefusedError(f"{at}.weight: write a number from 1 to 100")
        _check_term(entry.get("preference"), f"{at}.preference")
    _check_size(node_affinity, f"{path}.affinity.nodeAffinity")


def _check_size(node_affinity: Mapping[str, Any], path: str) -> None:
    terms = [*((node_affinity.get(REQUIRED) or {}).get("nodeSelectorTerms") or ())]
    terms += [entry["preference"] for entry in node_affinity.get(PREFERRED) or ()]
    kinds = ("matchExpressions", "matchFields")
    found = [expression for term in terms for kind in kinds for expression in term.get(kind) or ()]
    values = sum(len(expression.get("values") or ()) for expression in found)
    for what, count, most in (("expressions", len(found), MAX_ENTRIES), ("values", values, _MAX_VALUES)):
        if count > most:
            raise RefusedError(f"{path}: {count} {what}. Write at most {most}")


def _check_required(required: Any, path: str) -> None:
    if required is None:
        return
    where = f"{path}.nodeSelectorTerms"
    terms = _list(_object(required, path).get("nodeSelectorTerms"), where)
    if not terms:
        raise RefusedError(f"{where}: write at least one term")
    for number, term in enumerate(terms):
        _check_term(term, f"{where}[{number}]")


def _check_term(term: Any, path: str) -> None:
    for kind in ("matchExpressions", "matchFields"):
        for number, entry in enumerate(_list(_object(term, path).get(kind), f"{path}.{kind}")):
            where = f"{path}.{kind}[{number}]"
            key, operator = _object(entry, where).get("key"), entry.get("operator")
            if kind == "matchFields":
                if key != "metadata.name":
                    raise RefusedError(f"{where}.key: {key!r}: write metadata.name, the only supported field")
            else:
                _check_key(key, f"{where}.key")
            known = ("In", "NotIn") if kind == "matchFields" else tuple(_VALUES)
            if operator not in known:
                raise RefusedError(f"{where}.operator: {operator!r}: write one of {', '.join(known)}")
            _check_values(entry.get("values"), operator, f"{where}.values", is_single=kind == "matchFields")


def _check_values(values: Any, operator: str, path: str, *, is_single: bool) -> None:
    found = _list(values, path, most=_MAX_VALUES)
    if not all(isinstance(value, str) for value in found):
        raise RefusedError(f"{path}: write a list of strings")
    if is_single or operator in {"Gt", "Lt"}:
        is_right = len(found) == 1
    else:
        is_right = bool(found) == (operator in {"In", "NotIn"})
    if not is_right:
        raise RefusedError(f"{path}: write {'one name' if is_single else _VALUES[operator]}")


def _check_toleration(toleration: Mapping[str, Any], path: str) -> None:
    key, operator = toleration.get("key") or "", toleration.get("operator") or ""
    if operator not in _TOLERATING:
        raise RefusedError(f"{path}.operator: {operator!r}: write Exists or Equal")
    if key:
        _check_key(key, f"{path}.key")
    elif operator != "Exists":
        raise RefusedError(f"{path}.key: write a key, or operator Exists for all keys")
    if operator == "Exists" and toleration.get("value"):
        raise RefusedError(f"{path}.value: Exists takes none")
    effect, seconds = toleration.get("effect") or "", toleration.get("tolerationSeconds")
    if effect not in _EFFECTS:
        raise RefusedError(f"{path}.effect: {effect!r}: write one of {', '.join(_EFFECTS[1:])}")
    if seconds is not None and (effect != "NoExecute" or not isinstance(seconds, int)):
        raise RefusedError(f"{path}.tolerationSeconds: a number of seconds, with effect NoExecute only")


def _check_upper_terms(found: Mapping[str, Any], path: str) -> None:
    """Check that there is one valid upper term for each required term."""
    upper = found.get(cluster_selector.UPPER_TERMS)
    if not upper:
        return
    required = ((found.get("affinity") or {}).get("nodeAffinity") or {}).get(REQUIRED) or {}
    terms = required.get("nodeSelectorTerms") or ()
    where = f"{path}.{cluster_selector.UPPER_TERMS}"
    if len(upper) != len(terms):
        raise RefusedError(
            f"{where}: {len(upper)} terms; write one for each of the {len(terms)} required ones"
        )
    for number, term in enumerate(upper):
        _check_term(term, f"{where}[{number}]")
    _check_count(range(selectors.size(upper)), f"{where}: expressions")


def _check_pod_terms(selector: Mapping[str, Any], prefix: str) -> None:
    """Check required pod anti-affinity, which the API server checks in the spec only."""
    path = f"{prefix}affinity.podAntiAffinity.{REQUIRED}"
    terms = cluster_selector.anti_affinity(selector)
    _check_count(terms, path)
    sizes = []
    for number, term in enumerate(terms):
        where = f"{path}[{number}]"
        if term.get("topologyKey") != names.LABEL_HOSTNAME:
            raise RefusedError(
                f"{where}.topologyKey: write {names.LABEL_HOSTNAME}, the only one of lower nodes"
            )
        labels = term.get("labelSelector") or {}
        for key in labels.get("matchLabels") or ():
            _check_key(key, f"{where}.labelSelector.matchLabels")
        expressions = labels.get("matchExpressions") or ()
        for position, entry in enumerate(expressions):
            at = f"{where}.labelSelector.matchExpressions[{position}]"
            _check_key(entry.get("key"), f"{at}.key")
            if (operator := entry.get("operator")) not in matching.LABEL_OPERATORS:
                raise RefusedError(f"{at}.operator: {operator!r}: write In, NotIn, Exists or DoesNotExist")
            _check_values(entry.get("values"), operator, f"{at}.values", is_single=False)
        sizes += [len(entry.get("values") or ()) for entry in expressions]
    _check_count(sizes, f"{path}: expressions")
    _check_count(range(sum(sizes)), f"{path}: values", _MAX_VALUES)


def _check_key(key: Any, path: str) -> None:
    prefix, slash, name = key.rpartition("/") if isinstance(key, str) else ("", "", "")
    if not _NAME.fullmatch(name) or (slash and not _PREFIX.fullmatch(prefix)):
        raise RefusedError(f"{path}: {key!r} is not a label key such as example.com/gpu")


def _object(value: Any, path: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise RefusedError(f"{path}: write an object")
    return value


def _list(value: Any, path: str, *, most: int = MAX_ENTRIES) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise RefusedError(f"{path}: write a list")
    _check_count(value, path, most)
    return value


def _check_count(entries: Sized, path: str, most: int = MAX_ENTRIES) -> None:
    if len(entries) > most:
        raise RefusedError(f"{path}: {len(entries)} entries. Write at most {most}")


_IF_ALLOWED = "refused unless the policy of the lower cluster allows it"


def pod_template(kind: str, workload: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return path and content of a workload's pod template; empty content if it has none."""
    spec = workload.get("spec") or {}
    if kind == "CronJob":
        job = (spec.get("jobTemplate") or {}).get("spec") or {}
        return "spec.jobTemplate.spec.template", job.get("template") or {}
    return "spec.template", spec.get("template") or {}


def is_virtual(template: Mapping[str, Any]) -> bool:
    """Report whether a template's pods have the label for virtual nodes."""
    labels = (template.get("metadata") or {}).get("labels") or {}
    return bool(labels.get(names.LABEL_VIRTUAL_POD) == "true")


def invalid(template: Mapping[str, Any], path: str) -> str:
    """Return why the template's clusterSelector annotation is invalid, so its pods would be denied; empty: valid."""
    try:
        read_annotation((template.get("metadata") or {}).get("annotations"), f"{path}.metadata")
    except RefusedError as error:
        return str(error)
    return ""


def warnings(kind: str, namespace: str, template: Mapping[str, Any], path: str) -> list[str]:
    """Return warnings for ``kubectl apply``, each with its field."""
    spec = template.get("spec") or {}
    found = [f"{path}.spec.{text}" for text in _warnings(kind, namespace, spec)]
    metadata = template.get("metadata") or {}
    if not invalid(template, path):
        found += unused(metadata.get("annotations"), f"{path}.metadata")
    return found + own_annotations.problems(
        metadata.get("labels"), metadata.get("annotations"), f"{path}.metadata"
    )


def _warnings(kind: str, namespace: str, spec: Mapping[str, Any]) -> Iterator[str]:
    if namespace == "kube-system":
        yield "containers: pods of kube-system are never mirrored to lower clusters"
    if kind == "DaemonSet":
        yield "containers: a DaemonSet runs one pod per virtual node, not one per lower node"
    yield from _about_scheduling(spec)
    yield from _about_topology(spec)
    if spec.get("resourceClaims"):
        yield "resourceClaims: refused unless resourceClaims.enabled is set for the lower cluster"
    if spec.get("hostNetwork"):
        yield f"hostNetwork: {_IF_ALLOWED}; the network is a lower node's"
    for volume in spec.get("volumes") or ():
        if "hostPath" in volume:
            yield f"volumes[{volume.get('name')}]: hostPath: {_IF_ALLOWED}; the path is on a lower node"


def _about_scheduling(spec: Mapping[str, Any]) -> Iterator[str]:
    if spec.get("nodeName"):
        yield "nodeName: names a node of the upper cluster; the lower scheduler chooses the lower node"
    if spec.get("schedulerName", "default-scheduler") != "default-scheduler":
        yield (
            "schedulerName: selects the upper scheduler only; the annotation "
            f"{names.ANNOTATION_SCHEDULER_NAME} selects the lower one"
        )
    priority_class = spec.get("priorityClassName")
    if priority_class in SYSTEM_CLASSES:
        yield f"priorityClassName: {_IF_ALLOWED}"
    elif priority_class:
        yield "priorityClassName: applies in the upper cluster only; the lower pod has the default priority"
    if spec.get("runtimeClassName"):
        yield f"runtimeClassName: {spec['runtimeClassName']!r} must exist in every lower cluster"


def _about_topology(spec: Mapping[str, Any]) -> Iterator[str]:
    only_upper = "applies between virtual nodes only"
    for kind in ("podAffinity", "podAntiAffinity"):
        for key in _topology_keys((spec.get("affinity") or {}).get(kind) or {}):
            if key != names.LABEL_HOSTNAME:
                yield f"affinity.{kind}: topology {key!r} {only_upper}"
    for constraint in spec.get("topologySpreadConstraints") or ():
        if (key := constraint.get("topologyKey")) != names.LABEL_HOSTNAME:
            yield f"topologySpreadConstraints: topology {key!r} {only_upper}"


def _topology_keys(affinity: Mapping[str, Any]) -> Iterator[str]:
    for term in affinity.get(REQUIRED) or ():
        yield term.get("topologyKey", "")
    for weighted in affinity.get(PREFERRED) or ():
        yield (weighted.get("podAffinityTerm") or {}).get("topologyKey", "")
