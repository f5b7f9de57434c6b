"""The clusters and processes of a simulation; by default one upper cluster, two lower ones and three processes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from functools import partial

from clusterset.config import SERVICE_CONTROLLERS, Cluster, NodeConfig
from clusterset.model.namespace_map import NamespaceConfig
from controller_runtime.errors import ApiError
from tests.fakes.apiserver.server import Server
from tests.fakes.apiserver.storage import Commit
from tests.unit.simulation.actions import Action
from tests.unit.simulation.bodies import key_of
from tests.unit.simulation.clock import skew
from tests.unit.simulation.connection import OnWrite
from tests.unit.simulation.disasters import Disasters
from tests.unit.simulation.network import Weather, in_background
from tests.unit.simulation.other_actors import Strangers
from tests.unit.simulation.outcome import what_is_wrong
from tests.unit.simulation.process import Process
from tests.unit.simulation.users import SPACES, Users
from tests.unit.simulation.watchdog import OURS, PERIODIC, Watchdog
from tests.unit.simulation.workings import Workings
from virtual_node.config import types as configuration

Plan = Mapping[str, tuple[str, Sequence[str]]]
"""Processes by name: the lower cluster and the virtual nodes of each."""
SHARED: Plan = {"a": ("one", ["vn-a"]), "b": ("one", ["vn-b"]), "c": ("two", ["vn-c", "vn-d"])}
"""Two processes share a lower cluster, and one has two virtual nodes."""
QUIET = 1800.0
"""Seconds in which nothing may be written at the end."""


class World:
    """Everything in it comes of the seed."""

    def __init__(
        self, seed: int, *, plan: Plan = SHARED, settings: configuration.Config | None = None
    ) -> None:
        self.chance = random.Random(seed)
        self._seed, self._plan = seed, plan
        self.upper = Server("upper")
        self.lowers = {name: Server(name) for name in sorted({lower for lower, _ in plan.values()})}
        self.servers = (self.upper, *self.lowers.values())
        self.weathers = {name: Weather() for name in ("upper", *self.lowers)}
        self.nodes = [node for _, nodes in plan.values() for node in nodes]
        self.watchdog = Watchdog(self.upper, self.lowers)
        self.processes: dict[str, Process] = {}
        self.log: list[str] = []
        """What happened when."""
        self.changes: list[str] = []
        """Every change that an API server stored, with its time and author."""
        self.users, self.strangers, self._disasters = Users(self), Strangers(self), Disasters(self)
        self.on_write: OnWrite | None = None
        """Decides what becomes of the writes of processes that are started from now on; None: the weather does."""
        self.skews: dict[str, float] = {}
        """Seconds by which the clocks of processes are ahead, by process; see ``clock``."""
        self._started: list[Process] = []
        for server in self.servers:
            server.observers.append(partial(self._stored, server.name))
        self.workings = Workings(self.chance)
        self.settings = settings or configuration.Config(
            full_resync_period=self.chance.choice([0, 600.0]),
            pod_sync_workers=self.chance.choice([1, 3, 50]),
            enable_controllers=[SERVICE_CONTROLLERS],  # no volumes: nobody provisions them here
            lease_duration=400.0,  # they say nothing here, and cost time
            status_interval=600.0,
            ping_interval=60.0,
        )

    async def run(self, steps: int) -> list[str]:
        """Let that many things happen, then calm; what is wrong with what came of it."""
        self.furnish()
        for name in self._plan:
            self.start(name)
        actions: dict[Action, float] = {
            **self.users.actions(),
            **self.strangers.actions(),
            **self._disasters.actions(),
        }
        for _ in range(steps):
            [action] = self.chance.choices(list(actions), list(actions.values()))
            try:
                done = action()
                what = await done if isinstance(done, Awaitable) else done
            except ApiError:
                what = ""  # of a namespace that is not there, say
            if what:
                self.note(f"{action.__name__} {what}")
            if self.chance.random() < 0.8:
                self.work(self.chance.choice([0.2, 0.5, 1.0]))
            await asyncio.sleep(self.chance.choice([0, 0.001, 0.01, 0.1, 0.5, 2, 2, 10, 30]))
            if self.watchdog.wrong:
                break
        try:
            return self.watchdog.wrong or await self._settle()
        finally:
            await self.end()

    def furnish(self) -> None:
        """Create what every cluster has: system namespaces, lower nodes, and the users' namespaces."""
        for server in self.servers:
            for space in ("kube-system", "kube-node-lease"):
                server.create("namespaces", {"metadata": {"name": space}}, who="admin")
        resources = {"cpu": "8", "memory": "8Gi", "pods": "100"}
        status = {"allocatable": resources, "conditions": [{"type": "Ready", "status": "True"}]}
        for lower in self.lowers.values():
            for name in ("n1", "n2"):
                node = {"metadata": {"name": name, "labels": {}}, "spec": {}, "status": status}
                lower.create("nodes", node, who="admin")
        for space in SPACES:
            self.make_namespace(space)

    def start(self, name: str) -> None:
        lower, nodes = self._plan[name]
        cluster = Cluster(
            name=lower,
            kubeconfig="k",
            nodes=[NodeConfig(name=node) for node in nodes],
            # Strangers create namespaces, too.
            namespaces=NamespaceConfig(adopt=True),
        )
        token = skew.set(self.skews.get(name, 0.0))
        process = Process(
            name, upper=self.upper, lower=self.lowers[lower], weathers=(self.weathers["upper"], self.weathers[lower]),
            seed=f"{self._seed} {len(self._started)}", cluster=cluster, settings=self.settings,
        )  # fmt: skip
        skew.reset(token)
        for connection in process.connections:
            connection.on_write = self.on_write
        self.processes[name] = process
        self._started.append(process)

    def crash(self, name: str, *, restart_after: float) -> None:
        """Kill a process where it is, and start it again some seconds later."""
        process = self.processes.pop(name)
        for connection in process.connections:
            connection.kill()

        async def restart() -> None:
            await process.kill()
            await asyncio.sleep(restart_after)
            self.start(name)

        in_background(restart())

    def work(self, share: float) -> None:
        """The clusters' own components do a share of what there is to do."""
        for lower in self.lowers.values():
            self.workings.lower(lower, share)
        self.workings.upper(self.upper, share, self.nodes)

    async def let_work(self, pauses: Iterable[float]) -> None:
        """The clusters' own components do all that there is to do, in rounds with these pauses after them."""
        for pause in pauses:
            self.work(1.0)
            await asyncio.sleep(pause)

    def note(self, what: str) -> None:
        self.log.append(f"{asyncio.get_running_loop().time():.2f} {what}")

    def news(self) -> None:
        """The weather has changed."""
        for process in self._started:
            for connection in process.connections:
                connection.news()

    def make_namespace(self, name: str) -> None:
        """In the upper cluster, with what every namespace has."""
        self.upper.create("namespaces", {"metadata": {"name": name}}, who="user")
        root_ca = {"metadata": {"name": "kube-root-ca.crt"}, "data": {"ca": "x"}}
        self.upper.create("configmaps", root_ca, who="controller manager", namespace=name)

    async def writes_while_quiet(self, seconds: float) -> list[str]:
        """Let time pass in which our processes have nothing to do; a sentence for each server that they write to."""
        before = {server.name: server.version for server in self.servers}
        await asyncio.sleep(seconds)
        wrong = []
        for server in self.servers:
            late = [
                f"{one.who} {one.verb} {one.plural} {one.key}"
                for one in server.changes_since(before[server.name])
                if one.plural not in PERIODIC and one.who.startswith(OURS)
            ]
            if late:
                wrong.append(f"{server.name} is written to for ever: {late[:5]} ({len(late)})")
        return wrong

    def faults(self) -> list[str]:
        """Errors that ended a process and that it does not know."""
        return [f"{process.name} broke: {fault}" for process in self._started for fault in process.faults]

    async def end(self) -> None:
        for process in self._started:
            await process.kill()

    # --- within -----------------------------------------------------------------------------------

    def _stored(self, server: str, commit: Commit) -> None:
        now = asyncio.get_running_loop().time()
        self.changes.append(f"{now:.4f} {server} {commit.who} {commit.verb} {commit.plural} {commit.key}")

    async def _settle(self) -> list[str]:
        """Everything answers again; wait until nothing is left to do."""
        for weather in self.weathers.values():
            weather.clear()
        self.news()
        self.workings.is_calm = True
        for lower in self.lowers.values():
            for pod in lower.all("pods"):
                lower.patch("pods", key_of(pod), {"metadata": {"finalizers": None}}, who="stranger")
        await self.let_work([3] * 60 + [60] * 25)
        wrong = [*self.watchdog.wrong, *what_is_wrong(self)]
        return wrong + await self.writes_while_quiet(QUIET) + self.faults()
