"""The DNS settings of lower pods."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from clusterset.admission import Admitted, ClusterRules
from clusterset.config import Cluster, DNSConfig
from clusterset.model.overrides import Override
from controller_runtime.apimachinery.decoding import convert
from controller_runtime.apimachinery.translation_budget import TranslationBudget
from tests.unit.virtual_node.translate.pods.pods import upper_pod
from virtual_node.config.types import Config
from virtual_node.translate.base.view import pod_options
from virtual_node.translate.pods.dns import with_upper_names
from virtual_node.translate.pods.lower_pod import created

SERVER = "10.97.0.53"
DOMAINS = ["shop.svc.app.pre", "svc.app.pre", "app.pre"]
NDOTS = [{"name": "ndots", "value": "5"}]


def lower(spec: dict[str, Any], servers: tuple[str, ...] = (SERVER,)) -> dict[str, Any]:
    """Return the lower spec of a pod in namespace ``shop``."""
    found = copy.deepcopy(spec)
    with_upper_names(found, "shop", servers=servers, domain="app.pre")
    return found


@pytest.mark.parametrize(
    "spec",
    [{}, {"dnsPolicy": "ClusterFirst"}, {"dnsPolicy": "ClusterFirstWithHostNet", "hostNetwork": True}],
)
def test_pods_that_use_the_clusters_dns_search_upper_domains(spec: dict[str, Any]):
    """As the kubelet of an upper node would write their resolv.conf."""
    wanted = {"nameservers": [SERVER], "searches": DOMAINS, "options": NDOTS}
    assert lower(spec) == {**spec, "dnsPolicy": "None", "dnsConfig": wanted}


@pytest.mark.parametrize(
    "spec",
    [
        {"dnsPolicy": "Default"},
        {"dnsPolicy": "None", "dnsConfig": {"nameservers": ["192.0.2.1"]}},
        {"dnsPolicy": "ClusterFirst", "hostNetwork": True},
    ],
)
def test_pods_that_do_not_use_it_stay_unchanged(spec: dict[str, Any]):
    """ClusterFirst on the host's network means the host's DNS."""
    assert lower(spec) == spec


def test_without_a_name_server_nothing_changes():
    """Pods use the DNS of the lower cluster."""
    assert lower({"dnsPolicy": "ClusterFirst"}, servers=()) == {"dnsPolicy": "ClusterFirst"}


def test_the_pods_own_settings_are_added_as_by_a_kubelet():
    """Its servers and domains come last, without duplicates; its options win."""
    own = {
        "nameservers": ["192.0.2.1", SERVER, "192.0.2.2", "192.0.2.3"],
        "searches": ["app.pre", "example.com"],
        "options": [{"name": "ndots", "value": "1"}, {"name": "edns0"}],
    }
    assert lower({"dnsConfig": own})["dnsConfig"] == {
        "nameservers": [SERVER, "192.0.2.1", "192.0.2.2"],
        "searches": [*DOMAINS, "example.com"],
        "options": [{"name": "ndots", "value": "1"}, {"name": "edns0"}],
    }


@pytest.mark.parametrize(
    ("searches", "kept"),
    [([f"d{number}" for number in range(32)], 29), ([f"{number}{'a' * 199}" for number in range(12)], 10)],
    ids=["32 domains", "2048 characters"],
)
def test_domains_beyond_the_limits_of_the_api_are_left_out(searches: list[str], kept: int):
    """The API server would refuse the pod; a kubelet leaves them out, too."""
    found = lower({"dnsConfig": {"searches": searches}})["dnsConfig"]["searches"]
    assert found == [*DOMAINS, *searches[:kept]]
    assert len(" ".join(found)) <= 2048


@pytest.mark.parametrize(
    ("override", "policy", "options"),
    [
        ({}, "None", NDOTS),
        ({"dnsPolicy": "Default"}, "Default", None),
        (
            {"dnsConfig": {"options": [{"name": "ndots", "value": "2"}]}},
            "None",
            [{"name": "ndots", "value": "2"}],
        ),
    ],
)
def test_an_override_counts_like_the_pods_own_setting(
    override: dict[str, Any], policy: str, options: list[dict[str, str]] | None
):
    """The operator can exempt pods, or give them options."""
    overrides = [convert({"name": "o", "patch": {"spec": override}}, Override)] if override else []
    cluster = Cluster(name="tokyo", overrides=overrides, dns=DNSConfig(servers=[SERVER]))
    rules, upper = ClusterRules(cluster, controllers=()), upper_pod()
    (node,) = cluster.virtual_nodes()
    given = pod_options(Config(cluster_domain="app.pre"), cluster, rules, node)
    admitted = rules.admit(upper, given)
    assert isinstance(admitted, Admitted)
    spec = created(upper, given, admitted, TranslationBudget())["spec"]
    assert spec["dnsPolicy"] == policy
    assert spec.get("dnsConfig", {}).get("options") == options
