"""``virtual-node diagnose``: kubectl's ways to name objects, verdicts from visible objects, reliable exit codes."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from aiohttp import web

from clusterset.model import names
from tests.unit.controller_runtime.loopback import reply
from tests.unit.virtual_node.commands.doctor_facts import conditions, node, pod
from tests.unit.virtual_node.commands.run_command import (
    DEPLOYMENTS,
    EVENTS,
    LEASES,
    NODES,
    PODS,
    SHOP,
    Person,
)
from tests.unit.virtual_node.examine.health_objects import NOW, lease
from virtual_node.commands import diagnose
from virtual_node.commands.diagnose import selector_text
from virtual_node.examine.leases import Report

RUNNING = {"phase": "Running", **conditions("Ready", "True")}
PULLING = {
    "phase": "Pending",
    "containerStatuses": [{"name": "c", "image": "i", "state": {"waiting": {"reason": "ErrImagePull"}}}],
}
OBJECTS: dict[str, list[dict[str, Any]]] = {
    NODES: [node(), node("real", virtual=False)],
    LEASES: [],
    EVENTS: [],
    SHOP: [pod("web", nodeName="vn", status=RUNNING, labels={"app": "web"})],
    DEPLOYMENTS: [
        {
            "metadata": {"name": "web", "namespace": "shop"},
            "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}},
        }
    ],
}


def _objects(**changes: Any) -> dict[str, list[dict[str, Any]]]:
    return {**copy.deepcopy(OBJECTS), **changes}


@pytest.mark.parametrize(
    "words",
    [
        ["pod", "web"],  # the context's namespace
        ["pod/web"],
        ["po/web", "-n", "shop"],
        ["pods", "web", "--namespace=shop"],
        ["pod", "shop/web"],
        ["pod/shop/web", "-n", "other"],
    ],
)
async def test_a_pod_is_named_as_with_kubectl(person: Person, words: list[str]):
    """Type and name in one word or two; the namespace of the flag, the name, or the context."""
    code, out, err = await person.types("diagnose", *words, objects=_objects())
    assert (code, err) == (0, "")
    assert "pod shop/web" in out
    assert "nothing is wrong" in out


@pytest.mark.parametrize(
    "words",
    [
        ["pod", "-n", "shop", "web"],
        ["-n", "shop", "pod", "web"],
        ["pod", "web", "-n", "shop"],
        ["-o", "text", "pod", "--namespace=shop", "web"],
        ["-n", "shop", "--", "pod", "web"],
    ],
)
async def test_flags_may_be_anywhere(person: Person, words: list[str]):
    """As with kubectl, also between the type and the name."""
    code, out, err = await person.types("diagnose", *words, objects=_objects(), flags_first=True)
    assert (code, err) == (0, "")
    assert "pod shop/web" in out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["pod"], "give TYPE/NAME or TYPE NAME"),
        (["pod/web", "web"], "give TYPE/NAME or TYPE NAME"),
        (["pod", "a/b/c"], "'a/b' is not the name of a namespace"),
        (["pod", ".."], "'..' is not the name of a pod"),
        (["pod", "[bold]x"], "'[bold]x' is not the name of a pod"),
        (["pod/"], "'' is not the name of a pod"),
        (["pod", "wbe"], "there is no pod shop/wbe in the upper cluster, did you mean web?"),
        (["pod", "web", "-n", "default"], "no pod default/web in the upper cluster, did you mean shop/web?"),
        (["pod", "web-2", "-n", "default"], "there is no pod default/web-2 in the upper cluster\n"),
        (["node/zzz"], "there is no node zzz in the upper cluster; virtual-node doctor says why"),
        (["deploy/api"], "there is no deployment shop/api in the upper cluster"),
        (["node/vnn"], "there is no node vnn in the upper cluster, did you mean vn?"),
        (["node/real"], "real is a node of the upper cluster itself, not a virtual one"),
        (["service/web"], "'service/web' is not one of pod, node, deployment"),
    ],
)
async def test_a_missing_object_is_reported_in_one_line(person: Person, words: list[str], told: str):
    """No traceback for any name, and exit code 2."""
    objects = {**_objects(), "/api/v1/namespaces/default/pods": []}
    code, out, err = await person.types("diagnose", *words, objects=objects)
    assert (code, out) == (2, "")
    assert told in err
    assert len(err.splitlines()) <= 2


async def test_a_verdict_needs_only_the_pod(person: Person):
    """Nodes, events and Leases may be forbidden; the missing rights are named."""
    objects = _objects()
    objects[SHOP] = [pod("web", nodeName="vn", status=PULLING)]
    code, out, err = await person.types(
        "diagnose", "pod/web", objects=objects, forbidden=(NODES, f"{NODES}/*", EVENTS, f"{LEASES}/*")
    )
    assert code == 1
    assert "✗ The lower node cannot pull i." in out
    assert "does not exist" not in out
    for right in ("list nodes", "list events --namespace=shop", "get leases.coordination.k8s.io"):
        assert f"kubectl auth can-i {right}" in err


async def test_forbidden_nodes_do_not_count_as_missing(person: Person):
    """A pod without a node: the verdict is the scheduler's message."""
    status = conditions(
        "PodScheduled", "False", "Unschedulable", "0/3 nodes are available: 3 Insufficient cpu."
    )
    code, out, _ = await person.types(
        "diagnose", "pod/web", objects=_objects(**{SHOP: [pod("web", status=status, nodeSelector={"a": "b"})]}),
        forbidden=(NODES,),
    )  # fmt: skip
    assert code == 1
    assert "No virtual node has enough free resources." in out
    assert "There is no virtual node" not in out


