"""Leader election and events against a real apiserver."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
import pytest_asyncio
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from controller_runtime import resources
from controller_runtime.auth import kubeconfig
from controller_runtime.client.client import Client
from controller_runtime.events import EventRecorder
from controller_runtime.leaderelection import LeaderElector
from hack.sandbox.cluster import Cluster
from tests.clusters.pool import Lend
from tests.waiting import PATIENCE

pytestmark = pytest.mark.e2e

SHORT = {"lease_duration": 6.0, "renew_deadline": 4.0, "retry_period": 0.5}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def cluster(alone: Lend) -> AsyncIterator[Cluster]:
    """A control plane without nodes."""
    async with alone() as sandbox:
        yield sandbox.upper


@pytest_asyncio.fixture(loop_scope="session")
async def client(cluster: Cluster) -> AsyncIterator[Client]:
    """A client of it."""
    async with Client(await kubeconfig.load(str(cluster.kubeconfig)), cluster="upper") as client:
        yield client


class Work:
    """A leader's work that records when it runs."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.stopped = asyncio.Event()

    async def __call__(self) -> None:
        """Work until cancelled."""
        self.stopped.clear()
        self.started.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.started.clear()
            self.stopped.set()


def elector(client: Client, work: Work, *, name: str, identity: str, **options: Any) -> LeaderElector:
    """A candidate for a Lease in namespace default."""
    return LeaderElector(
        client, namespace="default", name=name, identity=identity, on_started=work, **options
    )


@contextlib.asynccontextmanager
async def running(run: Callable[[], Awaitable[None]]) -> AsyncIterator[asyncio.Task[None]]:
    """Run a coroutine in the background; leaving cancels it and waits for its end."""

    async def body() -> None:
        await run()

    task = asyncio.create_task(body())
    await asyncio.sleep(0)  # its first step: a task cancelled before that would do nothing at all
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def events_of(cluster: Cluster, name: str, *, namespace: str = "default") -> list[dict[str, Any]]:
    """Return the events of an object as in ``kubectl get events``."""
    listed = await cluster.kubectl(
        "get", "events", "-n", namespace, "-o", "json", f"--field-selector=involvedObject.name={name}"
    )
    items: list[dict[str, Any]] = json.loads(listed.stdout)["items"]
    return items


class TestLeaderElection:
    """Real Leases."""

    async def test_hand_over_does_not_wait_for_the_lease_to_expire(self, client: Client) -> None:
        """With client-go's durations the successor of a leader that ends cleanly starts at its next try, every two seconds."""
        first, second = Work(), Work()
        loop = asyncio.get_running_loop()
        async with running(elector(client, first, name="hand-over", identity="a").run) as leading:
            await first.started.wait()
            waiting = elector(client, second, name="hand-over", identity="b")
            async with running(waiting.run):
                while waiting.leader != "a":
                    await client.get(resources.LEASES, "hand-over", namespace="default")
                assert not second.started.is_set()
                leading.cancel()
                await asyncio.wait({leading})
                released = loop.time()
                async with asyncio.timeout(PATIENCE):
                    await second.started.wait()
                assert first.stopped.is_set()
                # The Lease would last for 13 s more: two seconds, plus delays of the machine.
                assert loop.time() - released < 10
                lease = await client.get(resources.LEASES, "hand-over", namespace="default")
                assert (lease["spec"]["holderIdentity"], lease["spec"]["leaseTransitions"]) == ("b", 1)

    async def test_candidates_that_start_together_elect_one(self, client: Client) -> None:
        """Of five candidates for a missing Lease, exactly one works."""
        works = [Work() for _ in range(5)]
        async with contextlib.AsyncExitStack() as stack:
            for index, work in enumerate(works):
                candidate = elector(client, work, name="rush", identity=f"c{index}", **SHORT)
                await stack.enter_async_context(running(candidate.run))
            async with asyncio.timeout(PATIENCE):
                done, waiting = await asyncio.wait(
                    [asyncio.create_task(work.started.wait()) for work in works],
                    return_when=asyncio.FIRST_COMPLETED,
                )
                before = await client.get(resources.LEASES, "rush", namespace="default")
                after = before
                while after["spec"]["renewTime"] == before["spec"]["renewTime"]:
                    after = await client.get(resources.LEASES, "rush", namespace="default")
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            assert len(done) == 1
            assert [work.started.is_set() for work in works].count(True) == 1

    async def test_times_on_the_full_second_are_accepted(self, client: Client) -> None:
        """The fraction of a renewal at a full second is not omitted, which would be a bad request."""
        moment = datetime(2026, 1, 2, 3, 4, 5, 0, tzinfo=UTC)
        work = Work()
        candidate = elector(client, work, name="full-second", identity="a", now=lambda: moment)
        with capture_logs() as logs:
            async with running(candidate.run), asyncio.timeout(PATIENCE):
                await work.started.wait()
        assert [line for line in logs if line["log_level"] in {"warning", "error"}] == []

    async def test_leader_stops_when_the_apiserver_dies_and_leads_again(
        self, cluster: Cluster, client: Client
    ) -> None:
        """It stops at the renew deadline, and leads again when the server is back."""
        work = Work()
        loop = asyncio.get_running_loop()
        candidate = elector(client, work, name="outage", identity="a", **SHORT)
        async with running(candidate.run):
            await work.started.wait()
            await cluster.apiserver.kill()
            died = loop.time()
            async with asyncio.timeout(PATIENCE):
                await work.stopped.wait()
            # No other candidate may lead before.
            assert loop.time() - died < SHORT["lease_duration"]
            assert not candidate.is_leader
            await cluster.restore()
            async with asyncio.timeout(PATIENCE):
                await work.started.wait()


