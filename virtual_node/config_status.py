"""Follows the configuration file, and reports rejected content by a log line, a metric and an event of the pod.

Also lets a replica that cannot use its configuration file report why, and wait for a usable file (``clusterset.following``).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
import structlog

from clusterset import following
from controller_runtime.auth import kubeconfig
from controller_runtime.client.client import Client
from controller_runtime.errors import ConfigError
from controller_runtime.events import EventRecorder
from controller_runtime.process import lifecycle
from controller_runtime.util import event_loop
from controller_runtime.util.file_changes import FileChanges
from virtual_node import metrics
from virtual_node.cluster import start_checks
from virtual_node.cluster.lower_cluster import COMPONENT
from virtual_node.config import file as config_file
from virtual_node.config.command_line import DaemonSettings
from virtual_node.config.types import Config
from virtual_node.examine import facts
from virtual_node.examine.components import APPLIED, REJECTED
from virtual_node.examine.facts import known
from virtual_node.examine.health import Health
from virtual_node.examine.rules.nodes import rejected

_LOOK = 2.0
"""Seconds between two checks for lower clusters that cannot be used."""
_REPEAT = 600.0
"""Seconds between two events of the same rejection; API servers keep events for an hour."""


@dataclass(eq=False, repr=False)
class ConfigStatus:
    """The state of the configuration file in a replica.

    Attributes:
        rejected: why the file is not used (file, field and error); empty while its content is used.
    """

    file: str
    """Path of the configuration file; empty: the replica has none."""
    _: KW_ONLY
    environment: Mapping[str, str] | None = None
    """Variables that name the replica's pod; None: the process's. Without a pod, no events are written."""
    unusable: Callable[[], Mapping[str, str]] = dict
    """Returns why lower clusters of the configuration cannot be used, by name."""

    def __post_init__(self) -> None:
        """Begin with the current content of the file, which counts as used until ``reject`` is called."""
        self.rejected = ""
        self._changes = FileChanges({"config": self.file})
        self._at_start = _loaded(self.file)
        self._pod = _pod(os.environ if self.environment is None else self.environment)
        self._changed = asyncio.Event()
        self._log = structlog.get_logger(component=COMPONENT)
        metrics.CONFIG_REJECTED.set(0)

    def reread(self) -> Config | None:
        """Return the configuration if the file has changed and can be used, otherwise None; report an error."""
        if not self._changes.changed({"config": self.file}):
            return None
        try:
            fresh = config_file.load(self.file)
        except Exception as error:  # noqa: BLE001 - no file content may stop running clusters
            self.reject(lifecycle.describe(error) or repr(error))
            return None
        self.accept()
        if waiting := _differing(self._at_start, fresh):
            self._log.warning(
                "only changes of clusters are applied; restart to apply the others", fields=waiting
            )
        return fresh

    def reject(self, reason: str) -> None:
        """Report by log, metric and event that the content of the file is not used."""
        if reason != self.rejected:
            self._log.error("configuration not applied", error=reason)
        self._set(reason)

    def accept(self) -> None:
        """Report by metric and event that the content of the file is used."""
        self._set("")

    def _set(self, reason: str) -> None:
        metrics.CONFIG_REJECTED.set(bool(reason))
        if reason != self.rejected:
            self.rejected = reason
            self._changed.set()

    async def publish(self, upper: Client) -> None:
        """Write events about the replica's pod until cancelled; return immediately if it has no pod.

        Args:
            upper: the upper cluster.
        """
        if self._pod is None:
            return
        recorder = EventRecorder(upper, component=COMPONENT, host=socket.gethostname())
        async with asyncio.TaskGroup() as group:
            group.create_task(recorder.run())
            group.create_task(self._repeat(recorder, self._pod))

    async def _repeat(self, recorder: EventRecorder, pod: Mapping[str, Any]) -> None:
        reported, again = "", 0.0
        while True:
            self._changed.clear()
            trouble = self._trouble()
            if trouble and (trouble != reported or event_loop.now() >= again):
                recorder.event(pod, "Warning", REJECTED, trouble)
                again = event_loop.now() + _REPEAT
            elif reported and not trouble:
                recorder.event(pod, "Normal", APPLIED, "the content of the configuration file is used")
            reported = trouble
            await event_loop.wait(self._changed, _LOOK)

    def _trouble(self) -> str:
        """Return which parts of the configuration are not used, and why; empty: all are used."""
        clusters = [
            f"lower cluster {name} cannot be used: {why}" for name, why in sorted(self.unusable().items())
        ]
        return "; ".join(([self.rejected] if self.rejected else []) + clusters)


def _loaded(path: str) -> Config | None:
    """Return the configuration in a file; None: there is no file, or it cannot be used."""
    try:
        return config_file.load(path) if path else None
    except ConfigError:
        return None


def _differing(old: Config | None, new: Config) -> list[str]:
    """Return the fields, as named in the file, that differ and that a running process does not apply."""
    fields = zip(Config.__struct_fields__, Config.__struct_encode_fields__, strict=True)
    return [
        shown
        for field, shown in fields
        if old is not None and field != "clusters" and getattr(old, field) != getattr(new, field)
    ]


def _pod(environment: Mapping[str, str]) -> dict[str, Any] | None:
    """Return a reference to the process's pod; None: there is no pod, or the environment does not name it."""
    names = {key: environment.get(f"POD_{key.upper()}", "") for key in ("namespace", "name", "uid")}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": names} if names["name"] else None


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
    return Health(tuple(rejected(known(datetime.now(UTC), {facts.REJECTED: {"": status.rejected}}))))


async def _publish(config: Config, status: ConfigStatus) -> None:
    """Write events, if the known configuration suffices to reach the upper cluster."""
    try:
        upper = await kubeconfig.load(config.kubeconfig, server=config.server)
    except ConfigError as error:
        structlog.get_logger(component=COMPONENT).warning("no event is written", error=str(error))
        return
    async with Client(upper, user_agent=COMPONENT, cluster="upper") as client:
        await status.publish(client)
