"""Computes the rules for one upper namespace from the policy, its preset and its overrides.

Source of the presets: Kubernetes Pod Security Standards, ``k8s.io/pod-security-admission/policy``, policy version v1.34.
Later versions relax rules for pods with ``hostUsers: false``. These relaxations are omitted, because an older
API server drops that field and would run the pod in the user namespace of the node.

Also has what the checks of pods share, and those of images and volumes. Image names are normalized, so that one image has one
name. Source: ``github.com/distribution/reference`` (ParseNormalizedNamed), which kubelets and container runtimes use.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from clusterset.model.pod import api_access
from clusterset.model.pod.conditions import CONTAINER_KINDS
from clusterset.model.policy.config import (
    AnnotationRules,
    ImageRules,
    LabelRules,
    MetadataRules,
    Policy,
    PresetName,
    Rules,
)

FieldValue = tuple[str, str]
"""A field of the pod that violates a rule, such as ``spec.containers[app].image``, and its value. List items
are identified by name or key, because their positions may differ in the lower cluster."""

NOT_SET = "not set"
DEBUG_CONTAINERS = "spec.ephemeralContainers["
"""Beginning of the fields of debug containers."""


def containers(spec: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every container with its field, including init and ephemeral containers."""
    for kind in CONTAINER_KINDS:
        for container in spec.get(kind) or ():
            yield f"spec.{kind}[{container.get('name', '')}]", container


