"""The health that the working process reports, from its caches and controllers."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import prometheus_client
import pytest
from structlog.testing import capture_logs

from clusterset.config import Cluster
from controller_runtime.objects import from_dict
from controller_runtime.store import Store
from tests.background import working
from tests.unit.virtual_node.examine.health_objects import NOW, condition, lease, node, pod, waits
from virtual_node import process_health
from virtual_node import process_health as module
from virtual_node.config.types import Config
from virtual_node.examine.codes import Code
from virtual_node.examine.engine import of_pod
from virtual_node.examine.health import Verdict
from virtual_node.process_health import ProcessHealth
from virtual_node.process_state import ProcessState

pytestmark = pytest.mark.looptime
PULL = waits("ErrImagePull", "no such host")


class _Informer:
    """A cache of the upper cluster with a test's objects."""

    made: ClassVar[dict[str, _Informer]] = {}

    def __init__(self, _client: Any, _resource: Any, *, name: str, **selection: Any) -> None:
        self.name, self.selection = name, selection
        self.store = Store({})
        self.has_synced, self.last_error = True, None
        _Informer.made[name] = self

    async def run(self) -> None:
        await asyncio.Event().wait()


@pytest.fixture(autouse=True)
def _informers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Informer", _Informer)
    monkeypatch.setattr(_Informer, "made", {})


def _put(store: Store, one: dict[str, Any], *, version: str = "1") -> None:
    stored = from_dict({**one, "metadata": {**one["metadata"], "resourceVersion": version}})
    store.put(stored.key, stored)


class _Process:
    """A process with cluster ``a`` and one virtual node, healthy by default."""

    def __init__(self, *, replicas_in: str = "", leader: str = "") -> None:
        self.pods = Store({})
        self.cluster: Any = SimpleNamespace(
            health=SimpleNamespace(reachable=True, error="", served_certificate=None),
            nodes={"vn-a": SimpleNamespace(node=node(), error="")},
            leases={"vn-a": SimpleNamespace(spec=lease()["spec"])},
            caches=SimpleNamespace(upper={"vn-a": SimpleNamespace(store=self.pods)}),
            pods=object(),
        )
        clusters: dict[str, Any] = {"a": self.cluster}
        self.state = ProcessState(Config(), clusters=clusters)
        self.configure("a")
        if leader:
            elector: Any = SimpleNamespace(leader=f"{leader}_1")
            self.state.is_standby, self.state.elector = True, elector
        upper: Any = None
        self.health = ProcessHealth(
            self.state,
            upper=upper,
            replicas_in=replicas_in,
            clock=lambda: NOW,
        )

    def configure(self, *clusters: str) -> None:
        """Replace the configured lower clusters."""
        self.state.config.clusters = [Cluster(name=name, kubeconfig="/x") for name in clusters]

    async def verdict(self) -> tuple[Verdict, list[Code]]:
        """Return verdict and kinds of faults, after one more pass over the pods."""
        async with working(self.health.run()):
            await asyncio.sleep(1)
            found = self.health.health()
        return found.verdict, [fault.code for fault in found.faults]


async def test_a_process_without_faults_is_healthy():
    """All caches are read, and the page's sentence says so."""
    process = _Process()
    _put(process.pods, pod(phase="Running", nodeName="vn-a"))
    assert await process.verdict() == (Verdict.HEALTHY, [])


async def test_reports_faults_of_controllers_and_caches():
    """A lost cluster, one that does not run, a rejected file, pods on the node and pods without one."""
    process = _Process()
    process.cluster.health = SimpleNamespace(
        reachable=False, error="nothing listens there", served_certificate=None
    )
    process.configure("a", "b")
    process.state.failures = {"b": "no such file: b.yaml"}
    process.state.rejected = {"": "unknown field lables"}
    _put(process.pods, pod(containers=[PULL], nodeName="vn-a"))
    _put(_Informer.made["waiting-pods"].store, pod("later", labels={"virtual-pod": "true"}))
    assert await process.verdict() == (
        Verdict.FAULTY,
        [
            Code.CONFIGURATION_REJECTED,
            Code.CLUSTER_FAILED,
            Code.CLUSTER_LOST,
            Code.POD_UNSCHEDULED,
            Code.POD_FAILING,
        ],
    )


async def test_watches_its_own_components_where_there_are_several_replicas():
    """A standby that crashes is a fault of the installation. Pods of other namespaces do not count."""
    process = _Process(replicas_in="virtual-node-system")
    informer = _Informer.made["component-pods"]
    assert informer.selection["namespace"] == "virtual-node-system"
    _put(informer.store, pod("vn-1", containers=[waits("CrashLoopBackOff")]))
    assert await process.verdict() == (Verdict.FAULTY, [Code.REPLICA_FAILING])


async def test_unread_caches_are_not_healthy():
    """Before the first pass, while a cluster starts, and while the upper cluster is unreachable."""
    process = _Process()
    assert process.health.health().verdict is Verdict.UNKNOWN
    process.configure("a", "starting")
    assert await process.verdict() == (Verdict.UNKNOWN, [])
    process.configure("a")
    _Informer.made["waiting-pods"].last_error = ConnectionError("refused")  # type: ignore[assignment]
    assert await process.verdict() == (Verdict.UNKNOWN, [])


async def test_a_standby_names_the_working_replica():
    """It has no caches, so it reports nothing about the installation."""
    process = _Process(leader="vn-7")
    found = process.health.health()
    assert found.verdict is Verdict.UNKNOWN
    assert "vn-7 works" in found.unknown["installation"]


