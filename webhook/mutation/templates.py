"""Warns about fields of a workload's pod template that do not apply in a lower cluster. Does no IO."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from clusterset.model import names
from clusterset.model.policy.scheduling import SYSTEM_CLASSES
from webhook.mutation import validation

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
        validation.read_annotation((template.get("metadata") or {}).get("annotations"), f"{path}.metadata")
    except validation.RefusedError as error:
        return str(error)
    return ""


def warnings(kind: str, namespace: str, template: Mapping[str, Any], path: str) -> list[str]:
    """Return warnings for ``kubectl apply``, each with its field."""
    spec = template.get("spec") or {}
    found = [f"{path}.spec.{text}" for text in _warnings(kind, namespace, spec)]
    if not invalid(template, path):
        found += validation.unused((template.get("metadata") or {}).get("annotations"), f"{path}.metadata")
    return found


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
    for term in affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or ():
        yield term.get("topologyKey", "")
    for weighted in affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or ():
        yield (weighted.get("podAffinityTerm") or {}).get("topologyKey", "")
