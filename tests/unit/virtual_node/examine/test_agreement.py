"""All tools agree: where one reports a fault, no other one reports health. States are drawn at random.

Each tool reads a state in its own way: the working process (page, metrics) from its caches, the commands
through the upper API server, as far as their rights allow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import prometheus_client
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from clusterset.config import Cluster
from clusterset.model import names
from controller_runtime.objects import from_dict
from controller_runtime.store import Store
from tests.thorough import IS_THOROUGH
from tests.unit.virtual_node.commands.doctor_facts import healthy as patient
from tests.unit.virtual_node.examine.health_objects import NOW, condition, lease, node, pod, swarm, waits
from virtual_node import metrics, process_health
from virtual_node.commands import doctor
from virtual_node.commands import inspect as inspect_command
from virtual_node.commands.status import command as status_command
from virtual_node.config.types import Config
from virtual_node.examine import reading
from virtual_node.examine.clusters import IDENTITY
from virtual_node.examine.codes import CHECKED
from virtual_node.examine.codes import SWARMS as FAULTS_OF_SWARMS
from virtual_node.examine.engine import examine
from virtual_node.examine.facts import BOUND as BOUND_PODS
from virtual_node.examine.facts import COMPONENTS, LEASES, Installation, known
from virtual_node.examine.facts import NODES as NODE_LIST
from virtual_node.examine.facts import SWARMS as SWARM_LIST
from virtual_node.examine.facts import WAITING as WAITING_PODS
from virtual_node.examine.health import Health, Verdict
from virtual_node.examine.leases import Report
from virtual_node.examine.snapshot import Fact, Snapshot, objects
from virtual_node.process_health import ProcessHealth
from virtual_node.process_state import ProcessState

UNREACHABLE = condition("Ready", "False", "LowerClusterUnreachable", "nothing listens there")
NODES: dict[str, dict[str, Any]] = {
    "well": {},
    "lost": {"ready": UNREACHABLE},
    "not Ready": {"ready": condition("Ready", "False", "NoReadyLowerNodes", "None of 2")},
    "cordoned": {"unschedulable": True},
    "stale": {"taints": [{"key": names.TAINT_STALE_CLUSTER, "effect": "NoSchedule"}]},
    "silent": {},
    "no Lease": {},
}
SCHEDULED = condition("PodScheduled", "True")
READY = condition("Ready", "True")
LOOP = waits("CrashLoopBackOff", lastState={"terminated": {"exitCode": 1}})
REFUSED = condition("virtual-node.io/Admitted", "False", "PodSecurity", "privileged")
UNSCHEDULABLE = condition("PodScheduled", "False", "Unschedulable", "0/3 nodes are available")
BOUND: dict[str, dict[str, Any]] = {
    "runs": {"phase": "Running", "conditions": [SCHEDULED, READY]},
    "starts": {"age": 5, "conditions": [{**SCHEDULED, "lastTransitionTime": "2025-12-31T23:59:55Z"}]},
    "does not start": {"conditions": [SCHEDULED]},
    "has no image": {"conditions": [SCHEDULED], "containers": [waits("ErrImagePull", "denied")]},
    "crashes": {"phase": "Running", "conditions": [SCHEDULED], "containers": [LOOP]},
    "waits for a name": {"conditions": [SCHEDULED], "containers": [waits("WaitingForPredecessor", "n1")]},
    "is refused": {"conditions": [REFUSED]},
    "has no lower node": {"conditions": [UNSCHEDULABLE]},
    "has failed": {"phase": "Failed", "conditions": [SCHEDULED]},
}
TAINTED = "0/1 nodes are available: 1 node(s) had untolerated taint {virtual-kubelet.io/provider: k8s}."
WAITING: dict[str, dict[str, Any]] = {
    "labelled": {"labels": {"virtual-pod": "true"}, "conditions": [UNSCHEDULABLE]},
    "new": {"labels": {"virtual-pod": "true"}, "age": 5},
    "unseen": {"labels": {"virtual-pod": "true"}, "schedulerName": "nobody"},
    "selects": {"nodeSelector": {"type": "virtual-kubelet"}, "conditions": [UNSCHEDULABLE]},
    "tainted": {"conditions": [condition("PodScheduled", "False", "Unschedulable", TAINTED)]},
    "for real nodes": {"conditions": [UNSCHEDULABLE]},
    "gated": {"labels": {"virtual-pod": "true"}, "schedulingGates": [{"name": "g"}]},
}
REPLICAS: dict[str, dict[str, Any]] = {
    "runs": {"phase": "Running", "conditions": [READY]},
    "crashes": {"phase": "Running", "containers": [LOOP]},
    "cannot mount": {"containers": [waits("ContainerCreating")]},
    "starts": {"age": 5, "containers": [waits("ContainerCreating")]},
    "is a finished hook": {"phase": "Failed", "restartPolicy": "Never"},
}
SWARMS: dict[str, Any] = {
    "works": condition("Converged", "True"),
    "hands over": condition("Converged", "False", age=5),
    "stands still": condition("Converged", "False"),
    "has no worker": condition("Assigned", "False"),
    "is degraded": condition("Degraded", "True"),
}
FACTS: dict[str, Fact[Any]] = {
    "leases": LEASES,
    "bound": BOUND_PODS,
    "waiting": WAITING_PODS,
    "components": COMPONENTS,
}
KINDS = tuple(FACTS)


@dataclass(frozen=True)
class World:
    """A state of the installation."""

    nodes: Sequence[str]
    bound: Sequence[tuple[int, str]]
    waiting: Sequence[str]
    replicas: Sequence[str]
    report: Report
    forbidden: frozenset[str]
    """Resources that this user may not read."""
    swarms: Sequence[str] = ()

    def swarm_objects(self) -> list[dict[str, Any]]:
        """The Swarms."""
        return [swarm(f"s{number}", SWARMS[state]) for number, state in enumerate(self.swarms)]

    def node_objects(self) -> list[dict[str, Any]]:
        """The Nodes."""
        return [
            node(f"vn-{number}", cluster=f"c{number}", **NODES[state])
            for number, state in enumerate(self.nodes)
        ]

    def leases(self) -> dict[str, dict[str, Any]]:
        """The Leases, with what their process reports."""
        annotations = {names.ANNOTATION_FAULTS: self.report.text()}
        return {
            f"vn-{number}": {
                **lease(300 if state == "silent" else 3),
                "metadata": {"name": f"vn-{number}", "annotations": annotations},
            }
            for number, state in enumerate(self.nodes)
            if state != "no Lease"
        }

    def bound_pods(self) -> list[dict[str, Any]]:
        """The pods on virtual nodes."""
        return [
            pod(f"b{number}", nodeName=f"vn-{place % len(self.nodes)}", **BOUND[state])
            for number, (place, state) in enumerate(self.bound)
            if self.nodes
        ]

    def waiting_pods(self) -> list[dict[str, Any]]:
        """The pods without a node."""
        return [pod(f"w{number}", **WAITING[state]) for number, state in enumerate(self.waiting)]

    def components(self) -> list[dict[str, Any]]:
        """Return the pods of this project's components."""
        return [
            pod(f"r{number}", nodeName="real", **REPLICAS[state])
            for number, state in enumerate(self.replicas)
        ]


