"""Random pods with and without the rights that the Pod Security Standards restrict. Mostly valid for an API server."""

from __future__ import annotations

import copy
from collections.abc import Callable
from random import Random
from typing import Any

Body = dict[str, Any]
Change = Callable[[Random, Body], None]
"""Changes a pod's spec in place."""
_SAFE = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
_CAPABILITIES = ("NET_BIND_SERVICE", "CHOWN", "SYS_CHROOT", "NET_RAW", "SYS_TIME", "ALL", "AUDIT_WRITE")
_SYSCTLS = (
    *(
        "kernel.shm_rmid_forced",
        "net.ipv4.tcp_syncookies",
        "net.ipv4.tcp_rmem",
        "kernel.msgmax",
        "net.core.somaxconn",
    ),
    *("net.ipv4.ip_local_reserved_ports", "net/ipv4/tcp_syncookies"),
)
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
    context = copy.deepcopy(_SAFE) if random.random() < 0.7 else {}
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
    if random.random() < 0.4:
        found: Body = body["spec"].setdefault("securityContext", {})
        return found
    return _of_container(random, body)


def _of_container(random: Random, body: Body) -> Body:
    found: Body = _container(random, body)["securityContext"]
    return found


def _host_namespace(random: Random, body: Body) -> None:
    body["spec"][random.choice(("hostNetwork", "hostPID", "hostIPC"))] = random.random() < 0.7


def _host_users(random: Random, body: Body) -> None:
    body["spec"]["hostUsers"] = random.random() < 0.5


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


def _capabilities(random: Random, body: Body) -> None:
    added = random.sample(_CAPABILITIES, k=random.randint(0, 2))
    dropped = random.choice(([], ["ALL"], ["CHOWN"], ["CHOWN", "ALL"]))
    _of_container(random, body)["capabilities"] = {"add": added, "drop": dropped}


def _ports(random: Random, body: Body) -> None:
    _container(random, body)["ports"] = [{"containerPort": 80, "hostPort": random.choice((0, 80))}]


def _probe(random: Random, body: Body) -> None:
    container = body["spec"]["containers"][0]
    action = random.choice(("httpGet", "tcpSocket"))
    handler = {action: {"port": 80, "host": random.choice(("", "10.0.0.1"))}}
    if random.random() < 0.3 and action == "httpGet":
        container["lifecycle"] = {random.choice(("postStart", "preStop")): handler}
    else:
        container[random.choice(("livenessProbe", "readinessProbe", "startupProbe"))] = handler


def _seccomp(random: Random, body: Body) -> None:
    context = _context(random, body)
    kind = random.choice(("RuntimeDefault", "Localhost", "Unconfined", ""))
    if not kind:
        context.pop("seccompProfile", None)
        return
    path = {"localhostProfile": "p.json"} if kind == "Localhost" else {}
    context["seccompProfile"] = {"type": kind, **path}


def _app_armor(random: Random, body: Body) -> None:
    kind = random.choice(("RuntimeDefault", "Localhost", "Unconfined"))
    path = {"localhostProfile": "p"} if kind == "Localhost" else {}
    _context(random, body)["appArmorProfile"] = {"type": kind, **path}


def _app_armor_annotation(random: Random, body: Body) -> None:
    key = "container.apparmor.security.beta.kubernetes.io/containers"
    body["metadata"]["annotations"][key] = random.choice(("runtime/default", "localhost/p", "unconfined"))


def _se_linux(random: Random, body: Body) -> None:
    options = random.choice(
        ({"type": "container_t"}, {"type": "container_engine_t"}, {"type": "spc_t"}, {"level": "s0"}, {"user": "u"}, {"role": "r"})
    )  # fmt: skip
    _context(random, body)["seLinuxOptions"] = options


def _sysctl(random: Random, body: Body) -> None:
    value = {"name": random.choice(_SYSCTLS), "value": "1"}
    body["spec"].setdefault("securityContext", {})["sysctls"] = [value]


def _proc_mount(random: Random, body: Body) -> None:
    kind = random.choice(("Default", "Unmasked"))
    _of_container(random, body)["procMount"] = kind
    if kind == "Unmasked":
        body["spec"]["hostUsers"] = False


def _user(random: Random, body: Body) -> None:
    _context(random, body)["runAsUser"] = random.choice((0, 1000))


def _non_root(random: Random, body: Body) -> None:
    context = _context(random, body)
    if random.random() < 0.3:
        context.pop("runAsNonRoot", None)
    else:
        context["runAsNonRoot"] = random.random() < 0.5


def _windows(random: Random, body: Body) -> None:
    is_host = random.random() < 0.7
    body["spec"].setdefault("securityContext", {})["windowsOptions"] = {"hostProcess": is_host}
    if is_host:
        body["spec"]["hostNetwork"] = True


def _volume(random: Random, body: Body) -> None:
    chosen = random.sample(_VOLUMES, k=random.randint(1, 2))
    body["spec"]["volumes"] = [{"name": f"v{number}", **source} for number, source in enumerate(chosen)]


_CHANGES: tuple[Change, ...] = (
    *(
        _host_namespace,
        _host_users,
        _privileged,
        _escalation,
        _capabilities,
        _ports,
        _probe,
        _seccomp,
        _app_armor,
    ),
    *(_app_armor_annotation, _se_linux, _sysctl, _proc_mount, _user, _non_root, _windows, _volume),
)
