"""Debug containers as each profile of ``kubectl debug`` adds them (kubectl v1.37, ``pkg/cmd/debug/profiles.go``)."""

from __future__ import annotations

from typing import Any

import pytest

from clusterset.model.policy.config import Rules
from tests.unit.clusterset.model.policy.pods import broken, judge, pod

WHERE = "spec.ephemeralContainers[debugger].securityContext"
ADDED = f"{WHERE}.capabilities.add"
PROFILES: dict[str, dict[str, Any] | None] = {
    "legacy": None,
    "general": {"capabilities": {"add": ["SYS_PTRACE"]}},
    "baseline": None,
    "restricted": {
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
        "allowPrivilegeEscalation": False,
        "seccompProfile": {"type": "RuntimeDefault"},
    },
    "netadmin": {"capabilities": {"add": ["NET_ADMIN", "NET_RAW"]}},
    "sysadmin": {"privileged": True},
}
_UNSET = {"allowPrivilegeEscalation", "runAsRoot", "defaultCapabilities", "seccompProfiles"}
"""Rules of ``restricted`` that a container without a security context violates."""
REFUSED: dict[str, dict[str, set[str]]] = {
    "privileged": {},
    "baseline": {"netadmin": {"debugCapabilities"}, "sysadmin": {"privileged"}},
    "restricted": {
        "legacy": _UNSET,
        "baseline": _UNSET,
        "general": {*_UNSET, "debugCapabilities"},
        "netadmin": {*_UNSET, "debugCapabilities"},
        "sysadmin": {*_UNSET, "privileged"},
    },
}
"""The violated rules by preset and profile; all other pairs are allowed."""


def debugged(profile: str, **spec: Any) -> dict[str, Any]:
    """Return a pod that every preset allows, with the debug container of a profile."""
    context = PROFILES[profile]
    debugger = {"name": "debugger", "image": "busybox", **({"securityContext": context} if context else {})}
    return pod(**{**spec, "ephemeralContainers": [debugger]})


@pytest.mark.parametrize("preset", REFUSED)
@pytest.mark.parametrize("profile", PROFILES)
def test_each_profile_of_kubectl_debug_violates_the_expected_rules(preset, profile):
    """The default preset allows kubectl's default profile; ``restricted`` allows only its namesake."""
    expected = REFUSED[preset].get(profile, set())
    assert {violation.rule for violation in judge(debugged(profile), preset=preset)} == expected


def test_the_message_names_the_rule_and_what_debug_containers_may_add():
    """The additional capabilities come first, because long texts are cut."""
    (general,) = [one for one in judge(debugged("general"), preset="restricted") if one.field == ADDED]
    assert str(general) == (
        f"debugCapabilities: {ADDED} is SYS_PTRACE, allowed: NET_BIND_SERVICE "
        "(set by clusters[edge].policy.preset=restricted)"
    )
    (netadmin,) = judge(debugged("netadmin"))
    assert str(netadmin).startswith(
        f"debugCapabilities: {ADDED} is NET_ADMIN, NET_RAW, allowed: SYS_PTRACE, AUDIT_WRITE, "
    )


@pytest.mark.parametrize("kind", ["containers", "initContainers"])
def test_other_containers_do_not_get_the_capabilities_of_debug_containers(kind):
    """A user who may create pods gets no more than before."""
    context = {"capabilities": {"add": ["SYS_PTRACE"]}}
    body = pod()
    body["spec"][kind] = [{"name": "app", "image": "web:1", "securityContext": context}]
    field = f"spec.{kind}[app].securityContext.capabilities.add"
    assert broken(body, debug_capabilities=["*"]) == [("capabilities", field)]


@pytest.mark.parametrize("namespace", ["hostNetwork", "hostPID", "hostIPC"])
def test_debug_containers_of_pods_in_namespaces_of_the_node_get_no_more_than_others(namespace):
    """With hostPID, SYS_PTRACE controls the processes of the node. The rule of all containers is named."""
    body = debugged("general", **{namespace: True})
    rules = {"host_namespaces": [namespace], "debug_capabilities": ["*"]}
    assert broken(body, **rules) == [("capabilities", ADDED)]
    assert broken(body, **rules, capabilities=["SYS_PTRACE"]) == []


def test_rules_add_to_each_other_and_can_be_set_for_a_namespace():
    """What all containers may add, debug containers may add, too."""
    netadmin = debugged("netadmin")
    assert judge(netadmin, capabilities=["NET_RAW"], debug_capabilities=["NET_ADMIN"]) == []
    assert judge(netadmin, capabilities=["*"], debug_capabilities=[]) == []
    assert judge(netadmin, debug_capabilities=["*"]) == []
    assert broken(debugged("general"), debug_capabilities=[]) == [("debugCapabilities", ADDED)]
    (found,) = judge(debugged("general"), namespace="shop", namespaces={"shop": Rules(debug_capabilities=[])})
    assert found.source == "clusters[edge].policy.namespaces[shop].debugCapabilities"
