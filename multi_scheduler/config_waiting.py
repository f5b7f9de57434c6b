"""A replica that cannot use its configuration (``--wait-for-config``): it reports why, is not ready, and tries again."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Awaitable, Callable

from controller_runtime import log
from controller_runtime.errors import ConfigError
from controller_runtime.serving.server import HealthServer
from multi_scheduler import config as configuration
from multi_scheduler.flags import PROGRAM, Options

_POLL = 2.0
"""Seconds between two looks at the file."""
_AGAIN = 30.0
"""Seconds after which a configuration is tried again though its file has not changed: what it names may have."""


async def run(options: Options, work: Callable[[Options], Awaitable[None]]) -> None:
    """Work by the options until cancelled; wait wherever their configuration cannot be used.

    Args:
        options: those read first.
        work: the program by options that can be used.

    Raises:
        ConfigError: it cannot be used, and the options do not say that this is waited for.
    """
    while True:
        if options.rejected:
            options = await _usable(options)
        try:
            await work(options)
        except ConfigError as error:
            if not options.waits:
                raise
            options = dataclasses.replace(options, rejected=str(error))
        else:
            return


async def _usable(options: Options) -> Options:
    """Report a rejected configuration until the file has changed and can be read, or is to be tried again."""
    logger = log.get_logger(component=PROGRAM)
    logger.error("configuration not applied", error=options.rejected)
    async with contextlib.AsyncExitStack() as stack:
        why = options.rejected
        if options.health_address:
            # An occupied address is reported by the log alone.
            with contextlib.suppress(ConfigError):
                checks = {"configuration": lambda: why}
                await stack.enter_async_context(HealthServer(options.health_address, checks=checks))
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
                return dataclasses.replace(options, config=config, rejected="")
