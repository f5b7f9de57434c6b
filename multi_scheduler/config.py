"""The settings of the multi-scheduler beside those of the lower clusters: agents, weights and usage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from clusterset import config as usage_config
from clusterset import validation
from clusterset.config import ClusterSet, UsageConfig
from clusterset.reading import ConfigFile
from controller_runtime.apimachinery.decoding import ConfigStruct


class AgentConfig(ConfigStruct):
    """One agent."""

    name: str
    """Name of the agent's entry point."""
    weight: Annotated[float, Meta(ge=0)] = 1.0
    """Weight of the agent's scores among all agents. 0: the agent only filters."""
    config: dict[str, Any] = {}
    """Settings of the agent."""


class Config(ClusterSet):
    """The configuration of the multi-scheduler and of the annotator."""

    usage: UsageConfig = msgspec.field(default_factory=UsageConfig)
    """Source of the usage of lower nodes."""
    upper_usage: UsageConfig | None = None
    """Source of the usage of the upper cluster's real nodes, which agents then score like lower nodes. null: agents do
    not score real nodes."""
    unknown_nodes: Literal["Reject", "Pass"] = "Reject"
    """What happens to virtual nodes of the upper cluster (label ``type=virtual-kubelet``) that belong to none of the lower
    clusters. Reject: no pod gets them, and the reason names the missing entry. Pass: pods get them without any check."""
    agents: list[AgentConfig] = msgspec.field(default_factory=lambda: [AgentConfig(name="fit")])


def problems(config: Config) -> Iterator[str]:
    """Yield the problems of a configuration beyond its types, each as ``field: problem``."""
    yield from validation.problems(config)
    if not config.clusters and config.cluster_profiles is None:
        yield "clusters: at least one lower cluster is required"
    yield from usage_config.problems("usage", config.usage)
    if config.upper_usage is not None:
        yield from usage_config.problems("upperUsage", config.upper_usage)
    if not config.agents:
        yield "agents: at least one agent is required, such as fit"
    names = [agent.name for agent in config.agents]
    yield from (
        f"agents: {name}: there twice" for name in sorted({name for name in names if names.count(name) > 1})
    )


_FILE = ConfigFile(Config, problems)
load, parse = _FILE.load, _FILE.parse
