"""The settings that both programs share, and their configuration file, which ``--wait-for-config`` waits for.

With ``--wait-for-config``, a replica with an unusable configuration reports the error, is not ready, and retries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

import msgspec

from clusterset import following
from controller_runtime import log
from controller_runtime.errors import ConfigError
from controller_runtime.process.program import HealthSettings
from controller_runtime.process.settings import FILE_ONLY, UPPER, Setting
from multi_scheduler import config as configuration
from multi_scheduler.config import Config


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
            self.config = configuration.load(self.config_file)
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
            config = configuration.load(options.config_file)
        except ConfigError as error:
            return msgspec.structs.replace(options, rejected=str(error))
        if config == options.config and loop.time() < retry_at:
            return options
        return msgspec.structs.replace(options, config=config, rejected="")

    report(options.rejected)
    async with following.unready(options.health_addr, lambda: why):
        return await following.until_usable(options, read, report)
