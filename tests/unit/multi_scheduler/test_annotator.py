"""The node annotator: sums and deviations, written when they change."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from clusterset.model import names
from controller_runtime.client.client import Client
from controller_runtime.client.limits import CacheBudget
from controller_runtime.errors import ConfigError, ConnectionFailed, Forbidden
from controller_runtime.objects import from_dict
from multi_scheduler.annotator import app
from multi_scheduler.annotator import app as writing
from multi_scheduler.annotator.app import Measurement, Writer, differ, values
from multi_scheduler.annotator.program import PROGRAM
from multi_scheduler.config import Config
from multi_scheduler.state.cluster.filters import Node
from multi_scheduler.state.lower_state import LowerState
from multi_scheduler.usage import Measured, Pressure, Usage, read
from multi_scheduler.virtual_node import VirtualNode
from tests import objects
from tests.background import working
from tests.fakes.apiserver.client import MemoryClient, refusing, served
from tests.fakes.apiserver.server import Server
from tests.unit.multi_scheduler.agents.test_scoring_agents import FIT, Scene

GIB = 1024**3


def test_virtual_node_gets_the_sum_of_its_lower_nodes() -> None:
    """Readers get the measured values back; a node without usage contributes only its requests."""
    offered = {"cpu": 4000, "memory": 4 * GIB, "pods": 110}
    usage = Usage(0, 0, Measured(900, 1000, 300, 1200), Measured(GIB, GIB, 0))
    nodes = [Measurement(offered, {"cpu": 500, "pods": 2}, one) for one in (usage, usage, None)]
    found = values(nodes)
    assert (found["requested-cpu"], found["free-cpu"], found["free-pods"]) == ("1500", "10500", "324")
    assert (found["mean-free-cpu"], found["std-free-cpu"], found["forcasted-free-cpu"]) == (
        "6000",
        "424",
        "5600",
    )
    assert (found["mean-free-memory"], found["forcasted-free-memory"]) == (str(6 * GIB), None)
    written = {key: value for key, value in values(nodes[:1]).items() if value is not None}
    assert read(written, "cpu", 4000) == Measured(1000, 1000, 300, 1200)
    assert set(values(nodes[2:]).values()) >= {None, "500"}


def test_pressure_is_the_mean_load_of_nodes_that_report_it() -> None:
    """A node under pressure counts as full; nodes without PSI do not count."""
    offered = {"cpu": 4000, "pods": 100}
    calm = Usage(0, 0, pressure=Pressure())
    nodes = [
        Measurement(offered, {"pods": 50}, one)
        for one in (calm, replace(calm, is_pressed=True), Usage(0, 0), None)
    ]
    assert values(nodes)[names.ANNOTATION_PRESSURE] == "0.60"
    assert values(nodes[2:])[names.ANNOTATION_PRESSURE] is None


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("1000", "1050", False),
        ("1000", "1051", True),
        ("1000", None, True),
        (None, "1", True),
        (None, None, False),
    ],
)
def test_small_changes_are_not_written(old, new, expected) -> None:
    """A value that is added or removed is a change."""
    assert differ({"a": old} if old else {}, {"a": new}, 0.05) == expected


class _Client(MemoryClient):
    """A cluster with nodes, which may answer late or refuse writes."""

    def __init__(self, cluster: str) -> None:
        super().__init__(Server(cluster))
        for name in (
            (f"{cluster}-{number}" for number in range(3)) if cluster != "upper" else ("vn-a", "vn-b")
        ):
            self.server.put("nodes", objects.node(name))
        self.patched: list[tuple[str, dict[str, str | None]]] = []
        self.pause = 0.0

    @property
    def tried(self) -> list[str]:
        names: list[str] = self.asked("patch", "nodes")
        return names

    async def patch(self, resource: Any, name: str, patch: dict[str, Any], **options: Any) -> Any:
        if self.pause:
            self.calls.append(("patch", "nodes", name))
            await asyncio.sleep(self.pause)
            raise ConnectionFailed("timed out")
        node = await super().patch(resource, name, patch, **options)
        self.patched.append((name, patch["metadata"]["annotations"]))
        return node


async def _write_all(writer: Writer) -> None:
    for cluster in ("a", "b"):
        await writer.write(cluster)


def _writer(scene: Scene, upper: _Client, **lower: _Client) -> Writer:
    directory: Any = SimpleNamespace(of=lambda cluster: [VirtualNode(f"vn-{cluster}", cluster, {}, {})])
    above: Any = upper
    for name, client in lower.items():
        scene.state.clusters[name].client = cast("Client", client)
    return Writer(above, scene.shared, directory, lower_nodes=bool(lower), refresh=300, threshold=0.05)


@pytest.mark.looptime
async def test_slow_or_hostile_cluster_does_not_delay_the_others(monkeypatch) -> None:
    """Its pass ends with the first request without an answer, and an error in its data ends only its own pass."""
    scene = Scene(FIT, nodes=3)
    slow, good, upper = _Client("a"), _Client("b"), _Client("upper")
    slow.pause = 30.0
    async with working(_writer(scene, upper, a=slow, b=good).run(60)):
        await asyncio.sleep(70)
        assert [name for name, _ in good.patched] == ["b-0", "b-1", "b-2"]
        await asyncio.sleep(90)
        assert slow.tried == ["a-0", "a-0"]
    measure = writing._measure

    def broken(lower: LowerState, node: Node) -> Measurement:
        if lower.config.name == "a":
            raise OverflowError
        return measure(lower, node)

    monkeypatch.setattr(writing, "_measure", broken)
    upper.patched.clear()
    async with working(_writer(scene, upper).run(60)):
        await asyncio.sleep(130)
        assert {name for name, _ in upper.patched} == {"vn-b"}


@pytest.mark.looptime
async def test_usage_of_another_program_is_not_removed() -> None:
    """Without a source of usage, on nodes that another annotator annotates."""
    scene = Scene(FIT, clusters=("a",))
    lower = _Client("a")
    await _writer(scene, _Client("upper"), a=lower).write("a")
    [(_, found)] = lower.patched
    assert None not in found.values()
    assert names.ANNOTATION_USAGE_AT not in found
    # A node that an earlier process annotated.
    node = {"metadata": {"name": "a-0", "annotations": {names.ANNOTATION_USAGE_AT: "x"}}}
    scene.state.clusters["a"].feed._nodes.store.put("a-0", from_dict(node))
    await _writer(scene, _Client("upper"), a=lower).write("a")
    found = lower.patched[-1][1]
    assert found["mean-free-cpu"] is None
    assert found[names.ANNOTATION_USAGE_AT] is None


@pytest.mark.looptime
async def test_usage_that_becomes_unknown_is_removed() -> None:
    scene = Scene(FIT, clusters=("a",))
    scene.used("a-0", 0.5)
    lower = _Client("a")
    writer = _writer(scene, _Client("upper"), a=lower)
    await writer.write("a")
    assert lower.patched[-1][1]["mean-free-cpu"] == "2000"
    scene.stores["a"].keep([])
    await writer.write("a")
    assert lower.patched[-1][1]["mean-free-cpu"] is None


@pytest.mark.looptime
async def test_nodes_are_annotated_when_their_usage_changes(monkeypatch) -> None:
    """Virtual nodes and lower nodes; a refused write is retried, a silent cluster is skipped."""
    scene = Scene(FIT, nodes=2)
    for name in ("a-0", "a-1", "b-0", "b-1"):
        scene.used(name, 0.5)
    monkeypatch.setattr(scene.state.clusters["b"].feed, "trouble", lambda: "silent")
    upper, lower = _Client("upper"), _Client("a")
    writer = _writer(scene, upper, a=lower, b=_Client("b"))
    lower.fault = refusing(Forbidden("no right"))
    await _write_all(writer)
    ((name, found),) = upper.patched
    assert (name, found["mean-free-cpu"], found["free-cpu"]) == ("vn-a", "4000", "8000")
    assert re.fullmatch(r"\d{4}-.*Z", found[names.ANNOTATION_USAGE_AT] or "")
    lower.fault = served
    for _ in range(2):
        await _write_all(writer)
    assert [name for name, _ in lower.patched] == ["a-0", "a-1"]
    assert len(upper.patched) == 1
    assert len(lower.tried) == 3, "without the right, the other nodes are not tried"
    scene.runs("a-1", "one", cpu="2")
    await _write_all(writer)
    assert [name for name, _ in upper.patched] == ["vn-a", "vn-a"]
    assert [name for name, _ in lower.patched] == ["a-0", "a-1", "a-1"]


@pytest.mark.looptime
async def test_a_new_node_of_an_old_name_is_annotated_at_once() -> None:
    """Although its values are those of the deleted node; deleted nodes are forgotten."""
    scene = Scene(FIT, clusters=("a",))
    lower = _Client("a")
    writer = _writer(scene, _Client("upper"), a=lower)
    await writer.write("a")
    scene.state.clusters["a"].index.remove_node("a-0")
    await writer.write("a")
    scene.node("a-0")
    await writer.write("a")
    assert [name for name, _ in lower.patched] == ["a-0", "a-0"]


@pytest.mark.looptime
async def test_a_lower_cluster_may_have_the_name_of_the_upper_connection() -> None:
    """Its deleted nodes are forgotten, and not the virtual nodes, which would be written again in each pass."""
    scene = Scene(FIT, clusters=("upper",))
    upper, lower = _Client("upper"), _Client("upper")
    upper.server.put("nodes", objects.node("vn-upper"))
    lower.server.put("nodes", objects.node("upper-0"))
    writer = _writer(scene, upper)
    scene.state.clusters["upper"].client = cast("Client", lower)
    writer.lower_nodes = True
    for _ in range(2):
        await writer.write("upper")
    assert [name for name, _ in upper.patched] == ["vn-upper"]
    assert [name for name, _ in lower.patched] == ["upper-0"]


async def test_usage_of_real_upper_nodes_is_not_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The file may have this setting for the agents, but the annotator has no right to read the usage."""
    file, read = tmp_path / "config.yaml", []

    def shared(config: Config, *_: object) -> None:
        read.append(config.upper_usage)
        raise asyncio.CancelledError

    file.write_text("{clusters: [{name: a, kubeconfig: k}], upperUsage: {source: Summary}}", encoding="utf-8")
    options = PROGRAM.parse([f"--config={file}"])
    upper: Any = SimpleNamespace(cluster="upper", caches=CacheBudget(0, cluster="upper"))
    monkeypatch.setattr(app, "Shared", shared)
    with pytest.raises(asyncio.CancelledError):
        await app._work(options, upper, upper)
    assert options.config.upper_usage is not None
    assert read == [None]


def test_bad_flags_are_named(tmp_path: Path) -> None:
    """A threshold outside of percent, and durations of the Lease that contradict each other."""
    file = tmp_path / "config.yaml"
    file.write_text(
        "{apiVersion: virtual-node.io/v1alpha1, kind: MultiSchedulerConfiguration, clusters: [{name: a, kubeconfig: k}]}",
        encoding="utf-8",
    )
    found = PROGRAM.parse([f"--config={file}", "--threshold=10", "--lower-nodes"], {"POD_NAMESPACE": "vn"})
    assert (found.threshold, found.interval, found.namespace, found.lower_nodes) == (10, 60, "vn", True)
    for argument in ("--threshold=101", "--interval=0s", "--leader-elect-lease-duration=1s"):
        with pytest.raises(ConfigError, match=argument.partition("=")[0]):
            PROGRAM.parse([f"--config={file}", argument], {})
