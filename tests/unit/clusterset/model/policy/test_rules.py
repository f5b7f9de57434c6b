"""Source of the rules for a namespace: presets, rules, overrides."""

from __future__ import annotations

import msgspec
import pytest

from clusterset import validation
from clusterset.model.policy.config import Policy, Rules
from clusterset.model.policy.decision import RULES, summary
from clusterset.model.policy.rules import DEFAULTS, PRESETS, PolicySet
from tests.unit.clusterset.model.policy.pods import container, judge, pod

PRIVILEGED = pod(containers=[container(privileged=True)])


def _policy(yaml: dict) -> Policy:
    return msgspec.convert(yaml, Policy)


def test_every_rule_has_a_value_and_a_check():
    """Otherwise a user could configure a rule without effect."""
    # These rules violate nothing: keys and ServiceAccounts are left out of copies, and signers of the lower cluster are selected.
    rules = set(Rules.__struct_fields__) - {"preset"}
    assert {*RULES, "metadata", "pod_certificates", "service_accounts"} == rules
    assert {**DEFAULTS, **PRESETS["baseline"]}.keys() == rules
    assert {frozenset(values) for values in PRESETS.values()} == {frozenset(PRESETS["baseline"])}


def test_a_violation_names_rule_field_value_allowed_values_and_setting():
    """Without configuration: the default preset."""
    assert summary(judge(PRIVILEGED)) == (
        "privileged: spec.containers[app].securityContext.privileged is true, allowed: false "
        "(set by clusters[edge].policy.preset, default baseline)"
    )


@pytest.mark.parametrize(
    ("policy", "source"),
    [
        ({"preset": "restricted"}, "clusters[edge].policy.preset=restricted"),
        ({"preset": "privileged", "privileged": False}, "clusters[edge].policy.privileged"),
        (
            {"preset": "privileged", "namespaces": {"sh*": {"preset": "baseline"}}},
            "clusters[edge].policy.namespaces[sh*].preset=baseline",
        ),
        (
            {"preset": "privileged", "namespaces": {"shop": {"privileged": False}}},
            "clusters[edge].policy.namespaces[shop].privileged",
        ),
        ({"privileged": False, "namespaces": {"shop": {"hostPorts": True}}}, "clusters[edge].policy.privileged"),
    ],
)  # fmt: skip
def test_the_source_is_the_decisive_setting(policy, source):
    """An administrator finds it in the configuration."""
    rules = PolicySet(_policy(policy), cluster="edge").of("shop")
    assert (rules.values["privileged"], rules.sources["privileged"]) == (False, source)


@pytest.mark.parametrize(
    ("namespaces", "used"),
    [
        (["*", "shop-*", "shop-1"], "shop-1"),
        (["*", "s*", "shop-*", "sh*"], "shop-*"),
        (["shop-?", "shop-*"], "shop-*"),
        (["*-1", "shop"], "*-1"),
        (["shop-[12]", "sho*"], "shop-[12]"),
        (["bank"], ""),
    ],
)
def test_the_most_specific_pattern_is_used(namespaces, used):
    """A name before a pattern, more literal characters before fewer, then alphabetical order."""
    policy = {"namespaces": {pattern: {"images": {"allow": [pattern]}} for pattern in namespaces}}
    for turned in (policy, {"namespaces": dict(reversed(policy["namespaces"].items()))}):
        rules = PolicySet(_policy(turned), cluster="edge").of("shop-1")
        assert rules.values["images"].allow == [used or "*"]


def test_a_preset_of_a_namespace_leaves_the_rules_that_no_preset_sets():
    """A privileged namespace still gets its images from the allowed registry."""
    policy = {
        "privileged": False,
        "images": {"allow": ["registry.example.com/*"]},
        "namespaces": {"ci": {"preset": "privileged"}},
    }
    rules = PolicySet(_policy(policy)).of("ci")
    assert rules.values["privileged"]
    assert rules.values["images"].allow == ["registry.example.com/*"]


@pytest.mark.parametrize(
    ("policy", "namespace", "allowed", "source"),
    [
        ({}, "shop", ["/var/log"], "clusters[edge].volumes.allowedHostPaths"),
        (
            {"hostPaths": ["/data"]},
            "shop",
            ["/data", "/var/log"],
            "clusters[edge].volumes.allowedHostPaths and clusters[edge].policy.hostPaths",
        ),
        ({"preset": "privileged"}, "shop", ["/var/log"], "clusters[edge].volumes.allowedHostPaths"),
        (
            {"namespaces": {"shop": {"preset": "restricted"}}},
            "shop",
            [],
            "clusters[edge].policy.namespaces[shop].preset=restricted",
        ),
    ],
)
def test_allowed_host_paths_of_the_volumes_are_rules_of_the_cluster(policy, namespace, allowed, source):
    """An override for a namespace replaces them."""
    rules = PolicySet(_policy(policy), cluster="edge", host_paths=["/var/log"]).of(namespace)
    assert (rules.values["host_paths"], rules.sources["host_paths"]) == (allowed, source)


def test_a_summary_fits_into_an_event_for_any_pod():
    """An event's message may have 1 KiB."""
    long = "x" * 5000
    body = pod(
        containers=[{**container(privileged=True), "name": long, "image": long} for _ in range(50)],
        tolerations=[{"key": long}],
    )
    text = summary(judge(body, toleration_keys=["a"]))
    assert len(text) < 1000
    assert text.endswith("and 48 more")


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        ({"volumeTypes": ["hostPath"]}, "p.volumeTypes: hostPath: write it as hostPaths"),
        ({"volumeTypes": ["emptydir"]}, "p.volumeTypes: unknown 'emptydir'"),
        ({"hostPaths": ["var"]}, "p.hostPaths: 'var' is not an absolute path"),
        ({"hostPaths": ["/a/../b"]}, "p.hostPaths: '/a/../b' is not an absolute path"),
        ({"seccompProfiles": ["Default"]}, "p.seccompProfiles: unknown 'Default'"),
        ({"procMounts": ["Masked"]}, "p.procMounts: unknown 'Masked'"),
        ({"images": {"deny": ["nginx:*"]}}, "p.images.deny: 'nginx:*' matches no image"),
        ({"namespaces": {"ci": {"hostPaths": ["x"]}}}, "p.namespaces[ci].hostPaths: 'x'"),
    ],
)
def test_an_invalid_policy_is_reported_with_its_field(policy, problem):
    """The program must not start with a policy that has no effect."""
    (found,) = validation.policy_problems("p", _policy(policy))
    assert found.startswith(problem)


def test_a_valid_policy_has_no_problems():
    """All types of volumes, and wildcards."""
    policy = {
        "volumeTypes": ["*", "emptyDir", "nfs"],
        "hostPaths": ["/"],
        "seccompProfiles": ["*"],
        "images": {"allow": ["*", "*.example.com/*", "docker.io/library/nginx:*"]},
    }
    assert validation.policy_problems("p", _policy(policy)) == []
