"""The interface of agents. An agent filters and scores virtual nodes; the answers of several agents are combined.

Agents are entry points in group ``virtual_node.multi_scheduler.agents``. Each entry point names a callable that takes an
``AgentContext`` and returns an ``Agent``. ``docs/operate/agents.md`` shows how to write one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, TypeVar

import msgspec

from clusterset.config import Cluster
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import Client
from controller_runtime.errors import ConfigError
from controller_runtime.events import EventRecorder
from multi_scheduler.state.cluster_state import ClusterState
from multi_scheduler.view import View
from multi_scheduler.virtual_node import VirtualNode

GROUP = "virtual_node.multi_scheduler.agents"
S = TypeVar("S", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class AgentContext:
    """Everything that an agent may use."""

    name: str
    settings: Mapping[str, Any]
    """The ``config`` of the agent's entry in the configuration."""
    upper: Client
    lower: Mapping[str, Client]
    """Clients by name of the lower cluster. ``clusters`` has the same keys. Lower clusters come and go while agents run."""
    clusters: Mapping[str, Cluster] = field(default_factory=dict)
    """Configuration of the lower clusters."""
    bound_pods: Informer | None = None
    """Informer of the bound upper pods, which the multi-scheduler runs for all agents. None: there is no shared one."""
    view: View | None = None
    """Read-only state of all lower clusters, shared by all agents."""
    state: ClusterState | None = None
    """The state behind the view, where the fit agent reserves room."""
    recorder: EventRecorder | None = None
    """Writes events to the upper cluster. None: no events are written."""
    find_node: Callable[[str], VirtualNode | None] = lambda _name: None
    """Returns a virtual node by its name; None: there is no such virtual node."""

    def cluster_of(self, node: str) -> str | None:
        """Return the lower cluster of a virtual node by the node's name; None: there is no such virtual node."""
        found = self.find_node(node)
        return found.cluster if found is not None else None

    def read_settings(self, kind: type[S]) -> S:
        """Return ``settings`` as a struct.

        Raises:
            ConfigError: a setting is wrong.
        """
        try:
            return msgspec.convert(dict(self.settings), kind)
        except msgspec.ValidationError as error:
            raise ConfigError(f"agents[{self.name}].config: {error}") from None

    def use_view(self) -> View:
        """Return the view, and mark it as used, so that the multi-scheduler fills it.

        Raises:
            ConfigError: there is no view.
        """
        if self.view is None:
            raise ConfigError(
                f"agents[{self.name}]: the view of the lower clusters is missing in its context"
            )
        self.view.is_used = True
        return self.view


@dataclass(frozen=True, slots=True)
class Rejections:
    """The nodes that an agent rejects: by node name, the reason that users see."""

    resolvable: Mapping[str, str]
    """Nodes where preempting other pods could make room."""
    unresolvable: Mapping[str, str]
    """Nodes where preempting pods does not help."""
    transient: str = ""
    """Why the rejections may be wrong in a few seconds, so that the scheduler must try again if no node is left; empty:
    they are final until an object changes. kube-scheduler does not try a rejected pod again by itself."""


NOTHING = Rejections({}, {})


class Agent:
    """Base of all agents: rejects no node, does not score, runs nothing."""

    is_last = False
    """Whether the agent is asked after all others, because it passes only some of the nodes that could take a pod."""

    async def run(self) -> None:
        """Keep the agent's data current until cancelled."""
        await asyncio.Event().wait()

    def unready(self) -> str | None:
        """Return why the agent cannot answer yet, for ``/readyz``; None if it can."""
        return None

    async def filter(self, pod: Mapping[str, Any], nodes: Sequence[VirtualNode]) -> Rejections:
        """Return the nodes that must not take the pod."""
        return NOTHING

    def bars_real_nodes(self, pod: Mapping[str, Any]) -> str:
        """Return why a pod must not use real nodes of the upper cluster; empty: the scheduler decides about them."""
        return ""

    def filtered(self, pod: Mapping[str, Any], passing: Sequence[VirtualNode]) -> None:
        """Receive the nodes that passed the filters of all agents; the scheduler chooses among them."""

    async def score(self, pod: Mapping[str, Any], nodes: Sequence[VirtualNode]) -> Mapping[str, float] | None:
        """Return a score from 0 to 1 for each node; None: the agent does not score."""
        return None

    async def score_real(self, pod: Mapping[str, Any], names: Sequence[str]) -> Mapping[str, float]:
        """Return scores of real upper nodes on the scale of ``score``; a node without a score is neutral."""
        return {}

    async def preempt(
        self, pod: Mapping[str, Any], node: VirtualNode, victims: Sequence[str]
    ) -> Sequence[str] | None:
        """Return UIDs of the upper pods to evict so that the pod fits on the node; None: preemption does not help.

        Args:
            pod: the pod that needs room.
            node: the virtual node on which the pod needs room.
            victims: UIDs that the scheduler, or the previous agent, chose.
        """
        return victims

    def annotations(self, uid: str, node: str) -> Mapping[str, str]:
        """Return annotations that a pod gets when the extender binds it to a node (``--bind``)."""
        return {}

    def bars_binding(self, uid: str, node: str) -> str:
        """Return why the extender must not bind a pod to a node now (``--bind``); empty: it may."""
        return ""

    def bound(self, uid: str, node: str) -> None:
        """Record that the extender, not the scheduler, bound a pod (``--bind``)."""


def load(name: str, context: AgentContext) -> Agent:
    """Create an agent by the name of its entry point.

    Raises:
        ConfigError: the agent does not load, or is not installed; then the message lists installed agents.
    """
    known = {point.name: point for point in metadata.entry_points(group=GROUP)}
    if name not in known:
        raise ConfigError(
            f"agents: {name!r} is not installed; installed agents: {', '.join(sorted(known)) or 'none (is the package installed?)'}"
        )
    try:
        made = known[name].load()(context)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"agents: {name!r} does not load: {error}") from error
    if not isinstance(made, Agent):
        raise ConfigError(f"agents: {name!r} returned {type(made).__name__} instead of an Agent")
    return made
