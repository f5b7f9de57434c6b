"""Affinity terms that name or select upper namespaces: predicted as the virtual node writes them to lower pods."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from clusterset.config import Cluster, IgnoreConfig
from clusterset.model import names
from clusterset.model.namespace_map import NamespaceConfig, NamespaceMap
from clusterset.model.pod.affinity_terms import Reach, UpperNamespaces
from controller_runtime.client.limits import CacheBudget
from controller_runtime.errors import Forbidden
from controller_runtime.objects import from_dict
from multi_scheduler.agent import AgentContext
from multi_scheduler.agents.fit.agent import FitAgent
from multi_scheduler.config import Config
from multi_scheduler.state.cluster.pod_requirements import Placed
from multi_scheduler.state.cluster_state import UpperNamespaceFeed
from multi_scheduler.virtual_node import VirtualNode
from tests.unit.multi_scheduler.lower_pods import fit_agent, mark_synced, shared_of
from virtual_node.translate.base.ownership import Owner
from virtual_node.translate.base.view import PodOptions
from virtual_node.translate.pods import lower_pod

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
DB, VAULT = {"matchLabels": {"app": "db"}}, {"matchLabels": {"app": "vault"}}
VIRTUAL = VirtualNode("vn-a", "a", {}, {})
OURS = {names.LABEL_UPPER_CLUSTER: "11111111-2222"}


def _agent(**namespaces: Any) -> FitAgent:
    """Return an agent for a lower cluster with nodes n-0 and n-1; in the upper one, namespace shop has label team=x."""
    fake: Any = SimpleNamespace(cluster="test", caches=CacheBudget(0, cluster="test"))
    config = Cluster(name="a", kubeconfig="", namespaces=NamespaceConfig(prefix="up-", **namespaces))
    agent = fit_agent(AgentContext("fit", {}, fake, {"a": fake}, {"a": config}))
    for name in ("n-0", "n-1"):
        node = {"metadata": {"name": name, "labels": {names.LABEL_HOSTNAME: name}}, "spec": {}}
        agent.state.clusters["a"].index.upsert_node(
            {**node, "status": {"allocatable": {"cpu": "16", "pods": "99"}}}
        )
    mark_synced(agent.state)
    for name, labels in {"shop": {"team": "x"}, "lab": {}}.items():
        metadata = {"name": name, "labels": {"kubernetes.io/metadata.name": name, **labels}}
        known = {"metadata": metadata, "apiVersion": "v1", "kind": "Namespace"}
        agent.state.upper_namespaces._informer.change("ADDED", from_dict(known))
    return agent


def _place(agent: FitAgent, node: str, namespace: str, **labels: str) -> None:
    agent.state.clusters["a"].index.place(
        f"{namespace}-{labels}", Placed(node, {"pods": 1}, (), namespace, labels)
    )


def _pod(kind: str, **fields: Any) -> dict[str, Any]:
    term = {"topologyKey": names.LABEL_HOSTNAME, **fields}
    return {
        "metadata": {"name": "p", "namespace": "lab", "uid": "u", "labels": {"app": "web"}},
        "spec": {
            "nodeName": "vn-a",
            "containers": [{"name": "c", "image": "i"}],
            "affinity": {kind: {REQUIRED: [term]}},
        },
    }


async def _nodes(agent: FitAgent, pod: dict[str, Any]) -> set[str]:
    gated = agent.state.clusters["a"].gate.judge(pod, VIRTUAL)
    assert not gated.refusal
    index = agent.state.clusters["a"].index
    return {index.name(slot) for slot in index.feasible(agent.state.judge.demand(gated, VIRTUAL))}


@pytest.mark.parametrize(
    "fields",
    [
        {"namespaces": ["shop"]},
        {"namespaceSelector": {"matchLabels": {"team": "x"}}},
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "shop"}}},
        {"namespaceSelector": {}},
    ],
)
async def test_pods_of_other_upper_namespaces_are_found_in_their_lower_namespaces(fields):
    agent = _agent()
    _place(agent, "n-0", "up-shop", app="db", **OURS)
    assert await _nodes(agent, _pod("podAffinity", labelSelector=DB, **fields)) == {"n-0"}
    assert await _nodes(agent, _pod("podAntiAffinity", labelSelector=DB, **fields)) == {"n-1"}


@pytest.mark.parametrize("namespace", ["tenantb", "shop", "up-shop", "up-lab"])
async def test_pods_of_others_are_never_selected(namespace):
    """Whatever the name of their namespace."""
    agent = _agent()
    _place(agent, "n-0", namespace, app="vault")
    everywhere = {"namespaces": [namespace], "namespaceSelector": {}}
    assert await _nodes(agent, _pod("podAffinity", labelSelector=VAULT, **everywhere)) == set()
    assert await _nodes(agent, _pod("podAntiAffinity", labelSelector=VAULT, **everywhere)) == {"n-0", "n-1"}


async def test_pod_that_matches_its_own_term_is_the_first_of_its_kind():
    """The lower pod has the ownership label that the term requires."""
    own = {"matchLabels": {"app": "web"}}
    assert await _nodes(_agent(), _pod("podAffinity", labelSelector=own)) == {"n-0", "n-1"}


async def test_demands_differ_by_the_namespaces_that_a_lower_cluster_may_serve():
    pod = _pod("podAntiAffinity", labelSelector=DB, namespaceSelector={})
    keys = {
        _agent(allowed=allowed).state.clusters["a"].gate.judge(pod, VIRTUAL).demand_key
        for allowed in (["lab"], ["lab", "shop"])
    }
    assert len(keys) == 2


async def test_too_many_namespaces_are_refused_as_by_the_virtual_node():
    agent = _agent()
    for number in range(1001):
        agent.state.upper_namespaces.namespaces.upsert(f"n-{number}", {})
    refusal = agent.state.clusters["a"].gate.judge(
        _pod("podAffinity", labelSelector=DB, namespaceSelector={}), VIRTUAL
    )
    assert refusal.refusal.startswith(
        f"Lower cluster a does not take the pod: spec.affinity.podAffinity.{REQUIRED}[0]: the terms of a pod may select"
    )


@pytest.mark.parametrize("kind", ["podAffinity", "podAntiAffinity"])
@pytest.mark.parametrize(
    "fields", [{}, {"namespaces": ["shop", "other"]}, {"namespaceSelector": {}}, {"namespaces": ["other"]}]
)
def test_predicts_the_terms_that_the_virtual_node_writes(kind, fields):
    """Only the identity of the upper cluster is unknown to this program."""
    pod = _pod(kind, labelSelector=DB, **fields)
    namespaces = UpperNamespaces()
    namespaces.upsert("shop", {"team": "x"})
    namespaces.upsert("lab", {})
    mapping = NamespaceMap("up-")
    reach = Reach(namespaces, mapping, (), "11111111-2222")
    options = PodOptions(owner=Owner("11111111-2222", "vn-a"), namespace_map=mapping, reach=reach)
    sent = lower_pod.lower_pod(pod, options)["spec"].get("affinity", {})
    foreseen = _agent().state.clusters["a"].gate.judge(pod, VIRTUAL).pod["spec"].get("affinity", {})
    exact = json.dumps({"key": names.LABEL_UPPER_CLUSTER, "operator": "In", "values": ["11111111-2222"]})
    known = json.dumps({"key": names.LABEL_UPPER_CLUSTER, "operator": "Exists"})
    assert json.dumps(foreseen) == json.dumps(sent).replace(exact, known)


async def test_missing_right_is_logged_once_and_terms_of_other_namespaces_pass():
    """Terms of the pod's own namespace are still predicted."""
    agent = _agent()
    upper: Any = SimpleNamespace(cluster="upper", caches=CacheBudget(0, cluster="upper"))
    feed = UpperNamespaceFeed(upper)
    feed._informer._reflector.last_error = Forbidden("namespaces is forbidden", code=403)
    assert feed.is_settled
    with structlog.testing.capture_logs() as logs:
        feed.look()
        feed.look()
    assert [entry["next"] for entry in logs] == [
        "grant the multi-scheduler's account the verbs list and watch on namespaces"
    ]
    agent.state.upper_namespaces.namespaces.is_known = feed.namespaces.is_known
    _place(agent, "n-0", "up-lab", app="db", **OURS)
    assert await _nodes(agent, _pod("podAffinity", labelSelector=DB, namespaces=["shop"])) == {"n-0", "n-1"}
    assert await _nodes(agent, _pod("podAffinity", labelSelector=DB)) == {"n-0"}


@pytest.mark.parametrize(("ignore", "carried"), [(IgnoreConfig(), 1), (IgnoreConfig(presets=["jobset"]), 0)])
def test_terms_that_name_ignored_labels_are_left_out_as_by_the_virtual_node(
    ignore: IgnoreConfig, carried: int
):
    client: Any = SimpleNamespace(cluster="test", caches=CacheBudget(0, cluster="test"))
    config = Config(ignore=ignore, clusters=[Cluster(name="a", kubeconfig="")])
    gate = shared_of(config, client).state.clusters["a"].gate
    selector = {"matchLabels": {"jobset.sigs.k8s.io/job-key": "abc"}}
    judged = gate.judge(_pod("podAffinity", labelSelector=selector), VIRTUAL)
    terms = (judged.pod["spec"].get("affinity") or {}).get("podAffinity", {}).get(REQUIRED, [])
    assert (judged.refusal, len(terms)) == ("", carried)
