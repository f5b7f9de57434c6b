"""The settings of the multi-scheduler and of the annotator, and their file, for which ``--wait-for-config`` waits.

Beside those of the lower clusters, these are agents, weights and usage. With ``--wait-for-config``, a replica with an
unusable configuration reports the error, is not ready, and retries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from clusterset import config as usage_config
from clusterset import following, validation
from clusterset.config import ClusterSet, UsageConfig
from clusterset.reading import ConfigFile
from controller_runtime import log
from controller_runtime.apimachinery.decoding import ConfigStruct
from controller_runtime.errors import ConfigError
from controller_runtime.process.program import HealthSettings
from controller_runtime.process.settings import FILE_ONLY, UPPER, Setting


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


class ProcessSettings(HealthSettings, kw_only=True):
    """The settings that both programs share, and the content of their configuration file."""

    config_file: Annotated[str, Setting(UPPER, "--config FILE")] = ""
    """Lower clusters, agents and weights: YAML, or tensile-kube's JSON."""
    waits: Annotated[bool, Setting(UPPER, "--wait-for-config")] = False
    """While --config, or a file that it names, cannot be used: report the error and wait, not ready, instead of
    exiting."""
    config: Annotated[Config, FILE_ONLY] = msgspec.field(default_factory=Config)
    rejected: str = ""
    """Why the configuration cannot be used, with ``--wait-for-config``; empty: it can be parsed."""

    def check(self) -> None:
        """Read the configuration, and check the settings together, see ``ProgramSettings.check``.

        Raises:
            ConfigError: ``--config`` is missing, or the configuration is unusable and ``--wait-for-config`` is off.
        """
        if not self.config_file:
            raise ConfigError("--config: required; the file lists the lower clusters")
        try:
            self.config = load(self.config_file)
        except ConfigError as error:
            if not self.waits:
                raise
            self.rejected = str(error)


_AGAIN = 30.0
"""Seconds after which an unchanged configuration is tried again, because a kubeconfig that it names may have changed."""
Settings = TypeVar("Settings", bound=ProcessSettings)


async def run(options: Settings, program: str, work: Callable[[Settings], Awaitable[None]]) -> None:
    """Run the program until cancelled; wait while its configuration cannot be used.

    Args:
        options: the parsed command line.
        program: name for the log.
        work: the program. It raises ConfigError if the configuration cannot be used.

    Raises:
        ConfigError: the configuration cannot be used, and ``--wait-for-config`` is off.
    """
    while True:
        if options.rejected:
            options = await _usable(options, program)
        try:
            await work(options)
        except ConfigError as error:
            if not options.waits:
                raise
            options = msgspec.structs.replace(options, rejected=str(error))
        else:
            return


async def _usable(options: Settings, program: str) -> Settings:
    """Report the rejected configuration until a changed file can be read, or a retry is due; return the new options."""
    logger, loop = log.get_logger(component=program), asyncio.get_running_loop()
    why, retry_at = "", loop.time() + _AGAIN

    def report(rejected: str) -> None:
        nonlocal why
        if rejected != why:
            why = rejected
            logger.error("configuration not applied", error=why)

    async def read() -> Settings:
        try:
            config = load(options.config_file)
        except ConfigError as error:
            return msgspec.structs.replace(options, rejected=str(error))
        if config == options.config and loop.time() < retry_at:
            return options
        return msgspec.structs.replace(options, config=config, rejected="")

    report(options.rejected)
    async with following.unready(options.health_addr, lambda: why):
        return await following.until_usable(options, read, report)
