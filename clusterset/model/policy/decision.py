"""Finds a pod's violations of a policy: each has the field, the allowed values, and where the rule is set."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clusterset.model import names
from clusterset.model.policy import pod_security, scheduling
from clusterset.model.policy.config import AnnotationRules, ImageRules
from clusterset.model.policy.copied_keys import is_upper_only
from clusterset.model.policy.rules import (
    ALL,
    Effective,
    FieldValue,
    csi_drivers,
    field_of,
    forbidden_images,
    host_paths,
    matches,
    volume_types,
)

_OURS = frozenset(
    {
        names.ANNOTATION_CLUSTER_SELECTOR,
        names.ANNOTATION_TRIPPED_LABELS,
        names.ANNOTATION_UNSCHEDULABLE_NODE,
        names.ANNOTATION_DESCHEDULE_COUNT,
        names.ANNOTATION_GLOBAL,
    }
)
"""Annotations that only this project reads. Other rules check what they request."""


def annotation_field(key: str) -> str:
    """Return the field of an annotation, as violations name it."""
    return f"metadata.annotations[{key}]"


def check(pod: Mapping[str, Any], allowed: AnnotationRules) -> Iterator[FieldValue]:
    """Yield the annotations that are not allowed; those that stay in the upper cluster are skipped."""
    for key, value in (pod["metadata"].get("annotations") or {}).items():
        if key in _OURS or names.is_reserved(key) or is_upper_only("annotations", key, allowed):
            continue
        if not matches(key, allowed.allow) or matches(key, allowed.deny):
            yield annotation_field(key), value or "empty"


_SHOWN = 3
"""Maximum violations in a message, because an event is limited to 1 KiB."""
_LONGEST = 100
"""Maximum characters of a field or a value in a message, because tenants choose them."""

_FORBIDDING: Mapping[str, tuple[Callable[[Mapping[str, Any]], Iterator[FieldValue]], str]] = {
    "host_users": (pod_security.host_users, "false"),
    "host_ports": (pod_security.host_ports, "no ports of the node"),
    "privileged": (pod_security.privileged, "false"),
    "windows_host_process": (pod_security.windows_host_process, "false"),
    "allow_privilege_escalation": (pod_security.privilege_escalation, "false"),
    "run_as_root": (pod_security.run_as_root, "runAsNonRoot true and no runAsUser 0"),
    "default_capabilities": (pod_security.default_capabilities, "drop ALL"),
    "probe_hosts": (pod_security.probe_hosts, "not set"),
    "control_plane": (scheduling.control_plane, "no control-plane nodes"),
}
"""Boolean rules: the function that yields violations if the rule is false, and the text for what is
allowed."""
_LISTING: Mapping[str, Callable[[Mapping[str, Any], Sequence[str]], Iterator[FieldValue]]] = {
    "host_namespaces": pod_security.host_namespaces,
    "host_paths": host_paths,
    "capabilities": pod_security.capabilities,
    "debug_capabilities": pod_security.debug_capabilities,
    "seccomp_profiles": pod_security.seccomp_profiles,
    "app_armor_profiles": pod_security.app_armor_profiles,
    "se_linux_types": pod_security.se_linux_types,
    "sysctls": pod_security.sysctls,
    "proc_mounts": pod_security.proc_mounts,
    "volume_types": volume_types,
    "csi_drivers": csi_drivers,
    "toleration_keys": scheduling.toleration_keys,
    "node_selector_keys": scheduling.node_selector_keys,
    "scheduler_names": scheduling.scheduler_names,
    "priority_classes": scheduling.priority_classes,
    "runtime_classes": scheduling.runtime_classes,
}
"""Rules that list the allowed values."""
RULES = (*_FORBIDDING, *_LISTING, "annotations", "images")


@dataclass(frozen=True, slots=True)
class Violation:
    """One field of a pod that violates one rule."""

    rule: str
    """The rule's name in the configuration, such as ``hostPorts``."""
    field: str
    found: str
    """The field's value, or "not set"."""
    allowed: str
    source: str
    """Where in the configuration the rule is set."""

    def __str__(self) -> str:
        """Return one line for an event."""
        return (
            f"{self.rule}: {_cut(self.field)} is {_cut(self.found)}, allowed: {_cut(self.allowed)} "
            f"(set by {self.source})"
        )


def violations(pod: Mapping[str, Any], rules: Effective) -> list[Violation]:
    """Return all violations of a lower pod, as it is sent or predicted by ``lower_spec``; empty: it is allowed."""
    return [
        Violation(field_of(rule), field, value, _allowed(rule, rules.values), rules.sources[rule])
        for rule, field, value in _fields(pod, rules.values)
    ]


def _fields(pod: Mapping[str, Any], values: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield rule, field and value of each violation. The caller makes messages only for these."""
    for rule, (forbidden, _) in _FORBIDDING.items():
        if not values[rule]:
            for field, value in forbidden(pod):
                yield rule, field, value
    for rule, outside in _LISTING.items():
        if ALL not in (listed := _listed(rule, values)):
            for field, value in outside(pod, listed):
                yield rule, field, value
    for field, value in check(pod, values["annotations"]):
        yield "annotations", field, value
    for field, value in forbidden_images(pod, values["images"]):
        yield "images", field, value


def summary(found: Sequence[Violation]) -> str:
    """Return the first violations as one text, and the number of further ones."""
    more = [f"and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
    return "; ".join([*map(str, found[:_SHOWN]), *more])


def _listed(rule: str, values: Mapping[str, Any]) -> Sequence[str]:
    """Return what a rule of ``_LISTING`` allows; debug containers may also add what all containers may."""
    listed: Sequence[str] = values[rule]
    return [*listed, *values["capabilities"]] if rule == "debug_capabilities" else listed


def _allowed(rule: str, values: Mapping[str, Any]) -> str:
    if rule in _FORBIDDING:
        return _FORBIDDING[rule][1]
    if rule in _LISTING:
        return ", ".join(_listed(rule, values)) or "none"
    allowed: AnnotationRules | ImageRules = values[rule]
    text = ", ".join(allowed.allow) or "none"
    return f"{text}; not {', '.join(allowed.deny)}" if allowed.deny else text


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
