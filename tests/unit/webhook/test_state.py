"""What the webhook caches: frozen nodes from the descheduler's ConfigMap, and claims and volumes that limit pods."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from clusterset.model.moving import node_avoidance
from controller_runtime.objects import from_dict
from tests import objects
from tests.fakes.apiserver.client import MemoryClient
from tests.fakes.apiserver.server import Server
from webhook.mutation.mutate import Surroundings, mutate
from webhook.state import State

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MEMORY = {
    "metadata": {"name": node_avoidance.CONFIG_MAP, "namespace": "own", "resourceVersion": "1", "uid": "m"},
    "data": {node_avoidance.owner_key("tenant", "rs"): node_avoidance.render("tenant", {"a": NOW})},
}


@pytest.mark.parametrize(("namespace", "avoided"), [("tenant", ["a"]), ("victim", [])])
def test_avoided_nodes_are_those_of_the_owner_in_the_same_namespace(namespace, avoided):
    """A tenant that forges an owner does not affect the pods of the real owner."""
    client: Any = MemoryClient(Server())
    state = State(client, Surroundings(), freeze_namespace="own", freeze_period=300, now=lambda: NOW)
    state._memory.store.put(f"own/{node_avoidance.CONFIG_MAP}", from_dict(MEMORY))
    owners = [{"kind": "ReplicaSet", "name": "rs", "uid": "rs", "controller": True}]
    pod = {"metadata": {"name": "p", "ownerReferences": owners}, "spec": {}}
    assert list(state.surroundings(pod, namespace).frozen) == avoided


@pytest.mark.parametrize(("places", "avoided"), [("", ""), ("0", ""), ("110", "a")])
def test_a_node_with_only_cordoned_lower_nodes_is_no_alternative_to_a_frozen_one(places, avoided):
    """It is Ready without allocatable pods, so the pod would wait until the freeze ends."""
    client: Any = MemoryClient(Server())
    state = State(client, Surroundings(), freeze_namespace="own", freeze_period=300, now=lambda: NOW)
    state._memory.store.put(f"own/{node_avoidance.CONFIG_MAP}", from_dict(MEMORY))
    for node in (objects.virtual_node("a", ready=True), objects.virtual_node("b", pods=places, ready=True)):
        state._nodes.change("ADDED", state._nodes._transform(from_dict(node)))
    owners = [{"kind": "ReplicaSet", "name": "rs", "uid": "rs", "controller": True}]
    pod = {"metadata": {"name": "p", "ownerReferences": owners}, "spec": {}}
    annotations = mutate(pod, state.surroundings(pod, "tenant"))["metadata"].get("annotations") or {}
    assert annotations.get("unschedulable-node", "") == avoided


_CLAIM = {"metadata": {"name": "data", "namespace": "tenant", "resourceVersion": "1", "uid": "c"}, "spec": {}}
_SELECTED = {"volume.kubernetes.io/selected-node": "vn"}
_HOSTS = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["vn"]}


def _claim(annotations: dict[str, str] | None = None, **spec: Any) -> Any:
    metadata = {**_CLAIM["metadata"], "annotations": annotations or {}}
    return from_dict({"metadata": metadata, "spec": spec, "status": {"phase": "Bound"}})


def _volume(*terms: dict[str, Any], **spec: Any) -> Any:
    metadata = {"name": "pv", "uid": "v", "resourceVersion": "1"}
    required = {"nodeSelectorTerms": [{"matchExpressions": [term]} for term in terms]}
    return from_dict({"metadata": metadata, "spec": {"nodeAffinity": {"required": required}, **spec}})


def _state(claim: Any, volume: Any = None) -> State:
    client: Any = MemoryClient(Server())
    state = State(client, Surroundings(), freeze_namespace="own", freeze_period=300, now=lambda: NOW)
    node = from_dict({"metadata": {"name": "vn", "uid": "n", "resourceVersion": "1"}})
    state._nodes.change("ADDED", state._nodes._transform(node))
    for informer, found in ((state._claims, claim), (state._volumes, volume)):
        if found is not None:
            informer.change("ADDED", informer._transform(found) if informer._keeps(found) else found)
    return state


@pytest.mark.parametrize(
    ("claim", "volume", "pins"),
    [
        (_claim(_SELECTED), None, [["vn"]]),
        (_claim(volumeName="pv"), _volume(_HOSTS), [["vn"]]),
        (_claim(_SELECTED, volumeName="pv"), _volume({**_HOSTS, "key": "zone"}), [["vn"]]),
        (_claim(volumeName="pv"), _volume({**_HOSTS, "values": ["other"]}), []),
        (_claim(volumeName="pv"), None, []),
        (_claim(), _volume(_HOSTS), []),
    ],
    ids=["selected node", "volume", "volume of a zone", "real node", "no volume", "unbound"],
)
def test_reduced_claims_and_volumes_pin_pods(claim: Any, volume: Any, pins: list[list[str]]):
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]
    pod = {"metadata": {"name": "p"}, "spec": {"volumes": volumes}}
    assert _state(claim, volume).surroundings(pod, "tenant").pinned_to == pins


@pytest.mark.parametrize(
    "claim",
    [
        _claim({**_SELECTED, "large": "x" * 250_000}, volumeName="pv", large="x" * 500_000),
        _claim({"volume.kubernetes.io/selected-node": "x" * 250_000}, volumeName="x" * 500_000),
        _claim({"volume.kubernetes.io/selected-node": "x" * 250_000}, volumeName="pv"),
    ],
    ids=["other fields", "invalid names", "invalid node"],
)
def test_a_claim_uses_at_most_two_kilobytes(claim: Any):
    """Each tenant can write thousands, with annotations of 256 KiB."""
    assert sum(cached.memory for cached in _state(claim)._claims.store.list()) < 2000


def test_a_volume_without_hosts_is_not_cached():
    """Most volumes of real nodes in a zone: they limit no pod to virtual nodes."""
    assert len(_state(None, _volume({**_HOSTS, "key": "zone"}))._volumes.store) == 0


def test_only_open_nodes_can_admit_pods():
    """They keep labels and taints, which decide whether they admit a pod."""
    state = _state(None)
    ready, taint = objects.condition("Ready"), {"key": "gpu", "value": "yes", "effect": "NoSchedule"}
    for name, spec in (("a", {"taints": [taint]}), ("b", {"unschedulable": True}), ("c", {})):
        metadata = {"name": name, "uid": name, "resourceVersion": "1", "labels": {"zone": name}}
        status = {"conditions": [ready] if name != "c" else [], "allocatable": {"pods": "1"}}
        state._nodes.store.put(
            name, state._nodes._transform(from_dict({"metadata": metadata, "spec": spec, "status": status}))
        )
    (usable,) = state.surroundings({"metadata": {"name": "p"}, "spec": {}}, "tenant").open_nodes
    assert (usable.name, usable.labels, (usable.spec or {})["taints"]) == ("a", {"zone": "a"}, [taint])