async def test_the_right_to_read_the_pod_is_required(person: Person):
    """It is named."""
    code, _, err = await person.types("diagnose", "pod/web", objects=_objects(), forbidden=(f"{SHOP}/web",))
    assert (code, "kubectl auth can-i get pods --namespace=shop" in err) == (2, True)


async def test_a_pod_on_a_real_node_is_reported_as_such(person: Person):
    """It is no virtual node's pod."""
    objects = _objects(**{SHOP: [pod("web", nodeName="real", status={"phase": "Pending", "conditions": []})]})
    code, out, _ = await person.types("diagnose", "pod/web", objects=objects)
    assert code == 1
    assert "real is a node of the upper cluster itself, not a virtual one." in out


async def test_a_completed_pod_is_healthy(person: Person):
    ended = {"phase": "Succeeded", "containerStatuses": [{"name": "c", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}]}  # fmt: skip
    code, out, _ = await person.types("diagnose", "pod/web", objects=_objects(**{SHOP: [pod("web", nodeName="vn", status=ended)]}))  # fmt: skip
    assert (code, "The pod has completed" in out) == (0, True)


async def test_a_running_pod_that_is_not_ready_is_unhealthy(person: Person):
    """Its events may have expired."""
    status = {"phase": "Running", **conditions("Ready", "False", "ContainersNotReady", "containers with unready status: [c]")}  # fmt: skip
    code, out, _ = await person.types("diagnose", "pod/web", objects=_objects(**{SHOP: [pod("web", nodeName="vn", status=status)]}))  # fmt: skip
    assert code == 1
    assert "The pod runs, and is not ready." in out
    assert "[c]" in out  # brackets are no markup


async def test_an_unreachable_lower_cluster_is_noted_beside_the_verdict(person: Person):
    """The verdict uses the upper cluster."""
    below = person.folder / "below"
    below.write_text(
        json.dumps(
            {
                "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "users": [{"name": "u", "user": {"token": "t"}}],
                "current-context": "c",
            }
        ),
        encoding="utf-8",
    )
    code, out, err = await person.types(
        "diagnose", "pod/web", f"--client-kubeconfig={below}", objects=_objects()
    )
    assert (code, "nothing is wrong" in out) == (0, True)
    assert "http://127.0.0.1:1" in err
    assert "nothing listens there" in err


