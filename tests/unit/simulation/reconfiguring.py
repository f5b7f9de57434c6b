"""A process whose configuration file changes again and again, on simulated clusters; at the end, a fresh one beside it.

PYTHONPATH=. python -m tests.unit.simulation.reconfiguring 0 1000      # a line for each seed that goes wrong
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import random
import re
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import structlog
from structlog.testing import capture_logs

from tests.background import working
from tests.unit.simulation import configurations
from tests.unit.simulation.bodies import key_of
from tests.unit.simulation.connection import Connection
from tests.unit.simulation.ledger import Ledger, differences
from tests.unit.simulation.process import CLUSTER_ID, context_between, endpoints, leases
from tests.unit.simulation.runner import Story, play
from tests.unit.simulation.users import SERVICES, SPACES
from tests.unit.simulation.world import Plan, World
from virtual_node import app as module
from virtual_node.app import App
from virtual_node.cluster.lower_cluster import LowerCluster
from virtual_node.config import file as config_file
from virtual_node.config.types import Config

_PLAN: Plan = {name: (name, [f"vn-{name}"]) for name in configurations.CLUSTERS}
_PAUSES = (0.2,) * 10 + (1.0,) * 10 + (10.0,) * 12
"""Between two rounds of the control planes until all is quiet: longer than the grace of what nobody uses."""
_REFUSED = "configuration not applied"
_ADDRESS = re.compile(r"10\.96\.[0-9a-f]{8}")
"""Of a Service: another one when it is created once more."""


def wander(seed: int, *, steps: int = 12) -> list[str]:
    """Change the configuration file that many times; return what is wrong on the way, and with the end."""
    ends: list[dict[str, Any]] = []
    last: list[Config] = []

    async def run(story: Story) -> None:
        with tempfile.TemporaryDirectory() as directory:
            walker = _Walker(seed, Path(directory) / "config.yaml")
            if last:
                await walker.install(last[0])
            else:
                last.append(await walker.walk(steps))
        ends.append(walker.state())
        story.wrong += walker.wrong

    return play(seed, run).wrong or play(seed, run).wrong or _compared(ends[0], ends[1], last[0])


class _Walker:
    def __init__(self, seed: int, file: Path) -> None:
        self.world, self._file, self._chance = World(seed, plan=_PLAN), file, random.Random(seed)
        self.world.workings.is_calm = True
        self._ledger = Ledger(self.world.servers)
        self.wrong: list[str] = []

    async def walk(self, steps: int) -> Config:
        """Wander; return the configuration with which a fresh installation ends alike."""
        document = configurations.valid(self._chance)
        self._write(json.dumps(document))
        started = config_file.load(self._file)
        self._furnish()
        async with self._process(started) as app:
            for number in range(steps):
                self._make_pod("walk", number, app.state.config)
                if self._chance.random() < 0.4:
                    await self._try_invalid(app, document)
                else:
                    document = configurations.valid(self._chance)
                    await self._try_valid(app, document)
                for _ in range(self._chance.choice([0, 1, 8])):
                    self.world.work(1.0)
                    await asyncio.sleep(self._chance.choice([0.01, 0.5, 4.0]))
            kept: Config = app.state.config
            is_to_restart = self._chance.random() < 0.5
            if not is_to_restart:
                await self._end(kept)
        if is_to_restart:
            # What is outside of clusters counts at the next start.
            kept = config_file.load(self._file)
            async with self._process(kept):
                await self._end(kept)
        return kept

    async def install(self, config: Config) -> None:
        """Start a process with a configuration where there was none before."""
        self._furnish()
        async with self._process(config):
            await self._end(config)

    def state(self) -> dict[str, Any]:
        """Return everything in all clusters, and what the virtual nodes offer. Taints are written at registration only."""
        nodes = {
            f"upper nodes {key_of(node)}": {
                "labels": node["metadata"].get("labels") or {},
                "capacity": node["status"].get("capacity"),
                "allocatable": node["status"].get("allocatable"),
            }
            for node in self.world.upper.all("nodes")
        }
        return {**self._ledger.state(), **nodes}

    async def _try_valid(self, app: Any, document: configurations.Document) -> None:
        await self._apply(json.dumps(document), refused=0)
        wanted = config_file.load(self._file)
        if app.state.config.clusters != wanted.clusters:
            self.wrong.append(f"not applied: {document}")
        running = {name: cluster.config for name, cluster in app.state.clusters.items()}
        if running != {cluster.name: cluster for cluster in wanted.clusters}:
            self.wrong.append(f"runs otherwise: {document}")

    async def _try_invalid(self, app: Any, document: configurations.Document) -> None:
        """What runs goes on, whatever is in the file; it goes on, too, when the previous content is back."""
        text = configurations.invalid(self._chance, document)
        tasks, config = dict(app._supervisor._tasks), app.state.config
        for content, refused in ((text, 1), (json.dumps(document), 0)):
            await self._apply(content, refused=refused)
            if app._supervisor._tasks != tasks or app.state.config.clusters != config.clusters:
                self.wrong.append(f"changed by {content}")

    async def _apply(self, content: str, *, refused: int) -> None:
        """Replace the file; wait until the process has read it, and check what it logs."""
        self._write(content)
        with capture_logs() as logs:
            await asyncio.sleep(3)
        errors = [entry for entry in logs if entry["log_level"] in {"error", "critical"}]
        if [entry["event"] for entry in errors] != [_REFUSED] * refused:
            self.wrong.append(f"logged, where {refused} refused files were expected: {errors}")

    async def _end(self, config: Config) -> None:
        """Let users replace all pods, so that what is refused now has not been let in before."""
        nodes = _nodes(config)
        for pod in self.world.upper.all("pods"):
            # By force where the virtual node is gone, as the garbage collector of pods does.
            grace = None if pod["spec"]["nodeName"] in nodes else 0
            self.world.upper.delete("pods", key_of(pod), who="user", grace=grace)
        await self.world.let_work(_PAUSES)
        for number in range(8):
            self._make_pod("end", number, config)
        await self.world.let_work(_PAUSES)
        self.wrong += self.world.watchdog.wrong

    def _furnish(self) -> None:
        self.world.furnish()
        for space in SPACES:
            for name in SERVICES:
                spec = {"selector": {"app": name}, "ports": [{"port": 80, "protocol": "TCP"}]}
                service = {"metadata": {"name": name}, "spec": spec}
                self.world.upper.create("services", service, who="user", namespace=space)
            for name in ("settings", "flags"):
                copy = {"metadata": {"name": name}, "data": {}}
                self.world.upper.create("configmaps", copy, who="user", namespace=space)

    def _make_pod(self, phase: str, number: int, config: Config) -> None:
        """Pods of a few kinds by turns: some are refused by one rule or another."""
        space = SPACES[number % 2]
        volumes = [{"name": one, "configMap": {"name": one}} for one in ("settings", "flags")]
        spec: dict[str, Any] = {
            "containers": [{"name": "main", "image": "web:1"}],
            "volumes": volumes[: 1 + number // 2 % 2],
            "restartPolicy": "Always",
        }
        if number % 3 == 0:
            spec["containers"][0]["securityContext"] = {"privileged": True}
        metadata = {"name": f"{phase}-{number}", "labels": {"app": SERVICES[number // 2 % 2]}}
        made = self.world.upper.create(
            "pods", {"metadata": metadata, "spec": spec}, who="user", namespace=space
        )
        nodes = _nodes(config)
        self.world.upper.bind(key_of(made), nodes[number // 4 % len(nodes)], who="scheduler")

    def _write(self, text: str) -> None:
        """Replace the file, as a ConfigMap volume does."""
        fresh = self._file.with_suffix(".new")
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(self._file)

    @contextlib.asynccontextmanager
    async def _process(self, config: Config) -> AsyncIterator[Any]:
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
        options: Any = SimpleNamespace(
            config=config, config_file=str(self._file), warnings=[], startup_timeout=0
        )
        with mock.patch.object(module, "LowerCluster", functools.partial(_Cluster, world=self.world)):
            app = App(options)
            app.state.cluster_id = CLUSTER_ID
            async with working(app._work(endpoints())):
                await asyncio.sleep(1)
                yield app


class _Cluster(LowerCluster):
    """A lower cluster on simulated connections."""

    def __init__(self, *args: Any, world: World, **more: Any) -> None:
        super().__init__(*args, **more)
        self._world = world

    async def run(self) -> None:
        world, name = self._world, self.config.name
        connections = [
            Connection(server, world.weathers[server.name], seed=name, who=f"vn:{name}")
            for server in (world.upper, world.lowers[name])
        ]
        context = context_between(*connections, cluster=self.config, settings=self.settings)
        self.leases = leases(context)
        try:
            await self._run_controllers(context, [])
        finally:
            for connection in connections:
                connection.kill()


def _nodes(config: Config) -> list[str]:
    return [node.name for cluster in config.clusters for node in cluster.virtual_nodes()]


def _compared(found: dict[str, Any], expected: dict[str, Any], config: Config) -> list[str]:
    """Return the differences in the upper cluster and in the lower clusters of a configuration."""
    names = set(configurations.CLUSTERS) - {cluster.name for cluster in config.clusters}
    gone = [start for name in names for start in (f"{name} ", f"upper nodes vn-{name}")]

    def counts(key: str) -> bool:
        # A lower namespace stays as long as its upper one.
        is_left = key not in expected and " namespaces " in key
        return not is_left and not key.startswith(tuple(gone))

    left, right = (
        {key: _without_life(body) for key, body in state.items() if counts(key)}
        for state in (expected, found)
    )
    for key in left.keys() & right.keys():
        if key.startswith("upper nodes "):
            # Labels that are not in the configuration (any more) stay: administrators label Nodes, too.
            right[key]["labels"] = {name: right[key]["labels"].get(name) for name in left[key]["labels"]}
    return list(differences(left, right))


def _without_life(body: dict[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(_ADDRESS.sub("<address>", json.dumps(body)))
    plain.get("metadata", {}).pop("uid", None)
    return plain


if __name__ == "__main__":
    for number in range(int(sys.argv[1]), int(sys.argv[2])):
        if found := wander(number):
            print(f"seed {number}:", *found, sep="\n    ", flush=True)  # noqa: T201
