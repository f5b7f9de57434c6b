"""Every control of the Kubernetes Pod Security Standards, with values that each level allows and forbids.

The rows follow https://kubernetes.io/docs/concepts/security/pod-security-standards/. The test of a real API server is
``tests/clusters/tenants/test_pod_security.py``.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.clusterset.model.policy.pods import broken, container, judge, pod

LEVELS = ("restricted", "baseline", "privileged")
HOST = {"httpGet": {"port": 80, "host": "10.0.0.1"}}
WINDOWS = {"os": {"name": "windows"}}
APP_ARMOR = "container.apparmor.security.beta.kubernetes.io/app"


def _with(kind: str = "containers", **fields: Any) -> dict[str, Any]:
    """Return a pod with further fields in a container of a kind."""
    extra = {**container(), **fields}
    if kind == "containers":
        return pod(containers=[extra])
    body = pod()
    body["spec"][kind] = [{**extra, "name": "extra"}]
    return body


def _context(kind: str = "containers", **context: Any) -> dict[str, Any]:
    return _with(kind, securityContext=container(**context)["securityContext"])


def _volume(**source: Any) -> dict[str, Any]:
    return pod(volumes=[{"name": "data", **source}])


CONTAINER_KINDS = ("containers", "initContainers", "ephemeralContainers")
PRIVILEGED_ONLY: list[tuple[str, dict[str, Any]]] = [
    ("windowsHostProcess", pod(of_pod={"windowsOptions": {"hostProcess": True}})),
    *(("windowsHostProcess", _context(kind, windowsOptions={"hostProcess": True})) for kind in CONTAINER_KINDS),
    ("hostNamespaces", pod(hostNetwork=True)),
    ("hostNamespaces", pod(hostPID=True)),
    ("hostNamespaces", pod(hostIPC=True)),
    *(("privileged", _context(kind, privileged=True)) for kind in CONTAINER_KINDS),
    *(
        (rule, _context(kind, capabilities={"add": [added], "drop": ["ALL"]}))
        for rule, kind in zip(("capabilities", "capabilities", "debugCapabilities"), CONTAINER_KINDS, strict=True)
        for added in ("NET_RAW", "SYS_ADMIN", "ALL", "CAP_CHOWN")
    ),
    *(
        ("capabilities", _context(kind, capabilities={"add": ["SYS_PTRACE"], "drop": ["ALL"]}))
        for kind in CONTAINER_KINDS[:2]
    ),
    ("hostPaths", _volume(hostPath={"path": "/"})),
    *(
        ("hostPorts", _with(kind, ports=[{"containerPort": 80, "hostPort": 80}]))
        for kind in ("containers", "initContainers")
    ),
    *(
        ("probeHosts", _with(kind, **{probe: HOST}))
        for kind in ("containers", "initContainers")
        for probe in ("livenessProbe", "readinessProbe", "startupProbe")
    ),
    ("probeHosts", _with(livenessProbe={"tcpSocket": {"port": 80, "host": "h"}})),
    ("probeHosts", _with(lifecycle={"postStart": HOST})),
    ("probeHosts", _with(lifecycle={"preStop": {"tcpSocket": {"port": 80, "host": "h"}}})),
    ("appArmorProfiles", pod(of_pod={"appArmorProfile": {"type": "Unconfined"}})),
    *(("appArmorProfiles", _context(kind, appArmorProfile={"type": "Unconfined"})) for kind in CONTAINER_KINDS),
    ("appArmorProfiles", pod(annotations={APP_ARMOR: "unconfined"})),
    *(
        ("seLinuxTypes", pod(of_pod={"seLinuxOptions": options}))
        for options in ({"type": "spc_t"}, {"user": "system_u"}, {"role": "system_r"})
    ),
    *(("seLinuxTypes", _context(kind, seLinuxOptions={"type": "spc_t"})) for kind in CONTAINER_KINDS),
    *(("procMounts", _context(kind, procMount="Unmasked")) for kind in CONTAINER_KINDS),
    ("seccompProfiles", pod(of_pod={"seccompProfile": {"type": "Unconfined"}})),
    *(("seccompProfiles", _context(kind, seccompProfile={"type": "Unconfined"})) for kind in CONTAINER_KINDS),
    ("seccompProfiles", pod(annotations={"seccomp.security.alpha.kubernetes.io/pod": "unconfined"})),
    ("sysctls", pod(of_pod={"sysctls": [{"name": "kernel.msgmax", "value": "1"}]})),
    ("sysctls", pod(of_pod={"sysctls": [{"name": "net/ipv4/tcp_syncookies", "value": "1"}]})),
    # Not in the standards: effects beyond the node.
    ("csiDrivers", _volume(csi={"driver": "secrets-store.csi.k8s.io"})),
    ("volumeTypes", _volume(futureType={})),
    ("volumeTypes", _volume(projected={"sources": [{"futureSource": {}}]})),
]  # fmt: skip
BASELINE: list[tuple[str, dict[str, Any]]] = [
    *(("volumeTypes", _volume(**{kind: {}})) for kind in ("nfs", "iscsi", "rbd", "cephfs", "gitRepo", "flexVolume", "fc")),
    *(
        ("allowPrivilegeEscalation", _with(kind, securityContext=container(*without, **context)["securityContext"]))
        for kind in CONTAINER_KINDS
        for without, context in ((("allowPrivilegeEscalation",), {}), ((), {"allowPrivilegeEscalation": True}))
    ),
    ("runAsRoot", pod(containers=[container("runAsNonRoot")])),
    ("runAsRoot", pod(of_pod={"runAsNonRoot": False})),
    ("runAsRoot", pod(of_pod={"runAsNonRoot": True}, containers=[container(runAsNonRoot=False)])),
    ("runAsRoot", pod(of_pod={"runAsUser": 0})),
    ("runAsRoot", _context("ephemeralContainers", runAsUser=0)),
    ("seccompProfiles", pod(containers=[container("seccompProfile")])),
    ("seccompProfiles", _with("initContainers", securityContext=container("seccompProfile")["securityContext"])),
    ("defaultCapabilities", _context(capabilities={})),
    ("defaultCapabilities", _context(capabilities={"drop": ["CHOWN"]})),
    ("defaultCapabilities", pod(containers=[container("capabilities")])),
    ("capabilities", _context(capabilities={"add": ["CHOWN"], "drop": ["ALL"]})),
]  # fmt: skip
RESTRICTED: list[dict[str, Any]] = [
    pod(),
    pod(hostNetwork=False, hostPID=False, hostIPC=False),
    _context(privileged=False, procMount="Default", windowsOptions={"hostProcess": False}),
    _context(capabilities={"add": ["NET_BIND_SERVICE"], "drop": ["ALL"]}),
    _with(ports=[{"containerPort": 80}, {"containerPort": 81, "hostPort": 0}]),
    _with(livenessProbe={"httpGet": {"port": 80}}, lifecycle={"preStop": {"httpGet": {"port": 80, "host": ""}}}),
    pod(of_pod={"appArmorProfile": {"type": "RuntimeDefault"}}),
    _context(appArmorProfile={"type": "Localhost", "localhostProfile": "p"}),
    *(pod(annotations={APP_ARMOR: value}) for value in ("", "runtime/default", "localhost/p")),
    *(
        pod(of_pod={"seLinuxOptions": {"type": kind, "level": "s0"}})
        for kind in ("", "container_t", "container_init_t", "container_kvm_t", "container_engine_t")
    ),
    pod(of_pod={"seccompProfile": {"type": "Localhost", "localhostProfile": "p"}}, containers=[container("seccompProfile")]),
    pod(of_pod={"sysctls": [{"name": "net.ipv4.tcp_syncookies", "value": "1"}, {"name": "net.ipv4.tcp_rmem", "value": "1"}]}),
    pod(of_pod={"runAsNonRoot": True, "runAsUser": 1000}, containers=[container("runAsNonRoot")]),
    *(
        _volume(**{kind: {}})
        for kind in (
            *("configMap", "downwardAPI", "emptyDir", "ephemeral", "image", "persistentVolumeClaim", "projected"), "secret",
        )
    ),
    _volume(),
    # Windows pods cannot have these fields.
    pod(**WINDOWS, containers=[container("allowPrivilegeEscalation", "capabilities", "seccompProfile")]),
]  # fmt: skip


def test_the_unchanged_pod_is_allowed():
    """Otherwise the rows would prove nothing."""
    assert judge(pod(), preset="restricted") == []


@pytest.mark.parametrize(("rule", "body"), PRIVILEGED_ONLY)
def test_only_privileged_allows_it(rule, body):
    """The rule is named, and no other is violated."""
    assert {one.rule for one in judge(body, preset="restricted")} == {rule}
    assert {one.rule for one in judge(body)} == {rule}, "baseline is the default"
    assert judge(body, preset="privileged") == []


@pytest.mark.parametrize(("rule", "body"), BASELINE)
def test_restricted_forbids_it_and_baseline_does_not(rule, body):
    """The rule is named, and no other is violated."""
    assert {one.rule for one in judge(body, preset="restricted")} == {rule}
    assert judge(body, preset="baseline") == []


@pytest.mark.parametrize("body", RESTRICTED)
@pytest.mark.parametrize("level", LEVELS)
def test_every_level_allows_it(level, body):
    assert judge(body, preset=level) == []


@pytest.mark.parametrize("host_users", [None, True])
def test_a_user_namespace_can_be_required(host_users):
    """No preset requires it; ``hostUsers: false`` in the policy does."""
    body = pod() if host_users is None else pod(hostUsers=host_users)
    assert broken(body, preset="restricted", host_users=False) == [("hostUsers", "spec.hostUsers")]
    assert judge(pod(hostUsers=False), preset="restricted", host_users=False) == []


def test_a_user_namespace_relaxes_nothing():
    """An older lower API server drops ``hostUsers``, and the pod would be root on the node."""
    body = pod(hostUsers=False, containers=[container(runAsNonRoot=False, runAsUser=0)])
    assert {one.rule for one in judge(body, preset="restricted")} == {"runAsRoot"}


def test_fields_are_named_by_the_names_of_containers_and_volumes():
    """The lower pod may have them at other positions."""
    body = pod(
        containers=[container(), {**container(privileged=True), "name": "side"}],
        volumes=[{"name": "logs", "hostPath": {"path": "/var/log"}}],
    )
    assert broken(body) == [
        ("privileged", "spec.containers[side].securityContext.privileged"),
        ("hostPaths", "spec.volumes[logs].hostPath.path"),
    ]
