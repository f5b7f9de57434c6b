"""Random pods with and without the rights that the Pod Security Standards restrict. Mostly valid for an API server."""

from __future__ import annotations

import copy
from collections.abc import Callable
from random import Random
from typing import Any

Body = dict[str, Any]
Change = Callable[[Random, Body], None]
"""Changes a pod's spec in place."""
SAFE = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""A security context that every preset allows."""
_CAPABILITIES = ("NET_BIND_SERVICE", "CHOWN", "SYS_CHROOT", "NET_RAW", "SYS_TIME", "ALL", "AUDIT_WRITE")
_SYSCTLS = (
    "kernel.shm_rmid_forced", "net.ipv4.tcp_syncookies", "net.ipv4.tcp_rmem", "kernel.msgmax", "net.core.somaxconn",
    "net.ipv4.ip_local_reserved_ports", "net/ipv4/tcp_syncookies",
)  # fmt: skip
_SE_LINUX: tuple[Body, ...] = (
    {"type": "container_t"}, {"type": "container_engine_t"}, {"type": "spc_t"}, {"level": "s0"}, {"user": "u"}, {"role": "r"},
)  # fmt: skip
_PROFILES = ("RuntimeDefault", "Localhost", "Unconfined")
_ANNOTATED = ("runtime/default", "localhost/p", "unconfined")
_APP_ARMOR = "container.apparmor.security.beta.kubernetes.io/containers"
_VOLUMES: tuple[Body, ...] = (
    {"emptyDir": {}},
    {"configMap": {"name": "c"}},
    {"secret": {"secretName": "s"}},
    {"downwardAPI": {"items": []}},
    {"projected": {"sources": [{"configMap": {"name": "c"}}]}},
    {"persistentVolumeClaim": {"claimName": "c"}},
    {"ephemeral": {"volumeClaimTemplate": {"spec": {
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
    }}}},
    {"csi": {"driver": "inline.example.com"}},
    {"hostPath": {"path": "/var/log"}},
    {"nfs": {"server": "s", "path": "/p"}},
    {"iscsi": {"targetPortal": "10.0.0.1", "iqn": "iqn.2001-04.com.example:s", "lun": 0}},
    {"cephfs": {"monitors": ["10.0.0.1"]}},
    {"flexVolume": {"driver": "example.com/d"}},
    {"fc": {"targetWWNs": ["50060e801049cfd1"], "lun": 0}},
)  # fmt: skip


def generate(random: Random) -> Body:
    """Return a pod: one that every level allows or a bare one, with up to four changes."""
    context = copy.deepcopy(SAFE) if random.random() < 0.7 else {}
    kinds = ["containers", *(["initContainers"] if random.random() < 0.4 else [])]
    spec: Body = {
        kind: [{"name": kind.lower(), "image": "busybox", "securityContext": copy.deepcopy(context)}]
        for kind in kinds
    }
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "annotations": {}}, "spec": spec}
    if random.random() < 0.3:
        spec["securityContext"] = {}
    if random.random() < 0.1:
        spec["os"] = {"name": "windows"}
        for kind in kinds:
            spec[kind][0]["securityContext"] = {"runAsNonRoot": True} if context else {}
    for change in random.sample(_CHANGES, k=random.randint(0, 4)):
        change(random, body)
    return body


def _container(random: Random, body: Body) -> Body:
    spec = body["spec"]
    kind = random.choice([kind for kind in ("containers", "initContainers") if kind in spec])
    found: Body = spec[kind][0]
    return found


def _context(random: Random, body: Body) -> Body:
    """Return a security context of the pod or of a container."""
    return _pod_context(random, body) if random.random() < 0.4 else _of_container(random, body)


def _of_container(random: Random, body: Body) -> Body:
    found: Body = _container(random, body)["securityContext"]
    return found


def _pod_context(_random: Random, body: Body) -> Body:
    found: Body = body["spec"].setdefault("securityContext", {})
    return found


def _sets(where: Callable[[Random, Body], Body], field: str, value: Callable[[Random], Any]) -> Change:
    """Return a change of one field."""

    def change(random: Random, body: Body) -> None:
        drawn = value(random)
        where(random, body)[field] = drawn

    return change


def _host_namespace(random: Random, body: Body) -> None:
    body["spec"][random.choice(("hostNetwork", "hostPID", "hostIPC"))] = random.random() < 0.7


def _privileged(random: Random, body: Body) -> None:
    context = _of_container(random, body)
    context["privileged"] = random.random() < 0.7
    if context["privileged"]:
        context.pop("allowPrivilegeEscalation", None)  # the API server refuses the two together


def _escalation(random: Random, body: Body) -> None:
    context = _of_container(random, body)
    if random.random() < 0.5:
        context["allowPrivilegeEscalation"] = True
    else:
        context.pop("allowPrivilegeEscalation", None)


def _probe(random: Random, body: Body) -> None:
    container = body["spec"]["containers"][0]
    action = random.choice(("httpGet", "tcpSocket"))
    handler = {action: {"port": 80, "host": random.choice(("", "10.0.0.1"))}}
    if random.random() < 0.3 and action == "httpGet":
        container["lifecycle"] = {random.choice(("postStart", "preStop")): handler}
    else:
        container[random.choice(("livenessProbe", "readinessProbe", "startupProbe"))] = handler


def _profile(kind: str, path: str) -> Body:
    return {"type": kind, **({"localhostProfile": path} if kind == "Localhost" else {})}


def _seccomp(random: Random, body: Body) -> None:
    context = _context(random, body)
    kind = random.choice((*_PROFILES, ""))
    if not kind:
        context.pop("seccompProfile", None)
        return
    context["seccompProfile"] = _profile(kind, "p.json")


def _proc_mount(random: Random, body: Body) -> None:
    kind = random.choice(("Default", "Unmasked"))
    _of_container(random, body)["procMount"] = kind
    if kind == "Unmasked":
        body["spec"]["hostUsers"] = False


def _non_root(random: Random, body: Body) -> None:
    context = _context(random, body)
    if random.random() < 0.3:
        context.pop("runAsNonRoot", None)
    else:
        context["runAsNonRoot"] = random.random() < 0.5


def _windows(random: Random, body: Body) -> None:
    is_host = random.random() < 0.7
    _pod_context(random, body)["windowsOptions"] = {"hostProcess": is_host}
    if is_host:
        body["spec"]["hostNetwork"] = True


def _volumes(random: Random) -> list[Body]:
    chosen = random.sample(_VOLUMES, k=random.randint(1, 2))
    return [{"name": f"v{number}", **source} for number, source in enumerate(chosen)]


def _capabilities(random: Random) -> Body:
    added = random.sample(_CAPABILITIES, k=random.randint(0, 2))
    return {"add": added, "drop": random.choice(([], ["ALL"], ["CHOWN"], ["CHOWN", "ALL"]))}


_CHANGES: tuple[Change, ...] = (
    _host_namespace,
    _sets(lambda _, body: body["spec"], "hostUsers", lambda random: random.random() < 0.5),
    _privileged,
    _escalation,
    _sets(_of_container, "capabilities", _capabilities),
    _sets(_container, "ports", lambda random: [{"containerPort": 80, "hostPort": random.choice((0, 80))}]),
    _probe,
    _seccomp,
    _sets(_context, "appArmorProfile", lambda random: _profile(random.choice(_PROFILES), "p")),
    _sets(
        lambda _, body: body["metadata"]["annotations"], _APP_ARMOR, lambda random: random.choice(_ANNOTATED)
    ),
    _sets(_context, "seLinuxOptions", lambda random: random.choice(_SE_LINUX)),
    _sets(_pod_context, "sysctls", lambda random: [{"name": random.choice(_SYSCTLS), "value": "1"}]),
    _proc_mount,
    _sets(_context, "runAsUser", lambda random: random.choice((0, 1000))),
    _non_root,
    _windows,
    _sets(lambda _, body: body["spec"], "volumes", _volumes),
)