async def test_a_changed_pod_is_judged_again():
    """A pod is judged once for each version, and dropped when it is deleted."""
    process = _Process()
    _put(process.pods, pod(containers=[PULL], nodeName="vn-a"))
    async with working(process.health.run()):
        await asyncio.sleep(1)
        assert len(process.health.health().faults) == 1
        running = condition("Ready", "True")
        _put(process.pods, pod(phase="Running", conditions=[running], nodeName="vn-a"), version="2")
        await asyncio.sleep(6)
        assert process.health.health().verdict is Verdict.HEALTHY
        _put(process.pods, pod(containers=[PULL], nodeName="vn-a"), version="3")
        await asyncio.sleep(6)
        assert process.health.health().verdict is Verdict.FAULTY
        process.pods.remove("shop/web")
        await asyncio.sleep(6)
        assert process.health.health().verdict is Verdict.HEALTHY


async def test_metrics_show_the_verdict_while_the_process_works():
    """One gauge per kind and one per verdict; none afterwards."""
    process = _Process()
    _put(process.pods, pod(containers=[PULL], nodeName="vn-a"))
    value = prometheus_client.REGISTRY.get_sample_value
    async with working(process.health.run()):
        await asyncio.sleep(1)
        assert value("virtual_node_faults", {"kind": "PodFailing"}) == 1
        assert value("virtual_node_faults", {"kind": "ClusterLost"}) == 0
        assert value("virtual_node_health", {"verdict": "faulty"}) == 1
        assert value("virtual_node_health", {"verdict": "healthy"}) == 0
    assert value("virtual_node_health", {"verdict": "faulty"}) is None
    assert value("virtual_node_faults", {"kind": "PodFailing"}) is None


async def test_an_error_in_judging_is_logged_and_the_task_continues(monkeypatch: pytest.MonkeyPatch):
    """For any object."""
    process = _Process()
    monkeypatch.setattr(process_health, "summary_of", lambda _pod: 1 / 0)
    _put(process.pods, pod(phase="Running", nodeName="vn-a"))
    async with working(process.health.run()):
        with capture_logs() as logs:
            await asyncio.sleep(6)
        assert {one["event"] for one in logs} == {"health not computed"}
        assert process.health.health().verdict is Verdict.UNKNOWN
        monkeypatch.undo()
        await asyncio.sleep(6)
        assert process.health.health().verdict is Verdict.HEALTHY


async def test_a_pod_for_real_nodes_costs_no_memory():
    """Users may create any number of them; only those for virtual nodes are kept."""
    kept = [
        pod(labels={"virtual-pod": "true"}),
        pod(nodeSelector={"kubernetes.io/hostname": "vn-later"}),
        pod(tolerations=[{"key": "virtual-kubelet.io/provider", "operator": "Exists"}]),
    ]
    for one in kept:
        assert module.shrink_foreign(from_dict(one)).spec == one["spec"]
    foreign = module.shrink_foreign(from_dict(pod(nodeSelector={"disktype": "ssd"})))
    assert (foreign.spec, foreign.status, foreign.key) == ({}, {}, "shop/web")
    assert not of_pod(foreign.to_dict(), ())


async def test_remarks_of_the_configuration_do_not_change_the_verdict():
    """The page and the metrics show them, as ``check`` and ``inspect`` do."""
    process = _Process()
    process.state.config.enable_serviceaccount = False
    process.state.config.kubernetes_service = "Upper"
    process.state.config.clusters[0].namespaces.prefix = "team-"
    _put(process.pods, pod(phase="Running", nodeName="vn-a"))
    value = prometheus_client.REGISTRY.get_sample_value
    async with working(process.health.run()):
        await asyncio.sleep(1)
        found = process.health.health()
        assert (found.verdict, found.faults) == (Verdict.HEALTHY, [])
        shown = [(one["kind"], one["severity"]) for one in found.data()["remarks"]]
        assert shown == [("UpperNamesNotFound", "info"), ("APIServerMismatch", "info")]
        assert value("virtual_node_remarks", {"kind": "APIServerMismatch"}) == 1
        assert value("virtual_node_remarks", {"kind": "APIServerNotUsable"}) == 0
    assert value("virtual_node_remarks", {"kind": "APIServerMismatch"}) is None


async def test_publishes_the_last_inspection_as_metrics():
    """From its ConfigMap every minute; broken content is unknown and stops nothing."""
    finding = {
        "state": "new", "since": "2026-01-01T00:00:00Z", "severity": "error",
        "check": "leaked", "cluster": "a", "kind": "Pod", "object": "shop/web", "message": "m",
    }  # fmt: skip
    run = {"time": "2026-01-01T00:00:00Z", "errors": 1, "warnings": 0, "new": 1, "fixed": 0}
    data = {"history.json": json.dumps({"findings": [finding], "runs": [run]})}

    class Upper:
        async def get(self, _: object, name: str, *, namespace: str) -> dict[str, Any]:
            assert (namespace, name) == ("system", "runs")
            return {"data": data}

    def metric(name: str, **labels: str) -> float | None:
        return prometheus_client.REGISTRY.get_sample_value(f"virtual_node_inspection_{name}", labels)

    process = _Process()
    health = ProcessHealth(process.state, upper=cast("Any", Upper()), replicas_in="", history="system/runs")
    async with working(health.run()):
        await asyncio.sleep(1)
        assert metric("findings", severity="error", state="new") == 1
        assert metric("findings", severity="warning", state="fixed") == 0
        assert metric("timestamp_seconds") == NOW.timestamp()
        wrong_time = json.dumps({"runs": [{**run, "time": "yesterday"}]})
        for broken in ('{"findings": 3}', '{"runs": [{}]}', wrong_time):
            data["history.json"] = broken
            await asyncio.sleep(60)
            assert metric("findings", severity="error", state="new") is None
            assert metric("timestamp_seconds") == 0
            assert health.inspection is None
    assert metric("timestamp_seconds") == 0
