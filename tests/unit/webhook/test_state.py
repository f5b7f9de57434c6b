"""Frozen nodes that the webhook reads from the descheduler's ConfigMap."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from controller_runtime.api.moving import node_avoidance
from controller_runtime.client.cache_budget import CacheBudget
from controller_runtime.client.reconnect_queue import Outage
from controller_runtime.objects import from_dict
from webhook.mutation.mutate import Surroundings
from webhook.state import State

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MEMORY = {
    "metadata": {"name": node_avoidance.CONFIG_MAP, "namespace": "own", "resourceVersion": "1", "uid": "m"},
    "data": {node_avoidance.owner_key("tenant", "rs"): node_avoidance.render("tenant", {"a": NOW})},
}


class _Client:
    cluster = "upper"
    outage = Outage()
    caches = CacheBudget(0, cluster="upper")


@pytest.mark.parametrize(("namespace", "avoided"), [("tenant", ["a"]), ("victim", [])])
def test_avoided_nodes_are_those_of_the_owner_in_the_same_namespace(namespace, avoided):
    """A tenant that forges an owner does not affect the pods of the real owner."""
    client: Any = _Client()
    state = State(client, Surroundings(), freeze_namespace="own", freeze_period=300, now=lambda: NOW)
    state._memory.store.put(f"own/{node_avoidance.CONFIG_MAP}", from_dict(MEMORY))
    owners = [{"kind": "ReplicaSet", "name": "rs", "uid": "rs", "controller": True}]
    pod = {"metadata": {"name": "p", "ownerReferences": owners}, "spec": {}}
    assert list(state.surroundings(pod, namespace).avoid) == avoided
