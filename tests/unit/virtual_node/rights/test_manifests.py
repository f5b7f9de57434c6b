"""The manifests grant exactly the table of rights."""

from __future__ import annotations

import pytest

from clusterset.config import Cluster, ClusterProfiles
from clusterset.model.pod.resource_claims import ResourceClaimsConfig
from virtual_node.config.types import Config
from virtual_node.rights import daemon, manifests
from virtual_node.translate.kinds import FOLLOWED


def test_rights_for_resource_claims_only_if_they_are_mirrored():
    """They are not needed in other clusters."""
    takes = Cluster(name="a", resource_claims=ResourceClaimsConfig(enabled=True))
    config = Config(clusters=[Cluster(name="b"), takes])
    assert {*daemon.UPPER_RESOURCE_CLAIMS} <= {*daemon.upper(config)}
    assert not {*daemon.UPPER_RESOURCE_CLAIMS} & {*daemon.upper(Config(clusters=config.clusters[:1]))}
    profiles = ClusterProfiles(
        namespace="fleet", providers_file="p.yaml", defaults={"resourceClaims": {"enabled": True}}
    )
    assert {*daemon.UPPER_RESOURCE_CLAIMS} <= {*daemon.upper(Config(cluster_profiles=profiles))}
    assert {*daemon.lower((), resource_claims=True)} - {*daemon.lower(())} == {*daemon.LOWER_RESOURCE_CLAIMS}
    assert {*daemon.lower((), shared_volumes=True)} - {*daemon.lower(())} == {*daemon.LOWER_SHARED_VOLUMES}


@pytest.mark.parametrize(
    "table",
    [daemon.UPPER, daemon.LOWER, daemon.lower(daemon.LOWER_COPIES)],
    ids=["upper", "lower", "lower that follows"],
)
def test_a_role_grants_exactly_the_table(table):
    role = manifests.cluster_role(table)
    granted = {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert granted == {(right.group, right.full_resource, verb) for right in table for verb in right.verbs}


def test_no_wildcards_are_granted():
    """The only exception is the rule that ``--keep-namespaces`` leaves out, which may only list."""
    for table in (daemon.UPPER, daemon.LOWER):
        assert "*" not in str(manifests.cluster_role(table)["rules"])
    assert manifests.namespace_cleaning_rule()["verbs"] == ["list"]


def test_rights_follow_the_setting():
    """Without ``follow``, no right is needed, and every kind has rights in both clusters."""
    assert daemon.lower([]) == daemon.LOWER
    assert {*daemon.LOWER_COPIES} == {*daemon.UPPER_COPIES} == {kind.setting for kind in FOLLOWED}
    table = daemon.lower(["networkPolicies", "networkPolicies"])
    assert [right.resource for right in table[len(daemon.LOWER) :]] == ["networkpolicies"]
