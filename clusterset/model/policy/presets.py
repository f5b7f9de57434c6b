"""The rules of each preset, and the defaults of the rules that presets do not set.

Source: Kubernetes Pod Security Standards, ``k8s.io/pod-security-admission/policy``, policy version v1.34.
Later versions relax rules for pods with ``hostUsers: false``. These relaxations are omitted, because an older
API server drops that field and would run the pod in the user namespace of the node.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clusterset.model.policy.config import AnnotationRules, ImageRules, MetadataRules, PresetName

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
