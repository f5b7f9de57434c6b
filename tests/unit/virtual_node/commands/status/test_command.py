"""``virtual-node status``: visible facts are shown, missing rights named, and the exit code means Ready."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from aiohttp import web

from clusterset.model import names
from clusterset.model.moving.silence import Silence, render
from controller_runtime.apimachinery import timestamps
from tests.unit.virtual_node.commands.doctor_facts import conditions, container, node, pod
from tests.unit.virtual_node.commands.run_command import EVENTS, LEASES, NODES, PODS, SHOP, Person


def _objects(*nodes: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    running = pod(nodeName="vn", status={"phase": "Running"})
    found = list(nodes) or [node()]
    leases = [_renewed(one["metadata"]["name"]) for one in found]
    return {NODES: found, LEASES: leases, SHOP: [running]}


def _renewed(name: str) -> dict[str, Any]:
    """Return a Lease that is fresh by the API server's clock, which is this machine's."""
    now = timestamps.micro_time(datetime.now(UTC))
    return {"metadata": {"name": name}, "spec": {"renewTime": now, "leaseDurationSeconds": 40}}


async def test_everything_is_shown_with_all_rights(person: Person):
    """A line for each, sorted by name, and nothing on stderr."""
    code, out, err = await person.types(
        "status", objects=_objects(node("vn"), node("vn-a"), node("other", virtual=False))
    )
    lines = [line.split() for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert lines[0][:2] == ["NODE", "READY"]
    assert [line[0] for line in lines[1:]] == ["vn", "vn-a"]
    assert lines[1][4] == "1/1"


async def test_forbidden_values_are_question_marks_with_the_right_named(person: Person):
    """Without pods and Leases Ready is still known, which is the exit code."""
    code, out, err = await person.types("status", objects=_objects(), forbidden=(PODS, LEASES))
    row = out.splitlines()[1].split()
    assert (code, row[0], row[1], row[4], row[5], row[9]) == (0, "vn", "True", "?", "?", "?")
    assert len(err.splitlines()) == 1
    assert "kubectl auth can-i list pods --all-namespaces" in err
    assert "kubectl auth can-i list leases.coordination.k8s.io --namespace=kube-node-lease" in err


async def test_quantities_have_common_units(person: Person):
    """Cores and GiB in the table, without blanks that would break its columns; exact values in data."""
    one = node()
    one["status"]["allocatable"] = {"cpu": "7500m", "memory": "24632884Ki", "pods": "110"}
    _, out, _ = await person.types("status", objects=_objects(one), forbidden=(PODS,))
    assert out.splitlines()[1].split()[6:8] == ["?/7.5", "?/23.5GiB"]
    _, out, _ = await person.types("status", "-o", "json", objects=_objects(one))
    assert json.loads(out)["nodes"][0]["resources"]["memory"]["allocatable"] == "24632884Ki"


async def test_data_names_the_missing_rights_too(person: Person):
    """Otherwise programs would read 0 as a value."""
    code, out, err = await person.types("status", "-o", "json", objects=_objects(), forbidden=(PODS,))
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert found["nodes"][0]["pods"] is None
    assert found["nodes"][0]["resources"]["cpu"] == {"used": None, "allocatable": "8"}
    assert found["missingRights"] == [
        {"right": "list pods", "check": "kubectl auth can-i list pods --all-namespaces"}
    ]


async def test_without_the_right_to_nodes_there_is_an_error(person: Person):
    """One line with the right."""
    code, out, err = await person.types("status", objects=_objects(), forbidden=(NODES,))
    assert (code, out) == (2, "")
    assert err == (
        "virtual-node: this command needs the right to list nodes: kubectl auth can-i list nodes\n"
    )


async def test_forbidden_metrics_omit_only_the_lag(person: Person):
    """nodes/proxy is a right of administrators."""
    code, out, err = await person.types("status", objects=_objects(), forbidden=(f"{NODES}/vn/proxy/*",))
    assert (code, out.splitlines()[1].split()[8]) == (0, "-")
    assert "kubectl auth can-i get nodes --subresource=proxy\n" in err


@pytest.mark.parametrize(
    ("broken", "cell"),
    [({"status": conditions("Ready", "False", "X", "m\nn")}, "False"), ({"status": {}}, "Unknown")],
)
async def test_a_node_that_is_not_ready_is_exit_code_1(person: Person, broken: dict[str, Any], cell: str):
    """So a script can wait for it; its last error is in the wide table, in one line."""
    code, out, _ = await person.types("status", "-o", "wide", objects=_objects({**node(), **broken}))
    assert (code, len(out.splitlines()), out.splitlines()[1].split()[1]) == (1, 2, cell)


async def test_a_node_that_is_not_ready_has_a_reason_and_a_next_step(person: Person):
    """In a line on stderr, for five of them at most."""
    away = [
        {**node(f"vn-{n}"), "status": conditions("Ready", "False", "X", f"cluster {n} is away")}
        for n in range(9)
    ]
    code, out, err = await person.types("status", objects=_objects(*away))
    assert (code, len(out.splitlines())) == (1, 10)
    assert err.splitlines() == [
        *(
            f"error: Node vn-{n} is not Ready: X: cluster {n} is away (virtual-node diagnose node vn-{n})"
            for n in range(5)
        ),
        "and 4 more faults: virtual-node doctor",
    ]


async def test_a_cordoned_node_is_shown_as_by_kubectl(person: Person):
    code, out, _ = await person.types("status", objects=_objects(node(unschedulable=True)))
    assert (code, out.splitlines()[1].split()[1]) == (0, "True,SchedulingDisabled")


async def test_the_release_is_in_the_wide_table(person: Person):
    """In addition to the lower cluster's version, which is the kubelet's."""
    told = node()
    told["metadata"]["labels"]["virtual-node.io/version"] = "1.2.3"
    told["status"]["nodeInfo"] = {"kubeletVersion": "v1.34.1"}
    _, out, _ = await person.types("status", "-o", "wide", objects=_objects(told))
    headings, row = (line.split() for line in out.splitlines())
    assert (row[headings.index("VERSION")], row[headings.index("AGE") + 2]) == ("v1.34.1", "1.2.3")


async def test_names_and_labels_select(person: Person):
    """As with kubectl get; a missing name gets a suggestion."""
    objects = _objects(node("vn-tokyo"), node("vn-paris"))
    objects[NODES][0]["metadata"]["labels"]["zone"] = "asia"
    assert (await person.types("status", "-o", "name", objects=objects))[
        1
    ] == "node/vn-paris\nnode/vn-tokyo\n"
    assert (await person.types("status", "vn-tokyo", "-o", "name", objects=objects))[1] == "node/vn-tokyo\n"
    both = await person.types("status", "vn-tokyo", "-o", "name", "vn-paris", objects=objects)
    assert both == (0, "node/vn-paris\nnode/vn-tokyo\n", "")
    assert (await person.types("status", "-l", "zone=asia", "-o", "name", objects=objects))[
        1
    ] == "node/vn-tokyo\n"
    code, _, err = await person.types("status", "vn-tokio", objects=objects)
    assert (code, err) == (2, "virtual-node: there is no virtual node 'vn-tokio', did you mean vn-tokyo?\n")


async def test_headings_can_be_left_out(person: Person):
    _, out, _ = await person.types("status", "--no-headers", objects=_objects())
    assert [line.split()[0] for line in out.splitlines()] == ["vn"]


async def test_an_empty_cluster_gets_a_next_step(person: Person):
    """On stderr, so that a script reads no table; and data is an empty list."""
    code, out, err = await person.types("status", objects={NODES: [], LEASES: []})
    assert (code, out) == (1, "")
    assert (
        "There are no virtual nodes (label type=virtual-kubelet) in this cluster; virtual-node doctor" in err
    )
    code, out, _ = await person.types("status", "-o", "json", objects={NODES: [], LEASES: []})
    assert (code, json.loads(out)["nodes"]) == (1, [])


UNPLACED = {"conditions": conditions("PodScheduled", "False", "Unschedulable", "0/2 nodes")["conditions"]}


async def test_faults_are_listed_after_the_table(person: Person):
    """A pod without a node is a warning, which does not change the exit code; a crashing replica is an error."""
    objects = _objects()
    objects[SHOP].append(pod("later", status=UNPLACED))
    code, _, err = await person.types("status", objects=objects)
    assert code == 0
    assert err == "warning: Pod shop/later: 0/2 nodes (virtual-node diagnose pod shop/later)\n"
    crash = container({"waiting": {"reason": "CrashLoopBackOff"}}, lastState={"terminated": {"exitCode": 1}})
    replica = pod("vn-0", labels={"app.kubernetes.io/part-of": "virtual-node"}, nodeName="real", status=crash)
    log = {f"{SHOP}/vn-0/log": lambda _request: web.Response(text="starting\nno such file: b.yaml\n")}
    objects[SHOP] = [replica]
    code, _, err = await person.types("status", objects=objects, answers=log)
    assert code == 1
    assert err.startswith(
        "error: Pod shop/vn-0 is in CrashLoopBackOff (exit code 1): no such file: b.yaml (kubectl"
    )
    code, out, err = await person.types("status", "-o", "json", objects=objects, answers=log)
    assert (code, err) == (1, "")
    assert [one["kind"] for one in json.loads(out)["health"]["faults"]] == ["ReplicaFailing"]


async def test_a_replica_that_cannot_mount_names_the_secret(person: Person):
    """From the last warning about it, because it has no log."""
    replica = pod("vn-0", labels={"app.kubernetes.io/part-of": "virtual-node"}, nodeName="real", status={})
    event = {
        "metadata": {"name": "e", "namespace": "shop"},
        "type": "Warning",
        "message": 'secret "tokoy" not found',
    }
    code, _, err = await person.types("status", objects={**_objects(), SHOP: [replica], EVENTS: [event]})
    assert code == 1
    assert 'Pod shop/vn-0 is Pending: secret "tokoy" not found' in err


async def test_countdown_of_a_silent_cluster_follows_its_fault(person: Person):
    since = datetime.now(UTC).replace(microsecond=0) - timedelta(seconds=42)
    silence = Silence(since=since, running_pods_move_at=since + timedelta(seconds=300))
    away = {**node("vn-b"), "status": conditions("Ready", "False", "LowerClusterUnreachable", "no answer")}
    away["metadata"]["annotations"] = {names.ANNOTATION_SILENCE: render(silence)}
    away["spec"] = {"taints": [{"key": names.TAINT_STALE_CLUSTER, "effect": "NoSchedule"}]}
    _, _, err = await person.types("status", objects=_objects(away))
    assert re.match(
        r"error: Cluster vn-b: no answer; silent for 4\d s; running pods move in 25\d s \(bring its API", err
    )
    _, out, _ = await person.types("status", "-o", "json", objects=_objects(away))
    (fault,) = json.loads(out)["health"]["faults"]
    assert fault["silence"]["runningPodsMoveAt"] == timestamps.rfc3339(silence.running_pods_move_at)


async def test_faults_of_other_nodes_are_left_out(person: Person):
    """Those of its own lower cluster are included."""
    away = {**node("vn-b"), "status": conditions("Ready", "False", "LowerClusterUnreachable", "no answer")}
    objects = _objects(node("vn-a"), away)
    assert await person.types("status", "vn-a", "-o", "name", objects=objects) == (0, "node/vn-a\n", "")
    code, _, err = await person.types("status", "vn-b", objects=objects)
    assert (code, err.startswith("error: Cluster vn-b: no answer")) == (1, True)
