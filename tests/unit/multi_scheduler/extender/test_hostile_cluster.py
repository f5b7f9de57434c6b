"""A lower cluster with malformed or huge objects affects neither the pods of other clusters nor the time of calls."""

from __future__ import annotations

import contextlib
import copy
import time
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from controller_runtime import resources
from controller_runtime.client.limits import CacheBudget
from controller_runtime.objects import from_dict
from multi_scheduler import malformed
from multi_scheduler.agent import Agent
from multi_scheduler.extender.extender import Extender, Weighted
from multi_scheduler.extender.protocol import Candidates, filter_result
from multi_scheduler.state.cluster_feed import shrink_node, shrink_pod
from multi_scheduler.virtual_node import VirtualNode
from tests.thorough import IS_THOROUGH
from tests.unit.multi_scheduler.agents.test_scoring_agents import FIT, Scene, agent, pod

AGENTS = (FIT, *map(agent, ("safe", "load", "pressure", "congestion", "cost", "pigeon")))
NAMES = ("vn-a", "vn-b", "real")
HOST = "kubernetes.io/hostname"
NODE: dict[str, Any] = {
    "metadata": {"name": "a-0", "labels": {HOST: "a-0", "virtual-node.io/price-cpu": "1"}},
    "spec": {"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}], "unschedulable": False},
    "status": {
        "allocatable": {"cpu": "4", "memory": "4Gi", "pods": "100", "example.com/x": "1"},
        "declaredFeatures": ["A"],
    },
}
TERM = {
    "topologyKey": HOST,
    "labelSelector": {
        "matchLabels": {"app": "web"},
        "matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}],
    },
    "namespaces": ["shop"],
    "namespaceSelector": {},
}
POD: dict[str, Any] = {
    "metadata": {"name": "p", "namespace": "shop", "uid": "p", "labels": {"virtual-node.io/upper-uid": "u"}},
    "spec": {
        "nodeName": "a-0",
        "containers": [
            {
                "name": "c",
                "ports": [{"hostPort": 80, "hostIP": "10.0.0.1", "protocol": "TCP"}],
                "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}},
            }
        ],
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [TERM]}},
    },
    "status": {
        "phase": "Running",
        "allocatedResources": {"cpu": "1"},
        "resources": {"requests": {"cpu": "1"}},
        "containerStatuses": [
            {"name": "c", "allocatedResources": {"cpu": "1"}, "resources": {"requests": {"cpu": "1"}}}
        ],
        "conditions": [
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        ],
    },
}
RANGE: dict[str, Any] = {
    "metadata": {"name": "r", "namespace": "shop"},
    "spec": {
        "limits": [
            {"type": kind, "max": {"cpu": "2"}, "min": {"cpu": "1"}, "default": {"cpu": "2"}, "defaultRequest": {"cpu": "1"}, "maxLimitRequestRatio": {"cpu": "4"}}
            for kind in ("Container", "Pod")
        ]
    },
}  # fmt: skip
QUOTA: dict[str, Any] = {
    "metadata": {"name": "q", "namespace": "shop"},
    "spec": {"scopes": ["NotTerminating"], "scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["x"]}]}},
    "status": {"hard": {"cpu": "100", "pods": "100"}, "used": {"cpu": "1", "pods": "1"}},
}  # fmt: skip
TRANSFORMS = {resources.NODES: shrink_node, resources.PODS: shrink_pod}
OBJECTS = (
    (resources.NODES, NODE),
    (resources.PODS, POD),
    (resources.LIMIT_RANGES, RANGE),
    (resources.RESOURCE_QUOTAS, QUOTA),
)


class World:
    """A hostile lower cluster a, a good one b, real nodes, and the extender with several agents."""

    def __init__(self, *more: Agent) -> None:
        self.scene = Scene(*AGENTS)
        self.scene.used("b-0", 0.2)
        directory: Any = SimpleNamespace(wait=self._ready, find=self._find, refusal=lambda _name, _node: "")
        upper: Any = SimpleNamespace(cluster="upper", caches=CacheBudget(0, cluster="upper"))
        agents = [Weighted(type(one).__name__, one, 1.0) for one in (*self.scene.agents, *more)]
        self.extender = Extender(agents, directory, upper=upper)

    async def _ready(self, _seconds: float) -> bool:
        return True

    def _find(self, name: str, _node: Any) -> VirtualNode | None:
        return VirtualNode(name, name.removeprefix("vn-"), {}, {}) if name.startswith("vn-") else None

    def send(self, resource: resources.Resource, body: dict[str, Any]) -> None:
        """Let the hostile cluster send an object, which an informer stores unless decoding or reducing it fails."""
        try:
            found = TRANSFORMS.get(resource, lambda one: one)(from_dict(body))
        except Exception:  # noqa: BLE001 - stops the watch of this cluster only
            return
        [informer] = [
            one for one in self.scene.state.clusters["a"].feed.informers if one.resource is resource
        ]
        informer.change("ADDED", found)

    async def call(self, wanted: dict[str, Any] | None = None) -> tuple[Any, dict[str, float]]:
        """Filter and prioritize; return both answers."""
        asked = Candidates(wanted or pod(), NAMES, None)
        return await self.extender.filter(asked), await self.extender.prioritize(asked)


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all fields of an object."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [*([path] if path else []), *(found for key, one in items for found in _paths(one, (*path, key)))]


_JUNK = st.recursive(
    st.sampled_from((None, True, 0, -1, 2**70, 1.5, 1e308, "", "x", "1e999999999", "9" * 5000, "-5", "In", "Gt")),
    lambda one: st.lists(one, max_size=2) | st.dictionaries(st.sampled_from(("", "cpu", "key", "values")), one, max_size=2),
    max_leaves=4,
)  # fmt: skip
_PLACES = [(resource, base, path) for resource, base in OBJECTS for path in _paths(base)]


@settings(max_examples=1000 if IS_THOROUGH else 10, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(_PLACES), _JUNK), min_size=1, max_size=6))
async def test_malformed_objects_do_not_affect_the_good_cluster(changes) -> None:
    world = World()
    for resource, base in OBJECTS:
        changed = copy.deepcopy(base)
        for (at, _, path), value in changes:
            with contextlib.suppress(LookupError, TypeError):  # an earlier change removed the field
                holder = changed if at is resource else {}
                for step in path[:-1]:
                    holder = holder[step]
                holder[path[-1]] = value
        # Most changes are logged with a traceback, and formatting it for people takes most of the test's time.
        with capture_logs():
            world.send(resource, changed)
    started = time.thread_time()
    answer, scores = await world.call()
    assert time.thread_time() - started < 1.0
    assert {"vn-b", "real"} <= set(answer.passing)
    assert scores["vn-b"] > 0


