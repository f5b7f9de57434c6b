"""Computes the rules for one upper namespace from the policy, its preset and its overrides.

Source of the presets: Kubernetes Pod Security Standards, ``k8s.io/pod-security-admission/policy``, policy version v1.34.
Later versions relax rules for pods with ``hostUsers: false``. These relaxations are omitted, because an older
API server drops that field and would run the pod in the user namespace of the node.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clusterset.model.policy.config import (
    AnnotationRules,
    ImageRules,
    MetadataRules,
    Policy,
    PresetName,
    Rules,
)

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
    "pod_certificates": [ALL],
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
    # The standards have no rule for these. Drivers and signers that were not made for tenants may give access
    # to data of other tenants.
    "csi_drivers": [],
    "pod_certificates": [],
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
    "control_plane": False,
    "toleration_keys": [ALL],
    "node_selector_keys": [ALL],
    "scheduler_names": [],
    "priority_classes": [],
    "runtime_classes": [],
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
