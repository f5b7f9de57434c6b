"""``--wait-for-config``: a replica with an unusable configuration reports the error, is not ready, and retries."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from controller_runtime import log
from controller_runtime.errors import ConfigError
from controller_runtime.serving.server import HealthServer
from multi_scheduler import config as configuration
from multi_scheduler.process.settings import ProcessSettings

_POLL = 2.0
"""Seconds between checks of the file."""
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
    logger = log.get_logger(component=program)
    logger.error("configuration not applied", error=options.rejected)
    async with contextlib.AsyncExitStack() as stack:
        why = options.rejected
        if options.health_addr:
            # If the address is in use, the log is the only report.
            with contextlib.suppress(ConfigError):
                checks = {"configuration": lambda: why}
                await stack.enter_async_context(HealthServer(options.health_addr, checks=checks))
        waited = 0.0
        while True:
            await asyncio.sleep(_POLL)
            waited += _POLL
            try:
                config = configuration.load(options.config_file)
            except ConfigError as error:
                if str(error) != why:
                    why = str(error)
                    logger.error("configuration not applied", error=why)  # noqa: TRY400 - one clear line
                continue
            if config != options.config or waited >= _AGAIN:
                return msgspec.structs.replace(options, config=config, rejected="")
