"""Replicas of the extender that share a Lease in memory, in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from multi_scheduler.extender.active import ActiveReplica, NotActiveError, lease_candidate
from tests.background import working
from tests.unit.controller_runtime.leaderelection.election import KEY, Client, Store

NAMESPACE, NAME = KEY.split("/")


class Replica:
    """One process, without agents: its calls succeed if it is active."""

    def __init__(self, store: Store, identity: str) -> None:
        self.client = Client(store)
        self.caught_up = 0
        """How often it has read the bound pods."""
        self.error: Exception | None = None
        """Why the bound pods cannot be read."""
        self._identity = identity
        self._starts = 0
        self.restart()

    def restart(self) -> None:
        """Start again as a new process, with another identity if it is not the first one."""
        candidate = lease_candidate(self.client, NAMESPACE, NAME)
        candidate.identity = f"{self._identity}{self._starts or ''}"
        self._starts += 1
        self.active = ActiveReplica(candidate, catch_up=self._catch_up, binds=True)

    async def _catch_up(self) -> None:
        if self.error is not None:
            raise self.error
        self.caught_up += 1

    async def call(
        self,
        verb: str = "filter",
        *,
        seconds: float = 0.0,
        during: Callable[[], Awaitable[None]] | None = None,
    ) -> str:
        """Process a call; return why it is refused, or an empty text.

        Args:
            verb: the scheduler's verb.
            seconds: how long the agents take.
            during: happens while they decide.
        """
        try:
            async with self.active.call(verb):
                await asyncio.sleep(seconds)
                if during is not None:
                    await during()
        except NotActiveError as error:
            return str(error)
        return ""

    async def call_until(self, *, answered: bool, every: float = 0.1) -> str:
        """Call until a call is answered, or refused; return why it is refused."""
        while True:
            refusal = await self.call()
            if answered is not bool(refusal):
                return refusal
            await asyncio.sleep(every)

    def suspend(self, seconds: float) -> None:
        """Let time pass for the authority, as if the process had not run."""
        assert self.active.candidate._renewed_at is not None
        self.active.candidate._renewed_at -= seconds

    async def keep_calling(self, *, every: float = 1.0) -> None:
        """Call until cancelled."""
        while True:
            await self.call()
            await asyncio.sleep(every)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.Task[None]]:
        """Run it; leaving stops it as SIGTERM does."""
        async with working(self.active.run()) as task:
            await asyncio.sleep(0)  # its first step
            yield task
