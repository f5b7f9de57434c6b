"""One scripted story: what users do in four phases, with a pause after each, so that a run with a fault compares with one without.

Objects of every kind that is mirrored are created, updated and deleted: pods, ConfigMaps, Secrets, tokens, claims,
Services, and their namespace.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from controller_runtime.client.client import PatchType
from tests.fakes.apiserver.storage import Body
from tests.unit.simulation.bodies import TOKEN
from tests.unit.simulation.ledger import Ledger, differences
from tests.unit.simulation.outcome import what_is_wrong
from tests.unit.simulation.runner import Story, play
from tests.unit.simulation.workings import JOB
from tests.unit.simulation.world import Plan, World
from virtual_node.config import types as configuration

SPACE = "shop"
SINGLE: Plan = {"a": ("one", ["vn-a"])}
_QUIET = 600.0
"""Seconds at the end in which nothing may be written."""
_PAUSES = (0.2,) * 15 + (1.0,) * 12 + (10.0,) * 12
"""Between two rounds of the control planes, after each phase: longer than the grace of what nobody uses."""

PAUSE = sum(_PAUSES)
"""Seconds after each phase."""


@dataclass
class Outcome:
    """How a story ended."""

    states: list[dict[str, Any]] = field(default_factory=list)
    """Of all clusters, after each phase."""
    counts: dict[str, int] = field(default_factory=dict)
    """Creates and deletes of our processes, per object."""
    story: Story = field(default_factory=Story)

    def told(self, title: str, wrong: Sequence[str]) -> list[str]:
        """What happened and what is wrong with it; empty: nothing is."""
        return [title, *self.story.happened, "WRONG:", *wrong] if wrong else []


def settings() -> configuration.Config:
    """A configuration with every controller; nothing in it repairs by looking again now and then."""
    return configuration.Config(
        full_resync_period=0, lease_duration=400.0, status_interval=600.0, ping_interval=60.0
    )


def perform(
    seed: int = 0,
    *,
    fault: Callable[[World], object] | None = None,
    between: Callable[[World, str], bool] | None = None,
    plan: Plan = SINGLE,
) -> Outcome:
    """Play the script.

    Args:
        seed: decides how long each request takes.
        fault: called before anything starts; arranges what goes wrong.
        between: called with the name of each phase that has ended; returns whether the clusters need another pause.
        plan: the processes.
    """
    outcome = Outcome()

    async def run(story: Story) -> None:
        world = World(seed, plan=plan, settings=settings())
        world.workings.is_calm = True
        story.happened, story.changes = world.log, world.changes
        ledger = Ledger(world.servers)
        world.furnish()
        if fault is not None:
            fault(world)
        for name in plan:
            world.start(name)
        try:
            for phase in (create, update, delete, remove_namespace):
                world.note(phase.__name__)
                phase(world)
                await world.let_work(_PAUSES)
                if between is not None and between(world, phase.__name__):
                    await world.let_work(_PAUSES)
                outcome.states.append(ledger.state())
            story.wrong += [*world.watchdog.wrong, *what_is_wrong(world)]
            story.wrong += await world.writes_while_quiet(_QUIET)
            outcome.counts = dict(ledger.counts)
        finally:
            await world.end()
        story.wrong += world.faults()

    outcome.story = play(seed, run)
    return outcome


def compared(outcome: Outcome, expected: Outcome, *, once_more: str = "") -> list[str]:
    """Compare an outcome with that of a run without faults.

    Args:
        outcome: what is looked at.
        expected: of the run without faults.
        once_more: an object (server, plural and key) that may be created and deleted once more.

    Returns:
        A sentence for each difference.
    """
    wrong = list(outcome.story.wrong)
    for number, (state, wanted) in enumerate(zip(outcome.states, expected.states, strict=False), start=1):
        wrong += [f"after phase {number}: {text}" for text in differences(wanted, state)]
    counts = dict(outcome.counts)
    if once_more and counts.get(f"create {once_more}", 0) > expected.counts.get(f"create {once_more}", 0):
        for verb in ("create", "delete", "remove"):
            counts[f"{verb} {once_more}"] -= 1
    return wrong + [f"count of {text}" for text in differences(expected.counts, counts)]


# --- what users do ------------------------------------------------------------------------------------


def create(world: World) -> None:
    """Everything comes at once, as ``kubectl apply -f`` of a directory."""
    _make(world, "configmaps", "settings", data={"k": "1"})
    _make(world, "configmaps", "flags", data={"k": "1"})
    _make(world, "secrets", "password", data={"k": "MQ=="})
    _service(world, "front", app="front", port=80)
    _service(world, "back", app="db", port=81, clusterIP="None")
    requests = {"requests": {"storage": "1Gi"}}
    spec = {"accessModes": ["ReadWriteOnce"], "resources": requests, "storageClassName": "standard"}
    _make(world, "persistentvolumeclaims", "data", spec=spec)
    password = {"name": "password", "secret": {"secretName": "password"}}
    data = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    _pod(world, "web-0", app="front", volumes=[_settings("settings"), password, TOKEN])
    _pod(world, "web-1", app="front", volumes=[_settings("settings"), _settings("flags")])
    _pod(world, "db-0", app="db", volumes=[data, _settings("flags")])
    _pod(world, "job-0", app="job", image=f"{JOB}1", restartPolicy="Never", volumes=[TOKEN])


def update(world: World) -> None:
    """Everything that may change, changes; some are replaced under their names."""
    upper = world.upper
    _patch(world, "namespaces", SPACE, {"metadata": {"labels": {"team": "blue"}}})
    _patch(world, "configmaps", f"{SPACE}/settings", {"data": {"k": "2"}})
    _patch(world, "secrets", f"{SPACE}/password", {"data": {"k": "Mg=="}})
    _patch(world, "services", f"{SPACE}/front", {"spec": {"ports": [{"port": 90, "protocol": "TCP"}]}})
    larger = {"spec": {"resources": {"requests": {"storage": "2Gi"}}}}
    _patch(world, "persistentvolumeclaims", f"{SPACE}/data", larger)
    change = {"metadata": {"labels": {"app": "front", "version": "2"}, "annotations": {"note": "2"}}}
    _patch(world, "pods", f"{SPACE}/web-0", change)
    image = {"spec": {"containers": [{"name": "main", "image": "web:2"}]}}
    upper.patch("pods", f"{SPACE}/web-0", image, who="user", patch_type=PatchType.STRATEGIC)
    upper.delete("configmaps", f"{SPACE}/flags", who="user")
    _make(world, "configmaps", "flags", data={"k": "2"}, immutable=True)
    upper.delete("services", f"{SPACE}/back", who="user")
    _service(world, "back", app="db", port=81)
    upper.delete("pods", f"{SPACE}/web-1", who="user", grace=0)
    _pod(world, "web-1", app="front", volumes=[_settings("flags"), TOKEN])


def delete(world: World) -> None:
    """Everything goes but the namespace; one pod by force."""
    upper = world.upper
    for name, grace in (("web-0", None), ("web-1", 0), ("db-0", 5), ("job-0", None)):
        upper.delete("pods", f"{SPACE}/{name}", who="user", grace=grace)
    upper.delete("persistentvolumeclaims", f"{SPACE}/data", who="user")
    upper.delete("services", f"{SPACE}/front", who="user")
    upper.delete("secrets", f"{SPACE}/password", who="user")


def remove_namespace(world: World) -> None:
    """The namespace goes with what is left in it."""
    world.upper.delete("namespaces", SPACE, who="user")


def _make(
    world: World, plural: str, name: str, *, labels: Mapping[str, str] | None = None, **fields: Any
) -> None:
    body = {"metadata": {"name": name, **({"labels": labels} if labels else {})}, **fields}
    world.upper.create(plural, body, who="user", namespace=SPACE)


def _service(world: World, name: str, *, app: str, port: int, **more: str) -> None:
    ports = [{"port": port, "protocol": "TCP"}]
    _make(world, "services", name, spec={"selector": {"app": app}, **more, "ports": ports})


def _pod(
    world: World, name: str, *, app: str, volumes: Sequence[Body], image: str = "web:1", **spec: str
) -> None:
    containers = [{"name": "main", "image": image}]
    whole = {"containers": containers, "volumes": list(volumes), "restartPolicy": "Always", **spec}
    _make(world, "pods", name, labels={"app": app}, spec=whole)


def _patch(world: World, plural: str, key: str, patch: Body) -> None:
    world.upper.patch(plural, key, patch, who="user")


def _settings(name: str) -> Body:
    return {"name": name, "configMap": {"name": name}}
