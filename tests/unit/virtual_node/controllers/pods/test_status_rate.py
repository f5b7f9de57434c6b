"""A lower cluster that changes statuses all the time causes a bounded number of writes, and no status is lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from controller_runtime import resources
from tests.thorough import size
from tests.unit.virtual_node.controllers.pod_controller_setup import KEY, Scene, lower_pod, running
from virtual_node.controllers.pods.record import CLUSTER_BURST, CLUSTER_QPS, POD_BURST, PodTurn, StatusRate
from virtual_node.translate.pods import status as pod_status


def _status_writes(scene: Scene) -> int:
    return sum((verb, plural) == ("patch", "pods/status") for verb, plural, _ in scene.upper.calls)


async def _flap(scene: Scene, seconds: float) -> str:
    """Change the status of the lower pod twenty times per second; return the last message."""
    message = ""
    for number in range(int(seconds * 20)):
        message = f"step {number}"
        scene.lower.change("pods", KEY, status={"phase": "Running", "message": message})
        await asyncio.sleep(0.05)
    return message


@pytest.mark.looptime
async def test_a_flapping_pod_costs_a_few_writes_and_ends_with_its_latest_status():
    async with running() as scene:
        scene.bind()
        await asyncio.sleep(20)
        before = _status_writes(scene)
        last = await _flap(scene, 20)
        assert POD_BURST <= _status_writes(scene) - before <= POD_BURST + 22
        await asyncio.sleep(3)
        assert scene.above()["status"]["message"] == last
        assert _status_writes(scene) - before <= POD_BURST + 24


@pytest.mark.looptime
async def test_a_result_is_written_before_the_pod_is_deleted():
    """A Job reads the phase and the exit code, also of a pod that was throttled."""
    async with running() as scene:
        scene.bind()
        await asyncio.sleep(20)
        scene.upper.change("pods", KEY, metadata={"finalizers": ["batch.kubernetes.io/job-tracking"]})
        await _flap(scene, 20)
        await scene.upper.delete(resources.PODS, "web", namespace="shop", grace_period_seconds=30)
        await asyncio.sleep(0.1)
        scene.lower.change("pods", KEY, status={"phase": "Succeeded", "message": "result"})
        scene.lower.remove("pods", KEY)
        await asyncio.sleep(5)
        assert (scene.above()["status"]["phase"], scene.above()["status"]["message"]) == (
            "Succeeded",
            "result",
        )


@pytest.mark.looptime
async def test_a_huge_uid_of_a_lower_pod_is_not_written():
    """The annotations of a pod share 256 KiB, and the status would be refused with it."""
    async with running() as scene:
        scene.bind()
        scene.lower.put("pods", {**lower_pod("u-1"), "status": {"phase": "Running", "message": "m"}})
        scene.lower.change("pods", KEY, metadata={"uid": "x" * 1000})
        await asyncio.sleep(20)
        assert scene.above()["status"]["message"] == "m"
        assert len(str(scene.above()["metadata"].get("annotations"))) < 1000


def test_an_ordinary_burst_of_pods_does_not_wait():
    """Five thousand pods that start at once, with six writes each."""
    rate = StatusRate()
    pods = [PodTurn() for _ in range(5000)]
    assert not any(rate.wait(pod, size=2000, now=10.0 + step) for step in range(6) for pod in pods)


def test_the_writes_of_a_cluster_are_bounded():
    """Ten thousand pods, of which each changes once per second."""
    rate = StatusRate()
    pods = [PodTurn() for _ in range(10_000)]
    seconds = size(20, 60)
    written = sum(
        rate.wait(pod, size=100, now=float(second)) == 0 for second in range(seconds) for pod in pods
    )
    assert written <= CLUSTER_BURST + CLUSTER_QPS * seconds
    assert written >= CLUSTER_BURST


def test_a_large_status_costs_as_much_as_several():
    """Otherwise the bytes would not be bounded. A status that grows while it waits does not get around that."""
    for sizes in ((64 << 10,), (100, 64 << 10)):
        rate = StatusRate()
        written = 0
        for _ in range(20_000):
            turn = PodTurn()
            waits = [rate.wait(turn, size=size, now=0.0) for size in sizes]
            written += 0.0 in waits
        assert written <= (CLUSTER_BURST / 16 + 1 if len(sizes) == 1 else CLUSTER_BURST + 1)


def test_a_pod_that_waits_keeps_its_place():
    """Other pods that come later do not overtake it again and again."""
    rate = StatusRate()
    for _ in range(CLUSTER_BURST + int(CLUSTER_QPS) * 5):
        rate.wait(PodTurn(), size=1, now=0.0)
    turn = PodTurn()
    first = rate.wait(turn, size=1, now=0.0)
    assert 4 < first <= 6
    for _ in range(int(CLUSTER_QPS) * 60):
        rate.wait(PodTurn(), size=1, now=1.0)
    assert rate.wait(turn, size=1, now=1.0) == pytest.approx(first - 1)
    assert rate.wait(turn, size=1, now=first) == 0


def test_growth_of_a_waiting_status_is_paid():
    rate = StatusRate()
    for _ in range(CLUSTER_BURST + 10):
        rate.wait(PodTurn(), size=1, now=0.0)
    turn = PodTurn()
    rate.wait(turn, size=1, now=0.0)
    rate.wait(turn, size=64 << 10, now=0.0)
    other = rate.wait(PodTurn(), size=1, now=0.0)
    assert other == pytest.approx((10 + 16) / CLUSTER_QPS, rel=0.05)


@pytest.mark.looptime
async def test_a_written_status_is_not_compared_with_itself(monkeypatch: pytest.MonkeyPatch):
    """The informer reports the pod that the upper cluster stored, and there is nothing left to do."""
    compared: list[str] = []
    compute = pod_status.upper_status

    def counted(lower: Any, upper: Any, **options: Any) -> Any:
        compared.append(str(lower["status"].get("message")))
        return compute(lower, upper, **options)

    async with running() as scene:
        scene.bind()
        await asyncio.sleep(20)
        monkeypatch.setattr(pod_status, "upper_status", counted)
        scene.lower.change("pods", KEY, status={"phase": "Running", "message": "new"})
        await asyncio.sleep(20)
        assert scene.above()["status"]["message"] == "new"
        scene.upper.change("pods", KEY, status={"message": "overwritten"})
        await asyncio.sleep(20)
        assert scene.above()["status"]["message"] == "new"
    assert compared == ["new", "new"]