@pytest.mark.parametrize(
    ("resource", "body"),
    [
        (resources.NODES, {**NODE, "spec": {"taints": ["x"]}}),
        (resources.NODES, {**NODE, "status": {"allocatable": {"cpu": ["4"], "memory": {}, "pods": "-1"}}}),
        (
            resources.LIMIT_RANGES,
            {**RANGE, "spec": {"limits": [{"type": "Container", "max": {"cpu": "abc"}}]}},
        ),
        (resources.LIMIT_RANGES, {**RANGE, "spec": {"limits": [{"type": "Pod", "default": {"cpu": ["1"]}}]}}),
        (resources.RESOURCE_QUOTAS, {**QUOTA, "spec": {"scopeSelector": {"matchExpressions": ["x"]}}}),
    ],
)
async def test_malformed_object_does_not_affect_the_good_cluster(resource, body) -> None:
    world = World()
    world.send(resource, body)
    answer, _scores = await world.call()
    assert {"vn-b", "real"} <= set(answer.passing)


class _Broken(Agent):
    async def filter(self, pod: Any, nodes: Any) -> Any:
        self._fail(nodes)
        return await super().filter(pod, nodes)

    async def score(self, pod: Any, nodes: Any) -> Any:
        self._fail(nodes)
        return {node.name: 1.0 for node in nodes}

    def _fail(self, nodes: Any) -> None:
        if any(node.cluster == "a" for node in nodes):
            raise ZeroDivisionError


async def test_agent_that_fails_for_one_cluster_answers_for_the_others() -> None:
    """Also an agent from another package; a metric names the cluster."""
    counter = malformed._MALFORMED.labels("a")._value
    before = counter.get()
    world = World(_Broken())
    answer, scores = await world.call()
    assert answer.passing == ["vn-b", "real"]
    assert answer.unresolvable["vn-a"] == "lower cluster a has data that cannot be used: ZeroDivisionError"
    assert scores["vn-b"] > 0
    assert counter.get() > before


async def test_pod_that_no_agent_can_read_is_refused() -> None:
    """No lower cluster is blamed for it."""
    world = World()
    before = malformed._MALFORMED.labels("a")._value.get()
    with pytest.raises(AttributeError):
        await world.call({**pod(), "metadata": {"uid": "u", "annotations": ["x"]}})
    assert malformed._MALFORMED.labels("a")._value.get() == before


async def test_reasons_are_short() -> None:
    """A cluster may have a different taint on each node, and a pod may ask for thousands of resources."""
    world = World()
    world.scene.state.clusters["a"].index.remove_node("a-0")
    for number in range(500):
        taint = {"key": f"{number}-{'k' * 300}", "effect": "NoSchedule"}
        world.send(
            resources.NODES, {**NODE, "metadata": {"name": f"a-{number}"}, "spec": {"taints": [taint]}}
        )
    answer, _scores = await world.call()
    assert 100 < len(answer.unresolvable["vn-a"]) < 10_000
    found = filter_result(Candidates({}, NAMES, None), [], {}, answer.unresolvable)
    assert len(found) < 2000