class TestEvents:
    """Real Events."""

    async def test_kubectl_shows_counts_and_combinations(self, cluster: Cluster, client: Client) -> None:
        """A repeated Event is one with a count; many similar ones are combined; both in describe."""
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "noisy", "namespace": "default"},
            "spec": {
                "containers": [{"name": "app", "image": "x"}],
                "schedulingGates": [{"name": "test/never"}],
            },
        }
        created = await client.create(resources.PODS, pod, namespace="default")
        recorder = EventRecorder(client, component="virtual-node", host="node-1")
        async with running(recorder.run):
            for _ in range(5):
                recorder.event(created, "Warning", "BackOff", "restarting failed container")
            for index in range(15):
                recorder.event(created, "Warning", "Unhealthy", f"probe {index} failed")
        events = await events_of(cluster, "noisy")
        counts = {event["message"]: event["count"] for event in events if event["reason"] != "NotAllowed"}
        assert counts["restarting failed container"] == 5
        assert counts["(combined from similar events): probe 14 failed"] == 5
        assert len([event for event in events if event["reason"] == "Unhealthy"]) == 11
        described = (await cluster.kubectl("describe", "pod", "noisy")).stdout
        assert "(x5 over" in described
        assert "virtual-node" in described

    async def test_later_occurrences_patch(self, cluster: Cluster, client: Client) -> None:
        """An occurrence after the first was written increases its count on the server."""
        node = {"kind": "Node", "apiVersion": "v1", "name": "virtual", "uid": "virtual"}
        recorder = EventRecorder(client, component="virtual-node")
        async with running(recorder.run):
            recorder.event(node, "Normal", "NodeReady", "ready")
            async with asyncio.timeout(PATIENCE):
                while not (events := await events_of(cluster, "virtual")):
                    continue
            recorder.event(node, "Normal", "NodeReady", "ready")
        name = events[0]["metadata"]["name"]
        (event,) = await events_of(cluster, "virtual")
        assert (event["metadata"]["name"], event["count"]) == (name, 2)

    async def test_spam_is_limited(self, cluster: Cluster, client: Client) -> None:
        """An object with forty different messages has twenty-five Events."""
        recorder = EventRecorder(client, component="virtual-node")
        pod = {"kind": "Pod", "apiVersion": "v1", "namespace": "default", "name": "spammer", "uid": "s"}
        async with running(recorder.run):
            for index in range(40):
                recorder.event(pod, "Normal", f"Reason{index}", "x")
        assert len(await events_of(cluster, "spammer")) == 25

    async def test_complete_events_are_created_and_patched(self, cluster: Cluster, client: Client) -> None:
        """An Event made elsewhere appears unchanged, and two recorders, as after a restart, keep it one."""
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": "mirrored.1", "namespace": "default"},
            "involvedObject": {"kind": "Pod", "apiVersion": "v1", "namespace": "default", "name": "mirrored"},
            "type": "Warning",
            "reason": "Failed",
            "message": "Error: ImagePullBackOff",
            "source": {"component": "kubelet", "host": "lower-node"},
            "count": 1,
            "firstTimestamp": "2026-01-02T03:04:05Z",
            "lastTimestamp": "2026-01-02T03:04:05Z",
        }
        for count in (1, 7):
            recorder = EventRecorder(client, component="virtual-node")
            async with running(recorder.run):
                recorder.record(event | {"count": count})
        (found,) = await events_of(cluster, "mirrored")
        assert (found["count"], found["source"]) == (7, event["source"])

    async def test_events_for_a_terminating_namespace_are_dropped_silently(
        self, cluster: Cluster, client: Client
    ) -> None:
        await cluster.apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "going"}},
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "held", "namespace": "going", "finalizers": ["example.com/held"]},
            },
        )
        await cluster.kubectl("delete", "namespace", "going", "--wait=false")
        client.cluster = "going"  # the metrics' label
        recorder = EventRecorder(client, component="virtual-node")
        pod = {"kind": "Pod", "apiVersion": "v1", "namespace": "going", "name": "late", "uid": "l"}
        with capture_logs() as logs:
            async with running(recorder.run):
                recorder.event(pod, "Normal", "Killing", "too late")
        assert [line for line in logs if line["log_level"] in {"warning", "error"}] == []
        labels = {"cluster": "going", "cause": "rejected"}
        assert REGISTRY.get_sample_value("virtual_node_events_dropped_total", labels) == 1
        assert await events_of(cluster, "late", namespace="going") == []
        await client.patch(
            resources.CONFIG_MAPS, "held", {"metadata": {"finalizers": None}}, namespace="going"
        )