async def test_a_deployment_is_judged_by_its_pods(person: Person):
    """The same verdict is shown once, with its pods, and as data for each pod."""
    objects = _objects()
    objects[SHOP] += [pod(f"web-{n}", nodeName="vn", status=PULLING, labels={"app": "web"}) for n in range(4)]
    code, out, _ = await person.types("diagnose", "deploy/web", objects=objects)
    assert code == 1
    assert "4 of 5 pods: The lower node cannot pull i." in out
    assert "web-0, web-1, web-2 and 1 more" in out
    _, out, _ = await person.types("diagnose", "deployment.apps/web", "-o", "json", objects=objects)
    found = json.loads(out)
    assert (found["kind"], found["name"], len(found["pods"])) == ("Deployment", "shop/web", 5)
    code, out, _ = await person.types("diagnose", "deploy", "web", objects=_objects())
    assert (code, "Nothing is wrong with its 1 pod." in out) == (0, True)


async def test_overrides_of_a_deployment_are_shown_once(person: Person, monkeypatch: pytest.MonkeyPatch):
    """Each unhealthy pod has the same ones."""
    changed = {"web-0": ["mirror: image", "training: tolerations"], "web-1": ["mirror: image"]}
    monkeypatch.setattr(diagnose, "override_changes", lambda view: changed[view.pod["metadata"]["name"]])
    objects = _objects()
    objects[SHOP] += [pod(name, nodeName="vn", status=PULLING, labels={"app": "web"}) for name in changed]
    _, out, _ = await person.types("diagnose", "deploy/web", "-o", "json", objects=objects)
    assert json.loads(out)["overrides"] == ["mirror: image", "training: tolerations"]


async def test_a_large_deployment_costs_only_its_unhealthy_pods(person: Person):
    """Healthy pods need no reads; nodes and Leases are read once for all pods."""
    objects = _objects()
    objects[SHOP] = [
        pod(f"web-{n}", nodeName="vn", status=RUNNING if n < 40 else PULLING, labels={"app": "web"})
        for n in range(45)
    ]
    code, out, _ = await person.types("diagnose", "deploy/web", objects=objects)
    assert (code, "5 of 45 pods" in out) == (1, True)
    assert person.server is not None
    asked = [(one.path, one.query.get("fieldSelector")) for one in person.server.asked]
    assert asked.count((f"{NODES}/vn", None)) == 1
    assert len([path for path, _ in asked if path == EVENTS]) == 5


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            {"status": conditions("ReplicaFailure", "True", "FailedCreate", "exceeded quota: q")},
            "Its controller fails: FailedCreate.",
        ),
        ({"spec": {"replicas": 0, "selector": {"matchLabels": {"app": "web"}}}}, "It asks for no pods"),
        ({}, "It has no pods."),
    ],
)
async def test_a_deployment_without_pods_has_a_reason(person: Person, change: dict[str, Any], told: str):
    """Quota, admission, or zero replicas."""
    objects = _objects(**{SHOP: []})
    objects[DEPLOYMENTS][0] |= change
    code, out, _ = await person.types("diagnose", "deploy/web", objects=objects)
    assert (code, told in out) == (1, True)


def test_selectors_are_formatted_for_the_api():
    """Labels and all four operators."""
    expressions = [
        {"key": "a", "operator": "In", "values": ["1", "2"]},
        {"key": "b", "operator": "NotIn", "values": ["3"]},
        {"key": "c", "operator": "Exists"},
        {"key": "d", "operator": "DoesNotExist"},
    ]
    text = selector_text({"matchLabels": {"x": "y"}, "matchExpressions": expressions})
    assert text == "x=y,a in (1,2),b notin (3),c,!d"


def _version(_request: web.Request) -> web.StreamResponse:
    return reply({"gitVersion": "v1"}, Date=NOW.strftime("%a, %d %b %Y %H:%M:%S GMT"))


def _healthy(_request: web.Request) -> web.StreamResponse:
    return web.Response(text="ok")


def _refusing(_request: web.Request) -> web.StreamResponse:
    return web.Response(status=502, text="dial tcp 10.0.0.1:10250: connect: connection refused")


