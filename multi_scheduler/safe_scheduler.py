"""kube-safe-scheduler's agents: they know only the Nodes of each call and their annotations. No IO.

Defects of the original are corrected: non-finite values count as missing, an unknown node gets half the points, a
rejected node gets a reason, a retried pod is counted once, and sidecars and pod-level resources count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from clusterset.model.pod import pod_resources
from controller_runtime.apimachinery import quantity
from controller_runtime.process.program import version
from multi_scheduler.agents import congestion, pigeon, safe
from multi_scheduler.directory import NodeDirectory
from multi_scheduler.extender import protocol
from multi_scheduler.extender.extender import Extender
from multi_scheduler.extender.server import Decide, ExtenderServer
from multi_scheduler.usage import CONGESTION, DEVIATION, FORECAST, MEAN, number

Pod = Mapping[str, Any]
Nodes = Mapping[str, Mapping[str, Any]]
"""Node objects by name."""
Predicate = Callable[[Pod, Nodes], dict[str, str]]
"""Returns a reason for each node that must not take the pod."""
Priority = Callable[[Pod, Nodes], dict[str, int]]
"""Returns points from 0 to 10 by node."""

_NEUTRAL = 5
_MIB, _GIB = 2**20, 2**30
_RESOURCES = ("cpu", "memory")
_BINS: tuple[tuple[str, int, int], ...] = (
    ("cpu", 1, 10), ("memory", _MIB, 16), ("pods", 1, 1), ("gpu", 1, 0), ("ephemeral-storage", _GIB, 0),
)  # fmt: skip
"""Resource, its unit, and the demand of a pod without a request for it."""
_OBJECTIVES: Mapping[str, pigeon.Objective] = {
    "A_BINPACK": "AdaptiveBinPack", "LOAD_BALANCE": "LoadBalance", "CONSOLIDATE": "Consolidate",
}  # fmt: skip
PRIORITIES_ONLY = frozenset({"safe-balance", "congestion", "pigeon-holing"})
"""Agents of kube-safe-scheduler that do not filter."""


@dataclass(frozen=True, slots=True)
class SafeSchedulerSettings:
    """Settings that kube-safe-scheduler reads from its environment."""

    threshold: float = 0.9
    percentile: float = 0.3
    forecast_weight: float = 0.2
    maximum: int = congestion.DEFAULT_MAXIMUM
    resources: int = 2
    objective: pigeon.Objective = "AdaptiveBinPack"


def read_settings(environment: Mapping[str, str]) -> SafeSchedulerSettings:
    """Return the settings; an invalid variable counts as missing."""
    default = SafeSchedulerSettings()
    return SafeSchedulerSettings(
        _percent(environment.get("SAFEUTILIZATION"), default.threshold),
        _percent(environment.get("SAFEPERCENTILE"), default.percentile),
        _percent(environment.get("SAFEFORECASTWEIGHT"), default.forecast_weight),
        _integer(environment.get("CONGESTION_FACTOR_MAX"), default.maximum, most=2**31),
        _integer(environment.get("NUM_RESOURCES"), default.resources, most=len(_BINS)),
        _OBJECTIVES.get(environment.get("POLICY_OBJECTIVE", ""), default.objective),
    )


@dataclass(slots=True)
class SafeScheduler:
    """All agents of kube-safe-scheduler."""

    settings: SafeSchedulerSettings
    _history: pigeon.DemandHistory = field(init=False)

    def __post_init__(self) -> None:
        self._history = pigeon.DemandHistory(self.settings.resources)

    def predicates(self) -> dict[str, Predicate]:
        """Return the filters by name."""
        return {"safe-overload": self._overloaded, "foo": lambda _pod, _nodes: {}}

    def priorities(self) -> dict[str, Priority]:
        """Return the scores by name."""
        return {
            "safe-overload": lambda pod, nodes: {
                name: self._worst(pod, node, self._overload) for name, node in nodes.items()
            },
            "safe-balance": lambda pod, nodes: {
                name: self._worst(pod, node, lambda load: safe.balance_points(load.mean, load.deviation))
                for name, node in nodes.items()
            },
            "congestion": lambda _pod, nodes: {
                name: congestion.factor_points(_annotations(node).get(CONGESTION), self.settings.maximum)
                for name, node in nodes.items()
            },
            "pigeon-holing": self._pigeon,
            "foo": lambda _pod, nodes: dict.fromkeys(nodes, 1),
        }

    def _overloaded(self, pod: Pod, nodes: Nodes) -> dict[str, str]:
        found = {}
        for name, node in nodes.items():
            for resource, load in self._loads(pod, node).items():
                risk = self._risk(load)
                if risk > self.settings.percentile:
                    found[name] = (
                        f"{resource} would exceed {self.settings.threshold:.0%} with a probability of {risk:.0%}, "
                        f"the limit is {self.settings.percentile:.0%}"
                    )
        return found

    def _risk(self, load: safe.Load) -> float:
        return safe.overload_risk(load.mean, load.deviation, self.settings.threshold)

    def _overload(self, load: safe.Load) -> int:
        return safe.overload_points(self._risk(load), self.settings.percentile)

    def _worst(self, pod: Pod, node: Mapping[str, Any], points: Callable[[safe.Load], int]) -> int:
        return min(map(points, self._loads(pod, node).values()), default=_NEUTRAL)

    def _loads(self, pod: Pod, node: Mapping[str, Any]) -> dict[str, safe.Load]:
        annotations, found = _annotations(node), {}
        for resource in _RESOURCES:
            free = number(annotations.get(MEAN.format(resource)))
            if free is None:
                continue
            load = safe.load_with_pod(
                free=free,
                deviation=number(annotations.get(DEVIATION.format(resource))),
                forecast=number(annotations.get(FORECAST.format(resource))),
                capacity=_allocatable(node, resource),
                demand=pod_resources.pod_requests(pod["spec"]).get(resource, 0),
                weight=self.settings.forecast_weight,
            )
            if load is not None:
                found[resource] = load
        return found

    def _pigeon(self, pod: Pod, nodes: Nodes) -> dict[str, int]:
        resources = _BINS[: self.settings.resources]
        demand = [_demand(pod, name) // unit or least for name, unit, least in resources]
        self._history.add_once(pod["metadata"].get("uid", ""), demand)
        bins = {name: _bin(node, resources) for name, node in nodes.items()}
        found = pigeon.objectives(bins, demand, self.settings.objective, history=self._history)
        return pigeon.points(found)


def _bin(node: Mapping[str, Any], resources: Sequence[tuple[str, int, int]]) -> pigeon.Bin:
    annotations = _annotations(node)
    return pigeon.Bin(
        [_allocatable(node, name) // unit for name, unit, _ in resources],
        [
            _integer(annotations.get(f"requested-{name}"), 0, least=0, most=2**63) // unit
            for name, unit, _ in resources
        ],
    )


def _annotations(node: Mapping[str, Any]) -> Mapping[str, str]:
    return node["metadata"].get("annotations") or {}


def _allocatable(node: Mapping[str, Any], resource: str) -> int:
    return quantity.of(resource, ((node.get("status") or {}).get("allocatable") or {}).get(resource, 0))


def _demand(pod: Pod, resource: str) -> int:
    """Return what the pod requests while it runs, without init containers that end."""
    holders = pod_resources.running(pod["spec"], resource)
    return sum(pod_resources.amounts(holder, "requests").get(resource, 0) for holder in holders)


def _percent(text: str | None, default: float) -> float:
    found = _integer(text, -1, least=0, most=100)
    return default if found < 0 else found / 100


def _integer(text: str | None, default: int, *, least: int = 1, most: int) -> int:
    try:
        value = int(text or "")
    except ValueError:
        return default
    return value if least <= value <= most else default


PREFIX = "/scheduler"
NO_BIND = "Extender doesn't support Bind: make 'BindVerb' be empty in your ExtenderConfig"


def add_routes(
    server: ExtenderServer,
    scheduler: SafeScheduler,
    agents: Mapping[str, Extender],
    directory: NodeDirectory,
    *,
    bind: Decide | None,
) -> None:
    """Serve ``/version`` and all paths under ``/scheduler``.

    Args:
        server: the server that gets the routes.
        scheduler: agents of kube-safe-scheduler.
        agents: the multi-scheduler's agents, each in its own extender.
        directory: finds Nodes for calls with names, and rejects unknown virtual nodes.
        bind: binds a pod; None: bind calls get an error, as in kube-safe-scheduler.
    """
    server.add_route("GET", "/version", _version)
    predicates: dict[str, Decide] = {name: partial(server.filter_by, one) for name, one in agents.items()}
    priorities: dict[str, Decide] = {name: partial(server.prioritize_by, one) for name, one in agents.items()}
    for name, predicate in scheduler.predicates().items():
        predicates[name] = partial(_filter, server, predicate, directory)
    for name, priority in scheduler.priorities().items():
        priorities[name] = partial(_prioritize, priority, directory)
    for verb, kind, decides in (
        ("filter", "predicates", predicates),
        ("prioritize", "priorities", priorities),
    ):
        for name, decide in decides.items():
            _add(server, f"{PREFIX}/{kind}/{name}", server.handler(verb, decide))
    _add(server, f"{PREFIX}/preemption", server.handler("preempt", None))
    _add(server, f"{PREFIX}/bind", server.handler("bind", bind or _no_bind))


def _add(server: ExtenderServer, path: str, handler: Handler) -> None:
    server.add_route("POST", path, handler)
    server.add_route("POST", f"{path}/", partial(_without_slash, path))


async def _version(_request: web.Request) -> web.Response:
    return web.Response(text=version())


async def _without_slash(path: str, _request: web.Request) -> web.Response:
    return web.Response(status=307, headers={"Location": path})


async def _no_bind(_body: bytes) -> bytes:
    return protocol.binding_result(NO_BIND)


async def _filter(
    server: ExtenderServer, predicate: Predicate, directory: NodeDirectory, body: bytes
) -> bytes:
    asked = protocol.candidates(body)
    nodes = _nodes(asked, directory)
    refused = {name: why for name in asked.names if (why := directory.refusal(name, nodes.get(name)))}
    failed = predicate(asked.pod, {name: node for name, node in nodes.items() if name not in refused})
    passing = [name for name in asked.names if name not in failed and name not in refused]
    server.filtered(asked)
    return protocol.filter_result(asked, passing, failed, refused)


async def _prioritize(priority: Priority, directory: NodeDirectory, body: bytes) -> bytes:
    asked = protocol.candidates(body)
    points = priority(asked.pod, _nodes(asked, directory))
    return msgspec.json.encode([{"Host": name, "Score": points.get(name, 0)} for name in asked.names])


def _nodes(asked: protocol.Candidates, directory: NodeDirectory) -> dict[str, Mapping[str, Any]]:
    found = asked.nodes if asked.nodes is not None else {name: directory.node(name) for name in asked.names}
    return {name: node for name, node in found.items() if node is not None}
