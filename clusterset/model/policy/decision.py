"""Finds a pod's violations of a policy: each has the field, the allowed values, and where the rule is set.

The controls of the Kubernetes Pod Security Standards are a function each. Every function yields the fields of a pod that
violate one rule; a missing required field is reported as "not set". Functions without ``allowed`` are called only if the
rule is false.

Source of the controls: ``k8s.io/pod-security-admission/policy``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clusterset.model import names
from clusterset.model.policy import scheduling
from clusterset.model.policy.config import DEFAULT_ENTRY, AnnotationRules, LabelRules
from clusterset.model.policy.copied_keys import TOPOLOGY, is_upper_only
from clusterset.model.policy.rules import (
    ALL,
    DEBUG_CONTAINERS,
    NOT_SET,
    UNDEFINED,
    Effective,
    FieldValue,
    container_contexts,
    containers,
    contexts,
    csi_drivers,
    field_of,
    forbidden_images,
    forbidding,
    host_paths,
    is_windows,
    matches,
    volume_types,
)

Pod = Mapping[str, Any]
_APP_ARMOR_ANNOTATION = "container.apparmor.security.beta.kubernetes.io/"
_SECCOMP_ANNOTATIONS = (
    "seccomp.security.alpha.kubernetes.io/pod",
    "container.seccomp.security.alpha.kubernetes.io/",
)
"""Annotations that API servers before 1.27 read."""
_HOST_NAMESPACES = ("hostNetwork", "hostPID", "hostIPC")
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_HOOKS = ("postStart", "preStop")
_OURS = frozenset(
    {
        names.ANNOTATION_CLUSTER_SELECTOR,
        names.ANNOTATION_TRIPPED_LABELS,
        names.ANNOTATION_UNSCHEDULABLE_NODE,
        names.ANNOTATION_DESCHEDULE_COUNT,
        names.ANNOTATION_GLOBAL,
        names.LABEL_VIRTUAL_POD,
        names.LABEL_CREATED_BY_DESCHEDULER,
    }
)
"""Labels and annotations that only this project reads. Other rules check what they request."""


def host_namespaces(pod: Pod, allowed: Sequence[str]) -> Iterator[FieldValue]:
    """Yield namespaces of the node that the pod shares and that are not allowed."""
    for field in _HOST_NAMESPACES:
        if pod["spec"].get(field) and field not in allowed:
            yield f"spec.{field}", "true"


def host_users(pod: Pod) -> Iterator[FieldValue]:
    """Yield ``hostUsers`` of a pod that runs in the user namespace of the node."""
    if pod["spec"].get("hostUsers") is not False:
        yield "spec.hostUsers", _shown(pod["spec"].get("hostUsers"))


def host_ports(pod: Pod) -> Iterator[FieldValue]:
    """Yield ports of the node that containers use."""
    for where, container in containers(pod["spec"]):
        for port in container.get("ports") or ():
            if port.get("hostPort"):
                yield f"{where}.ports[{port.get('containerPort')}].hostPort", str(port["hostPort"])


def privileged(pod: Pod) -> Iterator[FieldValue]:
    """Yield privileged containers."""
    for where, context in container_contexts(pod["spec"]):
        if context.get("privileged"):
            yield f"{where}.privileged", "true"


def windows_host_process(pod: Pod) -> Iterator[FieldValue]:
    """Yield HostProcess containers."""
    for where, context in contexts(pod["spec"]):
        if (context.get("windowsOptions") or {}).get("hostProcess"):
            yield f"{where}.windowsOptions.hostProcess", "true"


def privilege_escalation(pod: Pod) -> Iterator[FieldValue]:
    """Yield containers that may escalate privileges."""
    if is_windows(pod["spec"]):
        return
    for where, context in container_contexts(pod["spec"]):
        if context.get("allowPrivilegeEscalation") is not False:
            yield f"{where}.allowPrivilegeEscalation", _shown(context.get("allowPrivilegeEscalation"))


def run_as_root(pod: Pod) -> Iterator[FieldValue]:
    """Yield settings that let containers run as root."""
    of_pod = (pod["spec"].get("securityContext") or {}).get("runAsNonRoot")
    for where, context in contexts(pod["spec"]):
        non_root = context.get("runAsNonRoot")
        is_missing = non_root is None and not of_pod and where != "spec.securityContext"
        if non_root is False or is_missing:
            yield f"{where}.runAsNonRoot", _shown(non_root)
        if context.get("runAsUser") == 0:
            yield f"{where}.runAsUser", "0"


def capabilities(pod: Pod, allowed: Sequence[str]) -> Iterator[FieldValue]:
    """Yield capabilities that containers add and that are not allowed.

    Debug containers are left to ``debug_capabilities``, except in pods that share a namespace of the node.
    """
    for where, context in container_contexts(pod["spec"]):
        if _shares_node(pod) or not where.startswith(DEBUG_CONTAINERS):
            yield from _forbidden_capabilities(where, context, allowed)


def debug_capabilities(pod: Pod, allowed: Sequence[str]) -> Iterator[FieldValue]:
    """Yield capabilities that debug containers add and that are not allowed, if the pod shares no namespace of the node."""
    for where, context in container_contexts(pod["spec"]):
        if where.startswith(DEBUG_CONTAINERS) and not _shares_node(pod):
            yield from _forbidden_capabilities(where, context, allowed)


def default_capabilities(pod: Pod) -> Iterator[FieldValue]:
    """Yield containers that do not drop all capabilities."""
    if is_windows(pod["spec"]):
        return
    for where, context in container_contexts(pod["spec"]):
        dropped = (context.get("capabilities") or {}).get("drop") or ()
        if "ALL" not in dropped:
            yield f"{where}.capabilities.drop", ", ".join(dropped) or NOT_SET


def seccomp_profiles(pod: Pod, allowed: Sequence[str]) -> Iterator[FieldValue]:
    """Yield seccomp profiles that are not allowed, and missing ones if a profile is required."""
    yield from _profiles(pod["spec"], "seccompProfile", allowed)
    yield from _annotations(pod, _SECCOMP_ANNOTATIONS, allowed)


def app_armor_profiles(pod: Pod, allowed: Sequence[str]) -> Iterator[FieldValue]:
    """Yield AppArmor profiles that are not allowed, and missing ones if a profile is required."""
    yield from _profiles(pod["spec"], "appArmorProfile", allowed)
    yield from _annotations(pod, (_APP_ARMOR_ANNOTATION,), allowed)


def se_linux_types(pod: Pod, allowed: Sequence[str]) -> Iterator[FieldValue]:
    """Yield SELinux types that are not allowed, and all users and roles."""
    for where, context in contexts(pod["spec"]):
        options = context.get("seLinuxOptions") or {}
        for field in ("type", "user", "role"):
            value = options.get(field)
            if value and (field != "type" or value not in allowed):
                yield f"{where}.seLinuxOptions.{field}", value


def sysctls(pod: Pod, allowed: Sequence[str]) -> Iterator[FieldValue]:
    """Yield sysctls that the pod sets and that are not allowed."""
    for sysctl in (pod["spec"].get("securityContext") or {}).get("sysctls") or ():
        if not matches(sysctl["name"], allowed):
            yield f"spec.securityContext.sysctls[{sysctl['name']}]", sysctl.get("value") or "empty"


def proc_mounts(pod: Pod, allowed: Sequence[str]) -> Iterator[FieldValue]:
    """Yield types of /proc mounts that are not allowed."""
    for where, context in container_contexts(pod["spec"]):
        if (value := context.get("procMount")) is not None and value not in allowed:
            yield f"{where}.procMount", value


def probe_hosts(pod: Pod) -> Iterator[FieldValue]:
    """Yield hosts that probes and lifecycle hooks connect to."""
    for where, container in containers(pod["spec"]):
        hooks = container.get("lifecycle") or {}
        for prefix, holder, fields in (("", container, _PROBES), ("lifecycle.", hooks, _HOOKS)):
            for field in fields:
                handler = holder.get(field) or {}
                for action in ("httpGet", "tcpSocket") if handler else ():
                    if host := (handler.get(action) or {}).get("host"):
                        yield f"{where}.{prefix}{field}.{action}.host", host


def _forbidden_capabilities(
    where: str, context: Mapping[str, Any], allowed: Sequence[str]
) -> Iterator[FieldValue]:
    added = (context.get("capabilities") or {}).get("add") or ()
    if forbidden := [capability for capability in added if capability not in allowed]:
        yield f"{where}.capabilities.add", ", ".join(forbidden)


def _shares_node(pod: Pod) -> bool:
    return any(pod["spec"].get(field) for field in _HOST_NAMESPACES)


def _profiles(spec: Mapping[str, Any], field: str, allowed: Sequence[str]) -> Iterator[FieldValue]:
    """Yield profiles that are not allowed; a container without a profile has that of the pod."""
    of_pod = (spec.get("securityContext") or {}).get(field)
    may_be_undefined = UNDEFINED in allowed or is_windows(spec) or of_pod is not None
    for where, context in contexts(spec):
        profile = context.get(field)
        if profile is not None:
            if (profile.get("type") or "") not in allowed:
                yield f"{where}.{field}.type", profile.get("type") or NOT_SET
        elif not may_be_undefined and where != "spec.securityContext":
            yield f"{where}.{field}", NOT_SET


def _annotations(pod: Pod, prefixes: tuple[str, ...], allowed: Sequence[str]) -> Iterator[FieldValue]:
    """Yield forbidden profiles in annotations, which Kubernetes used before it had fields for them."""
    for key, value in (pod["metadata"].get("annotations") or {}).items():
        if key.startswith(prefixes) and _profile_type(value) not in allowed:
            yield f"metadata.annotations[{key}]", value


def _profile_type(value: str) -> str:
    if value == "":
        return UNDEFINED
    if value in {"runtime/default", "docker/default"}:
        return "RuntimeDefault"
    return "Localhost" if value.startswith("localhost/") else "Unconfined"


def _shown(value: object) -> str:
    return NOT_SET if value is None else str(value).lower()


def metadata_field(field: str, key: str) -> str:
    """Return a label or annotation as violations name it; ``field``: ``labels`` or ``annotations``."""
    return f"metadata.{field}[{key}]"


def forbidden_labels(pod: Pod, rules: LabelRules) -> Iterator[tuple[str, str, str]]:
    """Yield the field and value of each label that is not allowed, and the result of ``forbidding``.

    Labels of this project and ``TOPOLOGY`` are skipped.
    """
    denied = rules.denied
    for key, value in (pod["metadata"].get("labels") or {}).items():
        if key in _OURS or names.is_reserved(key) or key in TOPOLOGY:
            continue
        if (pattern := forbidding(key, rules.allow, denied)) is not None:
            yield metadata_field("labels", key), value or "empty", pattern


def forbidden_annotations(pod: Pod, rules: AnnotationRules) -> Iterator[tuple[str, str, str]]:
    """Yield the field and value of each annotation that is not allowed, and the result of ``forbidding``.

    Annotations of this project and those that stay in the upper cluster are skipped.
    """
    denied = rules.denied
    for key, value in (pod["metadata"].get("annotations") or {}).items():
        if key in _OURS or names.is_reserved(key) or is_upper_only("annotations", key, rules):
            continue
        if (pattern := forbidding(key, rules.allow, denied)) is not None:
            yield metadata_field("annotations", key), value or "empty", pattern


_SHOWN = 3
"""Maximum violations in a message, because an event is limited to 1 KiB."""
_LONGEST = 100
"""Maximum characters of a field or a value in a message, because tenants choose them."""

_FORBIDDING: Mapping[str, tuple[Callable[[Mapping[str, Any]], Iterator[FieldValue]], str]] = {
    "host_users": (host_users, "false"),
    "host_ports": (host_ports, "no ports of the node"),
    "privileged": (privileged, "false"),
    "windows_host_process": (windows_host_process, "false"),
    "allow_privilege_escalation": (privilege_escalation, "false"),
    "run_as_root": (run_as_root, "runAsNonRoot true and no runAsUser 0"),
    "default_capabilities": (default_capabilities, "drop ALL"),
    "probe_hosts": (probe_hosts, "not set"),
    "control_plane": (scheduling.control_plane, "no control-plane nodes"),
}
"""Boolean rules: the function that yields violations if the rule is false, and the text for what is
allowed."""
_LISTING: Mapping[str, Callable[[Mapping[str, Any], Sequence[str]], Iterator[FieldValue]]] = {
    "host_namespaces": host_namespaces,
    "host_paths": host_paths,
    "capabilities": capabilities,
    "debug_capabilities": debug_capabilities,
    "seccomp_profiles": seccomp_profiles,
    "app_armor_profiles": app_armor_profiles,
    "se_linux_types": se_linux_types,
    "sysctls": sysctls,
    "proc_mounts": proc_mounts,
    "volume_types": volume_types,
    "csi_drivers": csi_drivers,
    "toleration_keys": scheduling.toleration_keys,
    "node_selector_keys": scheduling.node_selector_keys,
    "scheduler_names": scheduling.scheduler_names,
    "priority_classes": scheduling.priority_classes,
    "runtime_classes": scheduling.runtime_classes,
}
"""Rules that list the allowed values."""
_BY_PATTERN: Mapping[str, Callable[[Mapping[str, Any], Any], Iterator[tuple[str, str, str]]]] = {
    "labels": forbidden_labels,
    "annotations": forbidden_annotations,
    "images": forbidden_images,
}
"""Rules with the lists ``allow`` and ``deny``."""
RULES = (*_FORBIDDING, *_LISTING, *_BY_PATTERN)


@dataclass(frozen=True, slots=True)
class Violation:
    """One field of a pod that violates one rule."""

    rule: str
    """The rule's name in the configuration, such as ``hostPorts``."""
    field: str
    value: str
    """The field's value, or "not set"."""
    allowed: str
    source: str
    """Where in the configuration the rule is set."""
    pattern: str = ""
    """The pattern of the rule's list ``deny`` that matches; empty: the value is not one of ``allowed``."""

    def __str__(self) -> str:
        """Return one line for an event."""
        limit = (
            f"denied by pattern {_cut(self.pattern)}" if self.pattern else f"allowed: {_cut(self.allowed)}"
        )
        return f"{self.rule}: {_cut(self.field)} is {_cut(self.value)}, {limit} (set by {self.source})"