REPORT = Report(rejected={"vn": "no such file"}).text()
SERVER = {"/version": _version, f"{NODES}/vn/proxy/healthz": _healthy}


@pytest.mark.parametrize(
    ("changes", "code", "told"),
    [
        ({}, 0, "The virtual node is Ready; nothing is wrong with it, or with its 1 pod."),
        ({NODES: [node(unschedulable=True)]}, 1, "It is cordoned"),
        ({LEASES: [lease(500)]}, 1, "vn: its Lease was last renewed 500 s ago"),
        (
            {
                NODES: [
                    {**node(), "status": conditions("Ready", "False", "LowerClusterUnreachable", "no answer")}
                ]
            },
            1,
            "Cluster vn: no answer. (ClusterLost)",
        ),
        ({SHOP: [pod("web", nodeName="vn", status=PULLING)]}, 1, "1 of its 1 pod in trouble."),
        (
            {
                LEASES: [
                    {**lease(), "metadata": {"name": "vn", "annotations": {names.ANNOTATION_FAULTS: REPORT}}}
                ]
            },
            1,
            "Cluster vn is not applied: no such file. (ConfigurationRejected)",
        ),
    ],
)
async def test_a_virtual_node_is_judged_by_the_doctors_rules(
    person: Person, changes: dict[str, Any], code: int, told: str
):
    """Lease, kubelet API, cordon, pods."""
    objects = {**_objects(), LEASES: [lease()], "/apis/apps/v1/deployments": [], **changes}
    found, out, err = await person.types("diagnose", "node", "vn", objects=objects, answers=SERVER)
    assert (found, err) == (code, "")
    assert told in out


async def test_a_kubelet_api_that_cannot_be_reached_is_found(person: Person):
    """By the rule of doctor."""
    objects = {**_objects(), LEASES: [lease()], "/apis/apps/v1/deployments": []}
    answers = {**SERVER, f"{NODES}/vn/proxy/healthz": _refusing}
    code, out, _ = await person.types("diagnose", "node", "vn", objects=objects, answers=answers)
    assert (code, "✗ the API server cannot reach vn: " in out, "(KubeletAPI)" in out) == (1, True, True)


async def test_a_virtual_node_is_judged_by_visible_objects(person: Person):
    """The node alone shows whether it is Ready."""
    code, out, err = await person.types(
        "diagnose", "node/vn", objects=_objects(), answers=SERVER,
        forbidden=(PODS, f"{LEASES}/*", "/apis/apps/*"),
    )  # fmt: skip
    assert (code, "The virtual node is Ready" in out) == (0, True)
    assert "kubectl auth can-i list pods --all-namespaces" in err


async def test_explain_shows_the_scores_of_agents(person: Person):
    """A row for each agent and node; without an event, or for a workload, the reason why there is none."""
    scored = {
        "metadata": {"name": "web.1", "namespace": "shop"},
        "involvedObject": {"uid": "web"},
        "reason": "NodeScored",
        "message": "Bound to vn. Agent fit: vn 87 (weight 1); rejected: far (lower cluster far: no room)",
        "lastTimestamp": NOW.isoformat(),
    }
    code, out, _ = await person.types(
        "diagnose", "pod/web", "--explain", objects=_objects(**{EVENTS: [scored]})
    )
    assert code == 0
    assert [line.split() for line in out.splitlines()[-2:]] == [
        ["fit", "vn", "87", "1"],
        ["fit", "far", "1", "rejected:", "lower", "cluster", "far:", "no", "room"],
    ]
    alone = {**scored, "message": "Bound to vn. Only one node was left, so no agent scored it"}
    _, _, err = await person.types("diagnose", "pod/web", "--explain", objects=_objects(**{EVENTS: [alone]}))
    assert "Only one node was left" in err
    assert "no event" not in err
    _, _, err = await person.types("diagnose", "pod/web", "--explain", objects=_objects())
    assert "no event NodeScored" in err
    code, _, err = await person.types("diagnose", "deploy/web", "--explain", objects=_objects())
    assert (code, "give pod/NAME" in err) == (2, True)
