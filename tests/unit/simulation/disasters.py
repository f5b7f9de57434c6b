"""What befalls networks, servers and our processes. Each action returns what it was; empty: nothing."""

from __future__ import annotations

import asyncio
import contextlib
from typing import ClassVar

from controller_runtime.errors import ApiError
from tests.unit.simulation.actions import Actor
from tests.unit.simulation.network import Weather

_KINDS = ("pods", "pods", "configmaps", "secrets", "namespaces", "services", "endpointslices")


class Disasters(Actor):
    """Weather and accidents."""

    _weights: ClassVar = {"kill": 1.5, "stay_away": 0.5}

    # --- networks and servers ---------------------------------------------------------------------

    def go_down(self) -> str:
        return self._switch("down", 0.7)

    def fall_silent(self) -> str:
        return self._switch("silent", 0.5)

    def make_errors(self) -> str:
        name, weather = self._any_weather()
        weather.errors = self._chance.choice([0, 0, 0.3, 0.9])
        weather.losing = self._chance.choice([0, 0, 0.2, 0.7])
        weather.conflicts = self._chance.choice([0, 0, 0.3])
        weather.slow = self._chance.choice([0, 0.1, 0.5])
        return f"{name} {weather.errors} losing {weather.losing} conflicts {weather.conflicts} slow {weather.slow}"

    def be_late(self) -> str:
        name, weather = self._any_weather()
        weather.lag = self._chance.choice([0, 0.1, 3, 20])
        return f"{name} {weather.lag}"

    def hold_watches(self) -> str:
        name, weather = self._any_weather()
        weather.held ^= {self._chance.choice(_KINDS)}
        self._world.news()
        return f"{name} {sorted(weather.held)}"

    def calm_down(self) -> str:
        calm = [name for name in self._world.weathers if self._chance.random() < 0.7]
        for name in calm:
            self._world.weathers[name].clear()
        self._world.news()
        return " ".join(calm)

    def break_watches(self) -> str:
        process = self._world.processes[self._any_process()]
        connection = self._chance.choice(process.connections)
        connection.break_watches()
        return f"{connection.who} {connection.cluster}"

    def compact(self) -> str:
        """Old versions go, and most watches have to begin anew."""
        server = self._chance.choice(self._world.servers)
        server.floor = server.version
        for process in self._world.processes.values():
            for connection in process.connections:
                if connection.server is server and self._chance.random() < 0.7:
                    connection.break_watches()
        return server.name

    # --- processes --------------------------------------------------------------------------------

    async def restart(self) -> str:
        name = self._any_process()
        await self._world.processes.pop(name).stop()
        await self._pause(0, 0.1, 3)
        self._world.start(name)
        return name

    async def kill(self) -> str:
        name = self._any_process()
        await self._world.processes.pop(name).kill()
        await self._pause(0, 0.1, 3, 40)
        self._world.start(name)
        return name

    async def overlap(self) -> str:
        """The successor works already while the old leader does for a moment more."""
        name = self._any_process()
        old = self._world.processes.pop(name)
        self._world.start(name)
        for _ in range(self._chance.randrange(6)):
            self._world.work(0.7)
            await self._pause(0.01, 0.3, 1)
        await (old.kill() if self._chance.random() < 0.5 else old.stop())
        return name

    async def stay_away(self) -> str:
        """Nobody minds a cluster for minutes, while everybody else goes on."""
        name = self._any_process()
        await self._world.processes.pop(name).stop()
        actions = [*self._world.users.actions(), *self._world.strangers.actions()]
        for _ in range(self._chance.randrange(8)):
            self._world.work(0.7)
            with contextlib.suppress(ApiError):
                self._chance.choice(actions)()  # no action takes time
            await self._pause(0.5, 10, 90)
        self._world.start(name)
        return name

    # --- within -----------------------------------------------------------------------------------

    def _switch(self, fault: str, share: float) -> str:
        """End a fault of a network, or begin it in a share of the cases."""
        name, weather = self._any_weather()
        is_on = not getattr(weather, fault) and self._chance.random() < share
        setattr(weather, fault, is_on)
        self._world.news()
        return f"{name} {is_on}"

    def _any_weather(self) -> tuple[str, Weather]:
        return self._chance.choice(list(self._world.weathers.items()))

    def _any_process(self) -> str:
        return self._chance.choice(list(self._world.processes))

    async def _pause(self, *seconds: float) -> None:
        await asyncio.sleep(self._chance.choice(seconds))