def contexts(spec: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the security context of the pod and of every container, with its field."""
    yield "spec.securityContext", spec.get("securityContext") or {}
    yield from container_contexts(spec)


def container_contexts(spec: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the security context of every container, with its field."""
    for where, container in containers(spec):
        yield f"{where}.securityContext", container.get("securityContext") or {}


def is_windows(spec: Mapping[str, Any]) -> bool:
    """Return whether the pod runs only on Windows, where Linux security settings must not be set."""
    return (spec.get("os") or {}).get("name") == "windows"


_WILDCARDS = frozenset("*?[]!")
_LONGEST = 4096
"""Maximum characters of a value that are compared. Valid names are shorter, but tenants choose the values."""
ALL = "*"
UNDEFINED = "Undefined"
DEFAULT_PRESET: PresetName = "baseline"

PROFILE_TYPES = (UNDEFINED, "RuntimeDefault", "Localhost", "Unconfined")
PROC_MOUNTS = ("Default", "Unmasked")
_RESTRICTED_VOLUMES = [
    *("configMap", "downwardAPI", "emptyDir", "image", "persistentVolumeClaim", "projected", "secret"),
]
_BASELINE_VOLUMES = [
    *_RESTRICTED_VOLUMES,
    *("awsElasticBlockStore", "azureDisk", "azureFile", "cephfs", "cinder", "fc", "flexVolume", "flocker"),
    *("gcePersistentDisk", "gitRepo", "glusterfs", "iscsi", "nfs", "photonPersistentDisk", "portworxVolume"),
    *("quobyte", "rbd", "scaleIO", "storageos", "vsphereVolume"),
]
VOLUME_TYPES = tuple(_BASELINE_VOLUMES)
"""Types that this release knows; unknown types are allowed only by ``"*"``."""

_PRIVILEGED: Mapping[str, Any] = {
    "host_namespaces": ["hostNetwork", "hostPID", "hostIPC"],
    "host_users": True,
    "host_ports": True,
    "host_paths": ["/"],
    "privileged": True,
    "windows_host_process": True,
    "allow_privilege_escalation": True,
    "run_as_root": True,
    "capabilities": [ALL],
    "debug_capabilities": [ALL],
    "default_capabilities": True,
    "seccomp_profiles": [ALL],
    "app_armor_profiles": [ALL],
    "se_linux_types": [ALL],
    "sysctls": [ALL],
    "proc_mounts": [ALL],
    "probe_hosts": True,
    "volume_types": [ALL],
    "csi_drivers": [ALL],
}
_BASELINE: Mapping[str, Any] = {
    **_PRIVILEGED,
    "host_namespaces": [],
    "host_ports": False,
    "host_paths": [],
    "privileged": False,
    "windows_host_process": False,
    "capabilities": [
        *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE"),
        *("SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
    ],
    # Not in the standards. `kubectl debug` adds it with its profile `general`, and a user who may add a debug container
    # controls the processes of the pod anyway.
    "debug_capabilities": ["SYS_PTRACE"],
    "seccomp_profiles": [UNDEFINED, "RuntimeDefault", "Localhost"],
    "app_armor_profiles": [UNDEFINED, "RuntimeDefault", "Localhost"],
    "se_linux_types": ["container_t", "container_init_t", "container_kvm_t", "container_engine_t"],
    "sysctls": [
        *("kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_local_reserved_ports"),
        *("net.ipv4.ip_unprivileged_port_start", "net.ipv4.ping_group_range", "net.ipv4.tcp_fin_timeout"),
        *("net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_keepalive_time"),
        *("net.ipv4.tcp_rmem", "net.ipv4.tcp_syncookies", "net.ipv4.tcp_wmem"),
    ],
    "proc_mounts": ["Default"],
    "probe_hosts": False,
    "volume_types": _BASELINE_VOLUMES,
    # The standards have no rule for these. Drivers that were not made for tenants may give access to data of other
    # tenants.
    "csi_drivers": [],
}
PRESETS: Mapping[PresetName, Mapping[str, Any]] = {
    "privileged": _PRIVILEGED,
    "baseline": _BASELINE,
    "restricted": {
        **_BASELINE,
        "allow_privilege_escalation": False,
        "run_as_root": False,
        "capabilities": ["NET_BIND_SERVICE"],
        "debug_capabilities": [],
        "default_capabilities": False,
        "seccomp_profiles": ["RuntimeDefault", "Localhost"],
        "volume_types": _RESTRICTED_VOLUMES,
    },
}
"""The value of each rule that a preset sets, by preset."""

DEFAULTS: Mapping[str, Any] = {
    "pod_certificates": [],
    "control_plane": False,
    "toleration_keys": [ALL],
    "node_selector_keys": [ALL],
    "scheduler_names": [],
    "priority_classes": [],
    "service_accounts": [],
    "runtime_classes": [],
    "labels": LabelRules(),
    "annotations": AnnotationRules(),
    "images": ImageRules(),
    "metadata": MetadataRules(),
}
"""The defaults of rules that no preset sets."""


@dataclass(frozen=True, slots=True)
class Effective:
    """The rules for one upper namespace, by field name of ``Rules``."""

    values: Mapping[str, Any]
    sources: Mapping[str, str]
    """Where in the configuration each rule is set."""

    @property
    def annotations(self) -> AnnotationRules:
        """Return the rule about annotations of pods."""
        rules: AnnotationRules = self.values["annotations"]
        return rules

    @property
    def metadata(self) -> MetadataRules:
        """Return the rule about labels and annotations of copies other than pods."""
        rules: MetadataRules = self.values["metadata"]
        return rules


class PolicySet:
    """A lower cluster's policy with resolved presets and overrides."""

    def __init__(
        self, policy: Policy | None = None, *, cluster: str = "", host_paths: Sequence[str] = ()
    ) -> None:
        """Resolve presets and overrides once; ``host_paths``: those of ``volumes.allowedHostPaths``."""
        policy = policy or Policy()
        where = f"clusters[{cluster}].policy"
        cluster_wide = _resolve(policy, where, _defaults(where))
        if host_paths:
            cluster_wide = _with_host_paths(cluster_wide, policy, host_paths, cluster)
        self._cluster_wide = cluster_wide
        self._overrides = {
            pattern: _resolve(rules, f"{where}.namespaces[{pattern}]", cluster_wide)
            for pattern, rules in sorted(policy.namespaces.items(), key=lambda item: _specificity(item[0]))
        }

    def of(self, namespace: str) -> Effective:
        """Return the rules for an upper namespace."""
        for pattern, rules in self._overrides.items():
            if fnmatch.fnmatchcase(namespace, pattern):
                return rules
        return self._cluster_wide


def matches(value: str, patterns: Sequence[str]) -> bool:
    """Return whether a value matches one of the shell patterns."""
    return any(fnmatch.fnmatchcase(value[:_LONGEST], pattern) for pattern in patterns)


def forbidding(value: str, allow: Sequence[str], deny: Sequence[str]) -> str | None:
    """Return the pattern of ``deny`` that a value matches; empty: it matches none of ``allow``; None: it is allowed."""
    for pattern in deny:
        if fnmatch.fnmatchcase(value[:_LONGEST], pattern):
            return pattern
    return None if matches(value, allow) else ""


def field_of(rule: str) -> str:
    """Return the name of a rule in the configuration, such as ``hostPorts``."""
    return _FIELDS[rule]


def _defaults(where: str) -> Effective:
    values = {**DEFAULTS, **PRESETS[DEFAULT_PRESET]}
    sources = {rule: f"{where}.{field_of(rule)}, default" for rule in DEFAULTS}
    sources |= dict.fromkeys(PRESETS[DEFAULT_PRESET], f"{where}.preset, default {DEFAULT_PRESET}")
    return Effective(values, sources)


def _resolve(rules: Rules, where: str, base: Effective) -> Effective:
    """Return base rules overridden by the preset and then by the rules that are set."""
    values, sources = dict(base.values), dict(base.sources)
    if rules.preset is not None:
        values |= PRESETS[rules.preset]
        sources |= dict.fromkeys(PRESETS[rules.preset], f"{where}.preset={rules.preset}")
    for rule in values:
        if (value := getattr(rules, rule)) is not None:
            values[rule] = value
            sources[rule] = f"{where}.{field_of(rule)}"
    return Effective(values, sources)


def _with_host_paths(base: Effective, policy: Policy, host_paths: Sequence[str], cluster: str) -> Effective:
    source = f"clusters[{cluster}].volumes.allowedHostPaths"
    explicit = policy.host_paths or []
    if explicit:
        source += f" and {base.sources['host_paths']}"
    return Effective(
        {**base.values, "host_paths": [*explicit, *host_paths]}, {**base.sources, "host_paths": source}
    )


def _specificity(pattern: str) -> tuple[bool, int, str]:
    """Return a sort key: names before patterns, then more literal characters first, then alphabetical order."""
    literal = sum(character not in _WILDCARDS for character in pattern)
    return literal < len(pattern), -literal, pattern


_FIELDS = dict(zip(Rules.__struct_fields__, Rules.__struct_encode_fields__, strict=True))
_DEFAULT_REGISTRY = "docker.io"
_ALIASES = {"index.docker.io": _DEFAULT_REGISTRY, "registry-1.docker.io": _DEFAULT_REGISTRY}


def full_name(image: str) -> str:
    """Return an image's name with registry, repository, and tag or digest.

    ``nginx`` becomes ``docker.io/library/nginx:latest``. The registry is in lower case and without the default port.
    """
    name = repository_name(image)
    rest = name.partition("/")[2]
    return name if "@" in rest or ":" in rest.rpartition("/")[2] else f"{name}:latest"


def repository_name(image: str) -> str:
    """Return an image's name with registry and repository, and with a tag or digest only if the image has one."""
    registry, separator, rest = image.strip().partition("/")
    is_registry = separator and (
        "." in registry or ":" in registry or registry == "localhost" or registry != registry.lower()
    )
    if not is_registry:
        registry, rest = _DEFAULT_REGISTRY, image.strip()
    registry = registry.lower().removesuffix(":443")
    registry = _ALIASES.get(registry, registry)
    if registry == _DEFAULT_REGISTRY and "/" not in rest:
        rest = f"library/{rest}"
    return f"{registry}/{rest}"


def forbidden_images(pod: Mapping[str, Any], rules: ImageRules) -> Iterator[tuple[str, str, str]]:
    """Yield the field and name of each image that is not allowed, also of image volumes, and the result of ``forbidding``."""
    for field, image in _images(pod["spec"]):
        if (pattern := forbidding(full_name(image), rules.allow, rules.deny)) is not None:
            yield field, image, pattern


def _images(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for where, container in containers(spec):
        yield f"{where}.image", container.get("image") or ""
    for volume in spec.get("volumes") or ():
        if image := (volume.get("image") or {}).get("reference"):
            yield f"spec.volumes[{volume['name']}].image.reference", image


Pod = Mapping[str, Any]
RULED_ELSEWHERE = {"hostPath": "hostPaths", "csi": "csiDrivers", "ephemeral": "persistentVolumeClaim"}
"""Types that ``volumeTypes`` cannot name, and what to write instead."""
_PROJECTIONS = (
    "clusterTrustBundle",
    "configMap",
    "downwardAPI",
    "podCertificate",
    "secret",
    "serviceAccountToken",
)


def volume_types(pod: Pod, allowed: Sequence[str]) -> Iterator[FieldValue]:
    """Yield volumes of forbidden types, and sources of projected volumes that this release does not know."""
    for where, volume in _volumes(pod):
        for kind in _kinds(volume):
            is_token = kind == "projected" and api_access.is_injected(volume, pod)
            # A generic ephemeral volume counts as a PVC, because the virtual node creates one for it. So the
            # virtual node and the fit agent, which sees the volume itself, report the same field.
            ruled = RULED_ELSEWHERE.get(kind, kind)
            if kind not in {"hostPath", "csi"} and ruled not in allowed and not is_token:
                yield f"{where}.{ruled}", ruled
        for source in _sources(volume):
            for kind in source:
                if kind not in _PROJECTIONS:
                    yield f"{where}.projected.sources[{kind}]", kind


def host_paths(pod: Pod, allowed: Sequence[str]) -> Iterator[FieldValue]:
    """Yield directories of the node that are not in an allowed directory."""
    for where, volume in _volumes(pod):
        if (source := volume.get("hostPath")) is None:
            continue
        path = PurePosixPath(source.get("path") or "/")
        if ".." in path.parts or not any(path.is_relative_to(directory) for directory in allowed):
            yield f"{where}.hostPath.path", str(path)


def csi_drivers(pod: Pod, allowed: Sequence[str]) -> Iterator[FieldValue]:
    """Yield drivers of inline volumes that are not allowed."""
    for where, volume in _volumes(pod):
        if (source := volume.get("csi")) is not None and not matches(source.get("driver") or "", allowed):
            yield f"{where}.csi.driver", source.get("driver") or NOT_SET


def problems(where: str, types: Sequence[str], directories: Sequence[str]) -> Iterator[str]:
    """Yield errors of ``volumeTypes`` and ``hostPaths``, each as ``field: what``."""
    for kind in types:
        if kind in RULED_ELSEWHERE:
            yield f"{where}.volumeTypes: {kind}: write it as {RULED_ELSEWHERE[kind]}"
        elif kind not in {*VOLUME_TYPES, "*"}:
            yield f"{where}.volumeTypes: unknown {kind!r}, known are {', '.join(VOLUME_TYPES)}"
    for directory in directories:
        if not directory.startswith("/") or ".." in PurePosixPath(directory).parts:
            yield f"{where}.hostPaths: {directory!r} is not an absolute path without '..'"


def _volumes(pod: Pod) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for volume in pod["spec"].get("volumes") or ():
        yield f"spec.volumes[{volume['name']}]", volume


def _kinds(volume: Mapping[str, Any]) -> list[str]:
    """Return the source types of a volume; without any it is an emptyDir, the API server's default."""
    return [kind for kind, source in volume.items() if kind != "name" and source is not None] or ["emptyDir"]


def _sources(volume: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return (volume.get("projected") or {}).get("sources") or ()
