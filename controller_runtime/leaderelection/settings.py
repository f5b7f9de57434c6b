"""The settings of leader election; their flags are named as in Kubernetes components."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

import msgspec

from controller_runtime import resources
from controller_runtime.errors import ConfigError
from controller_runtime.leaderelection.elector import JITTER, LeaderElector
from controller_runtime.process.flags import duration
from controller_runtime.process.program import HealthSettings
from controller_runtime.process.settings import PROCESS, UPPER, Positive, Setting


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
