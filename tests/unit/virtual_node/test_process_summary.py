"""What a process answers to ``status``, from the caches of its virtual nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgspec
import pytest

from controller_runtime.objects import from_dict
from controller_runtime.store import Store, stub
from tests.unit.virtual_node.commands.diagnose.test_diagnose_corpus import CASES, facts_of
from virtual_node import metrics, process_health
from virtual_node.config.types import Config
from virtual_node.node_summary import NodeSummary, Summaries, summarize, summary_of
from virtual_node.process_health import ProcessSummary
from virtual_node.process_state import ProcessState


class _Process:
    """A process with lower clusters a and b, each with one virtual node."""

    def __init__(self) -> None:
        self.informers: dict[str, Any] = {
            f"vn-{name}": SimpleNamespace(store=Store({}), has_synced=True, last_error=None) for name in "ab"
        }
        clusters: dict[str, Any] = {
            name: SimpleNamespace(
                config=SimpleNamespace(name=name),
                nodes={f"vn-{name}": object()},
                caches=SimpleNamespace(upper={f"vn-{name}": self.informers[f"vn-{name}"]}),
            )
            for name in "ab"
        }
        self.state = ProcessState(Config(), clusters=clusters)
        self.summary = ProcessSummary(self.state)

    def put(self, node: str, number: int, one: Mapping[str, Any], *, version: str = "1") -> dict[str, Any]:
        """Store a pod; return it as it is stored."""
        metadata = {**one["metadata"], "namespace": "shop", "name": f"p{number}", "uid": f"u{number}"}
        pod = from_dict(
            {
                **one,
                "metadata": {**metadata, "resourceVersion": version},
                "spec": {**one["spec"], "nodeName": node},
            }
        )
        self.informers[node].store.put(pod.key, pod)
        return pod.to_dict()

    async def answer(self, node: str) -> dict[str, NodeSummary]:
        return msgspec.json.decode(await self.summary.answer(node), type=Summaries).nodes


def _by_pod(summary: NodeSummary) -> Any:
    """Return a summary as it is sent, with the findings in the order of the pods."""
    sent = msgspec.json.decode(msgspec.json.encode(summary))
    return {**sent, "findings": sorted(sent["findings"], key=lambda one: one["names"])}


async def test_the_answer_is_the_summary_of_the_listed_pods():
    """Every state of a pod that has a name in the commands."""
    process = _Process()
    pods = [process.put("vn-a", number, facts_of(case).pod) for number, case in enumerate(CASES)]
    found = await process.answer("vn-a")
    assert _by_pod(found["vn-a"]) == _by_pod(summarize(map(summary_of, pods)))
    assert found["vn-a"].findings
    assert found["vn-b"] == NodeSummary(used={"cpu": 0, "memory": 0, "pods": 0}, findings=[])


async def test_pods_are_named_only_to_who_may_read_their_node():
    """The API server authorizes a caller for one Node. Numbers are in the metrics of the process, too."""
    process = _Process()
    for number, case in enumerate(CASES):
        process.put("vn-a", number, facts_of(case).pod)
    found = await process.answer("vn-b")
    assert (found["vn-a"].total, found["vn-a"].findings) == (len(CASES), None)
    assert b"shop" not in await process.summary.answer("vn-b")


async def test_only_changed_pods_are_evaluated_again():
    """A request on a node with thousands of pods must not take a second of the event loop."""
    process = _Process()
    running = {"metadata": {}, "spec": {"containers": []}, "status": {"phase": "Running"}}
    for number in range(5):
        process.put("vn-a", number, running)
    with mock.patch.object(process_health, "summary_of", side_effect=summary_of) as evaluated:
        assert (await process.answer("vn-a"))["vn-a"].running == 5
        process.put("vn-a", 0, {**running, "status": {"phase": "Failed"}}, version="2")
        process.informers["vn-a"].store.remove("shop/p1")
        await asyncio.sleep(0.01)  # requests at the same time share an answer
        found = (await process.answer("vn-a"))["vn-a"]
        assert (found.total, found.running, found.trouble) == (4, 3, 1)
        assert evaluated.call_count == 6


async def test_only_nodes_with_changed_pods_are_read_again():
    """The pods are evaluated every five seconds, also while nothing changes."""
    process = _Process()
    running = {"metadata": {}, "spec": {"containers": []}, "status": {"phase": "Running"}}
    for number, node in enumerate(process.informers):
        process.put(node, number, running)
    await process.summary.refresh()
    version = process.summary.version
    with mock.patch.object(process_health, "evaluated", side_effect=process_health.evaluated) as read:
        await process.summary.refresh()
        assert (read.call_count, process.summary.version) == (0, version)
        process.put("vn-a", 2, running)
        process.informers["vn-b"].store.remove("shop/p7")  # not there
        await process.summary.refresh()
        assert (read.call_count, process.summary.version) == (1, version + 1)
        del process.state.clusters["b"]
        await process.summary.refresh()
        assert (read.call_count, process.summary.version) == (1, version + 2)
    assert len([*process.summary.pods()]) == 2


@pytest.mark.parametrize(
    "state",
    [{"has_synced": False}, {"last_error": OSError("watch failed")}],
    ids=["not listed", "not current"],
)
async def test_a_cache_that_is_not_current_is_left_out(state: dict[str, Any]):
    """The command lists these pods."""
    process = _Process()
    vars(process.informers["vn-a"]).update(state)
    assert list(await process.answer("vn-a")) == ["vn-b"]


async def test_a_node_with_pods_without_content_is_left_out():
    """Of a namespace with too many bytes of pods, only stubs are cached."""
    process = _Process()
    process.put("vn-a", 1, {"metadata": {}, "spec": {"containers": []}, "status": {"phase": "Running"}})
    whole = from_dict(
        {"metadata": {"namespace": "shop", "name": "s", "uid": "s"}, "spec": {"nodeName": "vn-a"}}
    )
    process.informers["vn-a"].store.put("shop/s", stub(whole))
    assert list(await process.answer("vn-a")) == ["vn-b"]


async def test_a_node_with_very_many_faulty_pods_is_left_out(monkeypatch: pytest.MonkeyPatch):
    """Tenants decide how many there are; the response and the time to write it are limited."""
    monkeypatch.setattr(process_health, "MOST_FINDINGS", 2)
    process = _Process()
    pending = {"metadata": {}, "spec": {"containers": []}, "status": {"phase": "Pending"}}
    for number in range(3):
        process.put("vn-a", number, pending)
    assert list(await process.answer("vn-a")) == ["vn-b"]


async def test_a_stopped_cluster_is_forgotten():
    """Its pods are no longer counted in the health of the process."""
    process = _Process()
    process.put("vn-a", 1, {"metadata": {}, "spec": {"containers": []}, "status": {"phase": "Running"}})
    await process.summary.refresh()
    del process.state.clusters["a"]
    await process.summary.refresh()
    assert list(process.summary.pods()) == []
    assert list(await process.answer("vn-b")) == ["vn-b"]


async def test_an_interrupted_evaluation_continues_where_it_was(monkeypatch: pytest.MonkeyPatch):
    """The API server ends a request after seconds; the next one must not begin again."""
    process = _Process()
    for number in range(50):
        process.put("vn-a", number, {"metadata": {}, "spec": {"containers": []}, "status": {}})
    evaluated = 0

    def slow(pod: Any) -> Any:
        nonlocal evaluated
        evaluated += 1
        if evaluated == 20:
            raise asyncio.CancelledError
        return summary_of(pod)

    monkeypatch.setattr(process_health, "summary_of", slow)
    with pytest.raises(asyncio.CancelledError):
        await process.summary.refresh()
    await process.summary.refresh()
    assert evaluated == 51


def test_the_lag_is_that_of_the_metrics():
    """By cluster and direction."""
    metrics.MIRROR_SECONDS.labels("lag-test", "up").observe(0.02)
    assert metrics.lag("lag-test") == {"up": {"p50": 0.025, "p99": 0.025}}
    assert metrics.lag("lag-other") == {}
