"""The settings of leader election; their flags are named as in Kubernetes components."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Annotated

import msgspec
from aiohttp.typedefs import Handler

from controller_runtime import resources
from controller_runtime.cache.informer import Informer, unsynced
from controller_runtime.client.client import Client
from controller_runtime.client.connecting import connected
from controller_runtime.errors import ConfigError
from controller_runtime.leaderelection.elector import JITTER, LeaderElector
from controller_runtime.process import lifecycle
from controller_runtime.process.flags import duration
from controller_runtime.process.program import HealthSettings
from controller_runtime.process.settings import PROCESS, UPPER, Positive, Setting
from controller_runtime.serving.server import HealthServer


class Election(msgspec.Struct, kw_only=True):
    """How replicas of a program elect the one that works."""

    enabled: Annotated[bool, Setting(PROCESS, "--leader-elect")] = True
    """Only one of several replicas works."""
    lease_duration: Annotated[float, Setting(PROCESS, "--leader-elect-lease-duration D", parse=duration)] = (
        15.0
    )
    """Time without renewal after which another replica takes over."""
    renew_deadline: Annotated[float, Setting(PROCESS, "--leader-elect-renew-deadline D", parse=duration)] = (
        10.0
    )
    """Time after which a leader that cannot renew its Lease stops working."""
    retry_period: Annotated[float, Setting(PROCESS, "--leader-elect-retry-period D", parse=duration)] = 2.0
    """Time between attempts to acquire or renew the Lease."""

    async def lead(
        self,
        client: resources.ObjectClient,
        work: Callable[[], Awaitable[None]],
        *,
        name: str,
        namespace: str,
    ) -> None:
        """Do the work while this replica leads, or at once without election, until cancelled.

        Args:
            client: a client of the cluster with the Lease.
            work: called for each term as leader; cancelled at the end of the term.
            name: name of the Lease.
            namespace: namespace of the Lease.
        """
        if not self.enabled:
            await work()
            return
        await LeaderElector(
            client,
            namespace=namespace,
            name=name,
            on_started=work,
            lease_duration=self.lease_duration,
            renew_deadline=self.renew_deadline,
            retry_period=self.retry_period,
        ).run()

    def check(self) -> None:
        """Check the times together.

        Raises:
            ConfigError: the times contradict each other; the message names the flags.
        """
        if not self.lease_duration > self.renew_deadline > self.retry_period * JITTER > 0:
            raise ConfigError(
                "--leader-elect-lease-duration must be more than --leader-elect-renew-deadline, "
                f"and that more than {JITTER} × --leader-elect-retry-period"
            )


class ControllerSettings(HealthSettings, kw_only=True):
    """The settings of a controller of which one of several replicas works."""

    qps: Annotated[Positive, Setting(UPPER, "--kube-api-qps N")] = 50.0
    """Requests per second."""
    burst: Annotated[int, Setting(UPPER, "--kube-api-burst N")] = 100
    """Burst of requests."""
    election: Election = msgspec.field(default_factory=Election)

    def check(self) -> None:
        """Check the settings together, see ``ProgramSettings.check``."""
        self.election.check()


Synced = Callable[[], Awaitable[None]]
"""Returns when the caches have been read."""
Prepared = tuple[Sequence[Informer], Callable[[Synced], Awaitable[None]]]
"""The caches, and the work of each term as leader. It does what can fail without the caches before it calls Synced."""


async def run(
    program: str,
    options: ControllerSettings,
    prepare: Callable[[Client], Prepared],
    *,
    namespace: str,
    routes: Mapping[str, Handler] = MappingProxyType({}),
) -> None:
    """Connect to the upper cluster, serve health, run the caches and, as leader, the work, until cancelled.

    Args:
        program: name of the program and of the Lease.
        options: the controller's options.
        prepare: creates the caches and the work.
        namespace: namespace of the Lease.
        routes: path → handler of additional GET requests on the health address.

    Raises:
        ConfigError: the kubeconfig is wrong.
        ExceptionGroup: contains the errors of the caches and of the work, such as a ConfigError.
    """
    upper = connected(
        options.kubeconfig,
        server=options.master,
        cluster="upper",
        user_agent=program,
        qps=options.qps,
        burst=options.burst,
    )
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(upper)
        informers, work = prepare(client)

        async def synced() -> None:
            for informer in informers:
                await informer.wait_synced()
            lifecycle.tune_gc()

        if options.health_addr:
            server = HealthServer(options.health_addr, checks={"caches": lambda: unsynced(informers)})
            for path, handler in routes.items():
                server.add_route("GET", path, handler)
            await stack.enter_async_context(server)
        await stack.enter_async_context(lifecycle.collecting_garbage())
        group = await stack.enter_async_context(asyncio.TaskGroup())
        for informer in informers:
            group.create_task(informer.run(), name=informer.name)
        await options.election.lead(client, partial(work, synced), name=program, namespace=namespace)