CAUSES = st.dictionaries(st.sampled_from(["c0", "new"]), st.just("no such file"), max_size=1)
WORLDS = st.builds(
    World,
    nodes=st.lists(st.sampled_from([*NODES, *["well"] * 5]), max_size=3),
    bound=st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from([*BOUND, *["runs"] * 8])), max_size=3
    ),
    waiting=st.lists(st.sampled_from([*WAITING, *["for real nodes"] * 6]), max_size=2),
    replicas=st.lists(st.sampled_from([*REPLICAS, *["runs"] * 5]), max_size=2),
    report=st.builds(
        Report,
        st.one_of(st.just({}), st.just({}), st.just({"": "unknown field"}), CAUSES),
        st.one_of(st.just({}), st.just({}), CAUSES),
        st.one_of(st.just({}), st.just({}), CAUSES),
    ),
    forbidden=st.one_of(
        st.just(frozenset()), st.just(frozenset()), st.frozensets(st.sampled_from(KINDS), max_size=2)
    ),
    swarms=st.lists(st.sampled_from([*SWARMS, *["works"] * 5]), max_size=2),
)  # fmt: skip


def by_process(world: World) -> tuple[Health, Health]:
    """Return the verdicts of the process that runs the virtual nodes: the page's headline, and the metrics'."""
    running: dict[str, Any] = {}
    leases = world.leases()
    for number, (state, found) in enumerate(zip(world.nodes, world.node_objects(), strict=True)):
        name, store = found["metadata"]["name"], Store({})
        for one in world.bound_pods():
            if one["spec"]["nodeName"] == name:
                _put(store, one)
        running[f"c{number}"] = SimpleNamespace(
            health=SimpleNamespace(
                reachable=state != "lost", error="nothing listens there", served_certificate=None
            ),
            nodes={name: SimpleNamespace(node=found, error="")},
            leases={name: SimpleNamespace(spec=(leases.get(name) or {}).get("spec") or {})},
            caches=SimpleNamespace(upper={name: SimpleNamespace(store=store)}),
            pods=object(),
        )
    configured = sorted({*running, *world.report.failed})
    process = ProcessState(
        Config(clusters=[Cluster(name=name, kubeconfig="/x") for name in configured]),
        clusters=running,
        failures=dict(world.report.failed),
        rejected=world.report.rejected,
    )
    pods = {"waiting-pods": world.waiting_pods(), "component-pods": world.components()}

    def informer(_client: object, _resource: object, *, name: str, **_selection: Any) -> Any:
        store = Store({})
        for one in pods[name]:
            _put(store, one)
        return SimpleNamespace(store=store, has_synced=True, last_error=None, name=name)

    expiring = mock.patch.object(ProcessState, "expiring", world.report.expiring)
    with expiring, mock.patch.object(process_health, "Informer", informer):
        health = ProcessHealth(process, upper=cast("Any", None), replicas_in="vn", clock=lambda: NOW)
        asyncio.run(health._read_pods())
        return health.health(world.swarm_objects()), health.health()


