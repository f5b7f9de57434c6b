"""NetworkPolicies allow exactly the intended clients of served ports."""

from __future__ import annotations

import json
from typing import Any

from tests.unit.charts import rendering

API_SERVER = {"ipBlock": {"cidr": "10.0.0.1/32"}}
SCRAPER = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
CLUSTERS = """
virtualNode:
  kubelet: {port: 10260}
  clusters:
    - name: a
      kubeconfigSecret: {name: a}
      config: {nodes: [{name: one}, {name: two}, {name: three, port: 10300}]}
"""


def _peers(values: dict[str, Any]) -> str:
    return f"{CLUSTERS}networkPolicy: {json.dumps({'enabled': True, **values})}"


def _ingress(values: str) -> dict[str, dict[int, Any]]:
    """Return component → port → allowed peers; None: all. Ranges are expanded."""
    found: dict[str, dict[int, Any]] = {}
    for one in rendering.render(values):
        if one["kind"] == "NetworkPolicy":
            assert one["spec"]["policyTypes"] == ["Ingress"]
            component = one["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/component"]
            found[component] = {
                number: rule.get("from")
                for rule in one["spec"].get("ingress", ())
                for port in rule["ports"]
                for number in range(port["port"], port.get("endPort", port["port"]) + 1)
            }
    return found


def _served(values: str) -> dict[str, set[int]]:
    """Return component → ports that its containers declare."""
    return {
        one["metadata"]["labels"]["app.kubernetes.io/component"]: {
            port["containerPort"]
            for container in one["spec"]["template"]["spec"]["containers"]
            for port in container["ports"]
        }
        for one in rendering.render(values)
        if one["kind"] == "Deployment"
    }


def test_all_served_ports_are_reachable():
    """Every port that a container declares, and those of further virtual nodes; the scheduler serves none."""
    values = _peers({})
    ingress, served = _ingress(values), _served(values)
    assert set(ingress) == set(served), "a pod without a policy would be open"
    assert ingress.pop("scheduler") == {}
    served.pop("scheduler")
    served["virtual-node"] |= {10261, 10262, 10300}
    assert {component: set(ports) for component, ports in ingress.items()} == served


def test_authenticated_ports_are_open_by_default():
    """Without configured peers only the extender, which has no authentication, is closed to all but the scheduler."""
    ingress = _ingress(_peers({}))
    (peer,) = ingress["multi-scheduler"].pop(8888)
    assert peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "scheduler"
    assert {peers is None for ports in ingress.values() for peers in ports.values()} == {True}


def test_peers_reach_their_ports_only():
    """API servers call kubelets and the webhook; scrapers read metrics, also those that kubelets serve."""
    ingress = _ingress(_peers({"apiServerFrom": [API_SERVER], "metricsFrom": [SCRAPER]}))
    assert ingress["virtual-node"][10300] == [API_SERVER, SCRAPER], "kubectl top asks the kubelet API"
    assert ingress["webhook"][8443] == [API_SERVER]
    assert (
        ingress["virtual-node"][9090] == ingress["webhook"][9090] == ingress["descheduler"][9090] == [SCRAPER]
    )
    assert ingress["multi-scheduler"][9090] == [SCRAPER]
    assert not {json.dumps(SCRAPER), json.dumps(API_SERVER)} & {
        json.dumps(peer) for peer in ingress["multi-scheduler"][8888]
    }


def test_policies_are_made_unless_they_are_disabled():
    """Without values the extender is closed to all but the chart's scheduler."""
    assert _ingress(CLUSTERS) == _ingress(_peers({}))
    assert _ingress(_peers({"enabled": False})) == {}


def test_all_ports_are_open_if_a_virtual_node_uses_any():
    """With port 0 the port is unknown."""
    values = "virtualNode: {clusters: [{name: a, kubeconfigSecret: {name: a}, config: {port: 0}}]}"
    (policy,) = (
        one
        for one in rendering.render(values)
        if one["kind"] == "NetworkPolicy" and one["metadata"]["name"] == "vn-virtual-node"
    )
    assert {} in policy["spec"]["ingress"]


def test_scrapers_alone_close_no_kubelet():
    """With only scrapers configured, any peer may still request logs."""
    assert _ingress(_peers({"metricsFrom": [SCRAPER]}))["virtual-node"][10260] is None


def test_outgoing_traffic_is_allowed_for_all_pods_of_the_release():
    """A namespace may deny it by default, also for the pod without which ``helm uninstall`` does not end."""
    rules: list[Any] = [{"ports": [{"port": 443}]}]
    found = rendering.render(_peers({"egress": rules}))
    (policy,) = (one for one in found if one["kind"] == "NetworkPolicy" and "egress" in one["spec"])
    assert policy["spec"]["policyTypes"] == ["Egress"]
    assert policy["spec"]["egress"] == rules
    selected = policy["spec"]["podSelector"]["matchLabels"].items()
    pods = [
        one["metadata"] if one["kind"] == "Pod" else one["spec"]["template"]["metadata"]
        for one in found
        if one["kind"] in {"Deployment", "Job", "Pod"}
    ]
    assert len(pods) > 5
    assert all(selected <= pod["labels"].items() for pod in pods)
    assert selected, "an empty selector would select the pods of others"
