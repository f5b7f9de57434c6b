"""Agents: what decides and scores. Several work at once; each is one module, found by its entry point.

Entry points are in group ``virtual_node.multi_scheduler.agents``; each names a callable that takes an
``AgentContext`` and returns an ``Agent``. ``docs/agents.md`` shows how to write one in ten minutes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import Client
from controller_runtime.errors import ConfigError
from multi_scheduler.config import ClusterConfig
from multi_scheduler.view import View

GROUP = "virtual_node.multi_scheduler.agents"


@dataclass(frozen=True, slots=True)
class VirtualNode:
    """A node of the upper cluster that stands for lower ones."""

    name: str
    cluster: str
    """The lower cluster's name in the configuration."""
    labels: Mapping[str, str]
    pool: Mapping[str, str]
    """Labels that all lower nodes behind it have."""
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AgentContext:
    """What an agent may use."""

    name: str
    settings: Mapping[str, Any]
    """The agent's own part of the configuration."""
    upper: Client
    lower: Mapping[str, Client]
    """By name of the lower cluster; so are ``clusters``."""
    clusters: Mapping[str, ClusterConfig] = field(default_factory=dict)
    """What the configuration says about them."""
    bound_pods: Informer | None = None
    """The upper pods that are bound, shared by all agents; the multi-scheduler runs it. None: the agent follows them."""
    view: View | None = None
    """All lower clusters, as every agent sees them."""

    def use_view(self) -> View:
        """Return the view, which is filled from then on.

        Raises:
            ConfigError: there is none.
        """
        if self.view is None:
            raise ConfigError(f"agents[{self.name}]: there is no view of the lower clusters")
        self.view.is_used = True
        return self.view


@dataclass(frozen=True, slots=True)
class Rejections:
    """The nodes that an agent rules out, with the reasons that people will read."""

    resolvable: Mapping[str, str]
    """Preempting other pods could help."""
    unresolvable: Mapping[str, str]
    """Nothing that the scheduler could do would help."""


NOTHING = Rejections({}, {})


class Agent:
    """Base of all agents: filters nothing, scores nothing, has nothing to run."""

    async def run(self) -> None:
        """Follow whatever the agent knows from, until cancelled."""
        await asyncio.Event().wait()

    def unready(self) -> str | None:
        """Why the agent cannot answer yet, for ``/readyz``; None when it can."""
        return None

    async def filter(self, pod: Mapping[str, Any], nodes: Sequence[VirtualNode]) -> Rejections:
        """The nodes that must not take a pod."""
        return NOTHING

    def filtered(self, pod: Mapping[str, Any], passing: Sequence[VirtualNode]) -> None:
        """All agents have spoken: these nodes are left, and the scheduler will choose one of them."""

    async def score(self, pod: Mapping[str, Any], nodes: Sequence[VirtualNode]) -> Mapping[str, float] | None:
        """How good each node would be, from 0 to 1; None: the agent does not score."""
        return None

    async def preempt(
        self, pod: Mapping[str, Any], node: VirtualNode, victims: Sequence[str]
    ) -> Sequence[str] | None:
        """The upper pods (uids) that have to go for a pod to fit on a node; None: nobody's end would help.

        Args:
            pod: the pod that needs room.
            node: where.
            victims: whom the scheduler, or the agent before, would take.
        """
        return victims

    def bound(self, uid: str, node: str) -> None:
        """We have bound a pod ourselves (``--bind``)."""


def load(name: str, context: AgentContext) -> Agent:
    """Make an agent by the name of its entry point.

    Raises:
        ConfigError: there is no such agent, or it does not load; says which there are.
    """
    known = {point.name: point for point in metadata.entry_points(group=GROUP)}
    if name not in known:
        raise ConfigError(
            f"agents: {name!r} is unknown; installed are {', '.join(sorted(known)) or 'none (is the package installed?)'}"
        )
    try:
        made = known[name].load()(context)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"agents: {name!r} does not load: {error}") from error
    if not isinstance(made, Agent):
        raise ConfigError(f"agents: {name!r} makes a {type(made).__name__}, not an Agent")
    return made
