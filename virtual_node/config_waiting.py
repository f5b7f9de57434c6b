"""Lets a replica that cannot use its configuration file report why, and wait for a usable file (``clusterset.following``)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec
import structlog

from clusterset import following
from controller_runtime.auth import kubeconfig
from controller_runtime.client.client import Client
from controller_runtime.errors import ConfigError
from controller_runtime.process import lifecycle
from virtual_node.cluster import start_checks
from virtual_node.cluster.lower_cluster import COMPONENT
from virtual_node.config.command_line import DaemonSettings
from virtual_node.config.types import Config
from virtual_node.config_status import ConfigStatus
from virtual_node.examine.facts import known
from virtual_node.examine.health import Health
from virtual_node.examine.rules.nodes import rejected


class Waiting:
    """Waits for a usable file.

    Attributes:
        options: the options that were read last.
        is_over: ``run`` has returned, and the configuration of the options can be used.
    """

    def __init__(self, options: DaemonSettings, parse: Callable[[], DaemonSettings]) -> None:
        """Begin with options that were rejected, or whose configuration names files that cannot be used.

        Args:
            options: the valid part of the configuration names the addresses to serve and the upper cluster.
            parse: reads the same command line and file again.
        """
        self.options, self.is_over = options, False
        self._parse = parse

    async def run(self) -> None:
        """Report the rejected configuration until the file can be used.

        Raises:
            OSError: an address cannot be bound.
        """
        self.options = await _checked(self.options)
        while self.options.rejected:
            await self._wait()
            # Writing the last event may have taken a second, in which the file may have changed.
            self.options = await _checked(self._parse())
        self.is_over = True

    async def _wait(self) -> None:
        status = ConfigStatus(self.options.config_file)
        status.reject(self.options.rejected)
        async with contextlib.AsyncExitStack() as stack:
            await _serve(self.options.config, status, stack)
            await stack.enter_async_context(lifecycle.beside(_publish(self.options.config, status)))
            self.options = await following.until_usable(
                self.options, lambda: _checked(self._parse()), status.reject
            )
            status.accept()
            await asyncio.sleep(0)  # lets the event be queued; it is written while the stack closes


async def _checked(options: DaemonSettings) -> DaemonSettings:
    """Return the options, marked as rejected if their configuration names files that cannot be used."""
    why = options.rejected or await start_checks.unusable(options.config)
    return msgspec.structs.replace(options, rejected=why)


async def _serve(config: Config, status: ConfigStatus, stack: contextlib.AsyncExitStack) -> None:
    """Serve health, metrics and the page if configured; skip an invalid address."""
    await stack.enter_async_context(
        following.unready(config.metrics_address, lambda: status.rejected or None)
    )
    if config.web_address:
        from virtual_node.web.overview import Overview  # noqa: PLC0415 - loaded only if the page is served
        from virtual_node.web.server import WebServer  # noqa: PLC0415

        with contextlib.suppress(ConfigError):
            overview = Overview({}, health=lambda: _health(status))
            await stack.enter_async_context(WebServer(config.web_address, overview=overview))


def _health(status: ConfigStatus) -> Health:
    return Health(tuple(rejected(known(datetime.now(UTC), rejected={"": status.rejected}))))


async def _publish(config: Config, status: ConfigStatus) -> None:
    """Write events, if the known configuration suffices to reach the upper cluster."""
    try:
        upper = await kubeconfig.load(config.kubeconfig, server=config.server)
    except ConfigError as error:
        structlog.get_logger(component=COMPONENT).warning("no event is written", error=str(error))
        return
    async with Client(upper, user_agent=COMPONENT, cluster="upper") as client:
        await status.publish(client)