class _Reader:
    """No component has a log line or an event."""

    async def last_words(self, _pod: object) -> list[str]:
        return []


def by_status(world: World) -> Health:
    """Return the verdict of ``virtual-node status``."""
    readable: dict[Fact[Any], Any] = {
        NODE_LIST: world.node_objects(),
        LEASES: world.leases(),
        BOUND_PODS: world.bound_pods(),
        WAITING_PODS: world.waiting_pods(),
        COMPONENTS: world.components(),
        SWARM_LIST: world.swarm_objects(),
    }
    forbidden = {FACTS[kind]: None for kind in world.forbidden}
    snapshot = known(NOW, readable | forbidden)
    return asyncio.run(status_command.judge(cast("Any", _Reader()), snapshot, ()))


def by_doctor(world: World) -> tuple[bool, bool]:
    """Return whether ``doctor`` reports a fault, and whether it reports health: its exit code 0 and "Every link holds."."""
    snapshot = patient(
        nodes=world.node_objects(),
        kubelets={},
        leases=world.leases(),
        bound=world.bound_pods(),
        pending=world.waiting_pods(),
        installation=Installation(pods=world.components()),
        swarms=world.swarm_objects(),
        unread={FACTS[kind]: "403" for kind in world.forbidden},
    )
    links = doctor.judged(snapshot)
    assert doctor.holds(links) == (doctor.sentence(links) == "Every link holds.")
    return doctor.first_broken(links) is not None, doctor.holds(links)


def by_inspect(world: World) -> tuple[bool, bool]:
    """Return whether ``inspect`` reports a fault, and whether it reports that there is none."""
    lists: dict[str, tuple[Fact[Any], Any]] = {
        "leases": (LEASES, world.leases()),
        "bound": (objects("Pod"), world.bound_pods()),
        "waiting": (WAITING_PODS, world.waiting_pods()),
        "components": (COMPONENTS, world.components()),
    }
    facts = Snapshot(NOW)
    facts.upper.put(IDENTITY, "id")
    facts.upper.put(objects("Node"), world.node_objects())
    facts.upper.put(SWARM_LIST, world.swarm_objects())
    for kind, (fact, found) in lists.items():
        if kind in world.forbidden:
            facts.upper.refuse(fact, "403")
        else:
            facts.upper.put(fact, found)
    reading.add_installation(facts)
    rows = inspect_command.rows(examine(facts, levels=inspect_command.LEVELS, codes=CHECKED).findings)
    faults = any(one.severity != "info" and one.check != "unread" for one in rows)
    return faults, inspect_command.summary(facts, rows).endswith("no findings")


@settings(max_examples=400 if IS_THOROUGH else 20, deadline=None)
@given(WORLDS)
@example(World(["well"], [], [], [], Report({}, {}, {"c0": "x"}), frozenset()))
def test_no_tool_reports_health_where_another_reports_a_fault(world: World) -> None:
    """Page, status, doctor and inspect, and the metrics with the page, except for Swarms, which have no metric here."""
    faulty: dict[str, bool] = {}
    well: dict[str, bool] = {}
    status = by_status(world)
    faulty["status"], well["status"] = bool(status.faults), status.verdict is Verdict.HEALTHY
    faulty["doctor"], well["doctor"] = by_doctor(world)
    faulty["inspect"], well["inspect"] = by_inspect(world)
    # A process that does not renew its Leases has ended, and so has its page.
    if not {"silent", "no Lease"} & set(world.nodes):
        page, measured = by_process(world)
        faulty["page"], well["page"] = bool(page.faults), page.verdict is Verdict.HEALTHY
        metrics.show_health(measured)
        sample = prometheus_client.REGISTRY.get_sample_value
        assert sample("virtual_node_health", {"verdict": "healthy"}) == (measured.verdict is Verdict.HEALTHY)
        assert page.unknown == measured.unknown
        assert [one for one in page.faults if one.code not in FAULTS_OF_SWARMS] == measured.faults
        metrics.forget_health()
    event(
        f"faulty: {any(faulty.values())}, healthy: {any(well.values())}, may read all: {not world.forbidden}"
    )
    assert not (any(faulty.values()) and any(well.values())), (faulty, well)
    if not world.forbidden:
        # With all rights the tools read the same, so their verdicts are equal.
        assert len(set(faulty.values())) == 1, faulty
        assert len(set(well.values())) == 1, well


def test_a_healthy_state_is_healthy_to_all() -> None:
    """Otherwise tools that never report health would satisfy the property above."""
    world = World(["well"], [(0, "runs")], ["for real nodes"], ["runs"], Report(), frozenset())
    assert by_status(world).verdict is Verdict.HEALTHY
    assert by_process(world)[0].verdict is Verdict.HEALTHY
    assert by_doctor(world) == (False, True)
    assert by_inspect(world) == (False, True)


def _named(one: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "Pod", **one, "metadata": {"resourceVersion": "1", **one["metadata"]}}


def _put(store: Store, one: dict[str, Any]) -> None:
    stored = from_dict(_named(one))
    store.put(stored.key, stored)
