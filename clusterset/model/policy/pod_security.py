"""The controls of the Kubernetes Pod Security Standards, one function each.

Every function yields the fields of a pod that violate one rule; a missing required field is reported as "not
set". Functions without ``allowed`` are called only if the rule is false.

Source: ``k8s.io/pod-security-admission/policy``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from clusterset.model.policy.rules import (
    DEBUG_CONTAINERS,
    NOT_SET,
    UNDEFINED,
    FieldValue,
    container_contexts,
    containers,
    contexts,
    is_windows,
    matches,
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