def violations(pod: Mapping[str, Any], rules: Effective) -> list[Violation]:
    """Return all violations of a lower pod, as it is sent or predicted by ``lower_spec``; empty: it is allowed."""
    return [
        Violation(
            field_of(rule), field, value, _allowed(rule, rules.values), _source(rule, pattern, rules), pattern
        )
        for rule, field, value, pattern in _fields(pod, rules.values)
    ]


def _fields(pod: Mapping[str, Any], values: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """Yield rule, field, value and matching pattern of each violation. The caller makes messages only for these."""
    for rule, (forbidden, _) in _FORBIDDING.items():
        if not values[rule]:
            for field, value in forbidden(pod):
                yield rule, field, value, ""
    for rule, outside in _LISTING.items():
        if ALL not in (listed := _listed(rule, values)):
            for field, value in outside(pod, listed):
                yield rule, field, value, ""
    for rule, matching in _BY_PATTERN.items():
        for field, value, pattern in matching(pod, values[rule]):
            yield rule, field, value, pattern


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
    return ", ".join(values[rule].allow if rule in _BY_PATTERN else _listed(rule, values)) or "none"


def _source(rule: str, pattern: str, rules: Effective) -> str:
    """Return the setting to change: the rule's place with ``deny`` if a pattern of it matches, otherwise with ``allow``."""
    setting, comma, default = rules.sources[rule].partition(", ")
    if rule not in _BY_PATTERN:
        return f"{setting}{comma}{default}"
    if not pattern:
        return f"{setting}.allow{comma}{default}"
    is_own = default or pattern in rules.values[rule].deny
    return f"{setting}.deny{comma}{default}" if is_own else f"{setting}.deny, entry {DEFAULT_ENTRY}"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
