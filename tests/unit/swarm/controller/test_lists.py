"""Lists of jobs in ConfigMaps, which anybody in the namespace may write."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import pytest

from clusterset.model.names import SWARMS
from controller_runtime.errors import Invalid
from swarm import planning, spec
from swarm.handover import Ledger
from tests.unit.growth import assert_linear
from tests.unit.swarm.controller.scene import Scene, so

_BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n"
    for before, name in zip("abcdefghijk", "bcdefghijkl", strict=True)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- {weight: 3}", "entry 1 is not a job.*name"),
        ("- a\n- {name: b, weight: -5}", r"entry 2 is not a job.*>= 1 - at `\$.weight`"),
        ("- {name: a, weight: 0}", r"\$.weight"),
        ("- {name: a, weight: 99999999999999999999}", r"\$.weight"),
        ("- {name: a, weight: heavy}", r"\$.weight"),
        ("- {name: a, qos: Best}", r"\$.qos"),
        ("- {name: a, affinity: {clusters: b}}", r"\$.affinity.clusters"),
        ("- ''", r"\$.name"),
        ("- [a]", "entry 1 is not a job"),
        (f"- {'x' * 1025}", r"\$.name"),
        ('- "a\\e[31m"', r"\$.name"),
        ("x\n" * 20_001, "more than 20,000 jobs"),
        (f"{_BOMB}jobs: [*l]", "aliases"),
        ("[\n" * 100_000, "nested deeper"),
        # libyaml since 0.2.6 refuses it before the first event.
        ("[" * 100_000, "nested deeper|not YAML"),
        ("jobs: " + "{a: " * 5_000, "nested deeper"),
    ],
)
def test_a_wrong_entry_is_an_error_that_names_the_field(text, message):
    """At once, also if it would expand to gigabytes or exceed the stack."""
    with pytest.raises(ValueError, match=message):
        spec.read_list(text)


@pytest.mark.parametrize("brackets", ["[]", "{}"])
@pytest.mark.parametrize("between", [" ", "\t", "-", "]", "}", ":", "jobs"])
@pytest.mark.parametrize("end", ["", "]x", "}x", " "])
def test_time_grows_linearly_with_a_list_that_is_no_yaml(brackets, between, end):
    """A user of one namespace writes the list, and the controller works for all."""

    def read(text: str) -> None:
        with contextlib.suppress(ValueError):
            spec.read_list(text)

    assert_linear(read, lambda size: brackets[0] + between * size + end, size=4000)


@pytest.mark.parametrize(
    ("affinity", "message"),
    [
        ({"matchLabels": "a"}, "matchLabels"),
        ({"matchExpressions": [{"key": "a", "operator": "Near"}]}, "operator 'Near'"),
        ({"matchExpressions": [{"key": "a", "operator": "In"}]}, "need values"),
    ],
)
def test_a_wrong_selector_names_the_job(affinity, message):
    """The rest of the list cannot be assigned without it."""
    with pytest.raises(ValueError, match=f"job b: affinity.workers: .*{message}"):
        spec.jobs_of([spec.JobSpec("a"), spec.JobSpec("b", affinity=spec.Affinity(affinity))])


async def test_unreadable_list_keeps_its_jobs_beside_a_readable_list():
    """The Swarm is degraded, and other lists still change."""
    scene = Scene()
    label = {"list": "s"}
    scene.config_map("one", {"jobs": "- a\n- {name: b, weight: 7}"}, labels=label)
    scene.config_map("two", {"jobs": "c"}, labels=label)
    scene.pod()
    scene.swarm(jobsFrom={"selector": {"matchLabels": label}})
    async with scene.running():
        await so(lambda: scene.status().get("assignedCount"), 3)
        scene.server.change("configmaps", "ns/one", data={"jobs": "- {name: b, weight: none}"})
        scene.server.change("configmaps", "ns/two", data={"jobs": "c\nd"})
        await so(lambda: scene.status()["assignedCount"], 4)
        reason, message = scene.condition()
    assert (reason, message.partition(":")[0]) == ("JobsUnreadable", "ConfigMap one, key 'jobs'")
    assert "$.weight" in message


async def test_lists_of_one_namespace_share_a_limit(monkeypatch: pytest.MonkeyPatch):
    """A list beyond it is not kept in memory and is an error; it is read again when there is room."""
    monkeypatch.setattr("swarm.controller.sources._BYTES", 5_000)
    scene = Scene()
    for name in "ab":
        scene.config_map(name, {"jobs": "\n".join(f"{job:0100}" for job in range(30))}, labels={"list": name})
        scene.swarm(name, jobsFrom={"selector": {"matchLabels": {"list": name}}})
    async with scene.running():
        await so(lambda: {scene.condition(name)[0] for name in "ab"}, {"JobsUnreadable", "Healthy"})
        (full,) = (name for name in "ab" if scene.condition(name)[0] == "JobsUnreadable")
        assert f"not read: ConfigMap {full}" in scene.condition(full)[1]
        other = "ab".replace(full, "")
        scene.server.remove("configmaps", f"ns/{other}")
        scene.server.change("swarms", f"ns/{full}", spec={"maxPerWorker": 3})
        await so(lambda: scene.condition(full)[0], "Healthy")


async def test_lists_that_are_not_cached_keep_their_jobs(monkeypatch: pytest.MonkeyPatch):
    """Any number of ConfigMaps beyond the limit takes no memory, and their jobs are not treated as removed."""
    scene = Scene()
    scene.pod()
    for name in "abcd":
        text = "\n".join(f"{name}{job:0100}" for job in range(20))
        scene.config_map(name, {"jobs": text}, labels={"list": "s"}, annotations={"large": "x" * 100_000})
    scene.swarm(jobsFrom={"selector": {"matchLabels": {"list": "s"}}})
    async with scene.running():
        await so(lambda: scene.status().get("assignedCount"), 80)
    monkeypatch.setattr("swarm.controller.sources._BYTES", 4_000)
    monkeypatch.setattr("swarm.controller.sources._DROPPED", 1)
    async with scene.running():
        await so(lambda: scene.condition()[0], "JobsUnreadable")
        for name in "bcd":
            scene.server.remove("configmaps", f"ns/{name}")
            await so(lambda: (scene.condition()[0], scene.status()["assignedCount"]), ("JobsUnreadable", 80))
        scene.server.change("swarms", "ns/s", spec={"maxPerWorker": 90})
        await so(lambda: (scene.condition()[0], scene.status()["assignedCount"]), ("Healthy", 20))


async def test_refused_selector_is_an_error_of_the_swarm():
    """Without it the Swarm would wait for ever and say nothing."""
    scene = Scene()
    scene.client.fault = lambda _verb, _plural, key: (
        Invalid("unable to parse requirement") if key == "list=s" else None
    )
    scene.swarm(jobsFrom={"selector": {"matchLabels": {"list": "s"}}})
    async with scene.running():
        await so(scene.condition, ("JobsUnreadable", "spec.jobsFrom: unable to parse requirement"))


async def test_too_many_affinities_are_a_condition_that_names_the_job():
    """Assigned jobs stay, and the Swarm is not reconciled again until something changes."""
    scene = Scene()
    scene.config_map("list", {"jobs": "- a"})
    scene.pod()
    scene.swarm(jobsFrom={"configMap": {"name": "list"}})
    async with scene.running():
        await so(lambda: scene.status().get("assignedCount"), 1)
        labels = [
            f"- {{name: j{n}, affinity: {{workers: {{matchLabels: {{a: v{n}}}}}}}}}" for n in range(501)
        ]
        scene.server.change("configmaps", "ns/list", data={"jobs": "\n".join(labels)})
        await so(lambda: scene.condition()[0], "InvalidSpec")
    assert scene.condition()[1].startswith("job j500: affinity: more than 500 different affinities")
    assert scene.status()["assignedCount"] == 1


async def test_slow_swarms_of_one_namespace_leave_a_worker_to_others(monkeypatch: pytest.MonkeyPatch):
    """Otherwise four of them would stop the controller for everybody."""
    released, advance = threading.Event(), planning.advance

    def slow(before: Ledger, wanted: planning.Wanted, observed: planning.Observed, *, now: float) -> Any:
        if any(job.name == "slow" for job in wanted.jobs):
            released.wait(60)
        return advance(before, wanted, observed, now=now)

    monkeypatch.setattr(planning, "advance", slow)
    scene = Scene()
    for number in range(10):
        scene.swarm(f"s{number}", jobs=[{"name": "slow"}])
    other = {"workers": {"selector": {}}, "jobs": [{"name": "a"}]}
    body = {"apiVersion": SWARMS.api_version, "kind": SWARMS.kind, "metadata": {"name": "o"}, "spec": other}
    try:
        async with scene.running():
            scene.server.create("swarms", body, namespace="kube-node-lease")
            await so(
                lambda: ((scene.server.find("swarms", "kube-node-lease/o") or {}).get("status") or {}).get(
                    "jobCount"
                ),
                1,
            )
            assert not any(scene.status(f"s{number}") for number in range(10))
            released.set()
    finally:
        released.set()
