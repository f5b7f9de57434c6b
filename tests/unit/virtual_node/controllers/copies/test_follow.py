"""Which objects have copies, and who owns them."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import Mock

import pytest

from clusterset.model.namespace_map import NamespaceMap
from clusterset.model.policy.copied_keys import KeyPatterns
from controller_runtime.errors import Expired, Forbidden, NotFound, Unavailable
from controller_runtime.store import stub
from tests.fakes.apiserver.client import refusing
from tests.unit.virtual_node.controllers import pod_controller_setup
from tests.unit.virtual_node.controllers.copies.follow_setup import Scene
from virtual_node.translate.kinds import NETWORK_POLICIES

pytestmark = pytest.mark.looptime
POLICY = {"podSelector": {}, "policyTypes": ["Ingress"]}
HEALTHY = {"observedGeneration": 1, "desiredHealthy": 2, "currentHealthy": 2, "expectedPods": 2}


async def test_copies_only_for_pods_and_deletes_after_the_last_one():
    scene = Scene()
    key = scene.add(POLICY)
    await scene.controller.reconcile(key)
    assert scene.copy() is None
    scene.add_pod()
    await scene.controller.reconcile(key)
    copy = scene.copy()
    assert copy is not None
    assert copy["metadata"]["labels"]["virtual-node.io/upper-uid"] == "u-1"
    assert copy["spec"]["podSelector"]["matchLabels"] == {"virtual-node.io/upper-cluster": "upper-1"}
    await scene.controller.reconcile(key)
    assert scene.writes() == ["create"]
    scene.upper.remove("pods", "shop/pod")
    result = await scene.controller.reconcile(key)
    assert result is not None
    assert scene.copy() is not None
    await asyncio.sleep(result.requeue_after or 0)
    await scene.controller.reconcile(key)
    assert scene.copy() is None


async def test_many_policies_of_a_namespace_delay_only_its_own_copies():
    """Thousands of policies, translated again at each change of a namespace, would block the process."""
    scene = Scene()
    spec = {**POLICY, "ingress": [{"from": [{"namespaceSelector": {"matchLabels": {"team": "shop"}}}]}]}
    for number in range(300):
        scene.add(spec, name=f"web-{number}")
    scene.add(spec, namespace="other")
    queue = scene.controller.controller.queue
    for _ in range(len(queue)):
        queue.done(await queue.get())
    labels = {"kubernetes.io/metadata.name": "third", "team": "shop"}
    scene.upper.put("namespaces", {"metadata": {"name": "third", "labels": labels}})
    await asyncio.sleep(1.1)
    assert await queue.get() == "other/web"
    assert not len(queue)
    await asyncio.sleep(2)
    assert len(queue) == 300


async def test_a_policy_is_followed_although_its_namespace_is_too_large():
    """A tenant could fill the namespace so that a stricter policy of an administrator has no effect on running pods."""
    scene = Scene()
    key = scene.add({**POLICY, "ingress": [{}]})
    scene.add_pod()
    await scene.controller.reconcile(key)
    scene.context.shared = Mock(stubs=lambda _namespace: 1)
    store = scene.controller._upper.store
    scene.add({**POLICY, "ingress": []})
    store.put(key, stub(store.list()[0]))
    result = await scene.controller.reconcile(key)
    assert result is not None
    copy = scene.copy()
    assert copy is not None
    assert copy["spec"]["ingress"] == []
    assert not scene.controller.copies._compared  # it would keep the whole object in memory
    for _ in range(10):  # another program changes the copy all the time
        result = await scene.controller.reconcile(key)
    assert result is not None
    assert (result.requeue_after or 0) > 10
    assert len(scene.upper.asked("list", "networkpolicies")) == 5
    scene.upper.remove("networkpolicies", key)
    store.remove(key)
    await scene.controller.reconcile(key)
    assert scene.copy() is None


async def test_keeps_the_copy_while_a_lower_pod_exists():
    """Without the copy, all traffic of the pod would be allowed."""
    scene = Scene()
    key = scene.add(POLICY)
    scene.add_pod()
    await scene.controller.reconcile(key)
    scene.lower.put("pods", pod_controller_setup.lower_pod("uid-pod"))
    scene.upper.remove("pods", "shop/pod")
    result = await scene.controller.reconcile(key)
    await asyncio.sleep((result and result.requeue_after) or 0)
    assert await scene.controller.reconcile(key) is not None
    assert scene.copy() is not None


async def test_new_pods_wait_for_the_current_copy():
    scene = Scene()
    controller = scene.controller
    for informer in (controller._upper, controller.copies.lower):
        informer._synced.set()
    scene.add_pod()
    assert await controller.pending.wait("shop", "uid-pod") is None
    key = scene.add(POLICY)
    with pytest.raises(Unavailable):
        await controller.pending.wait("shop", "uid-pod")
    waiting = asyncio.ensure_future(controller.pending.wait("shop", "uid-pod"))
    await asyncio.sleep(0)
    await controller.reconcile(key)
    assert await waiting is None
    scene.add({**POLICY, "policyTypes": ["Ingress", "Egress"]})
    scene.lower.fault = refusing(Forbidden("no rights"), "networkpolicies")
    with pytest.raises(Forbidden):
        await controller.reconcile(key)
    began = asyncio.get_running_loop().time()
    problem = await controller.pending.wait("shop", "uid-pod")
    assert asyncio.get_running_loop().time() == began
    assert problem is not None
    assert problem.event_reason == "NetworkPolicyNotMirrored"
    assert "no rights" in problem.message
    assert [reason for reason, _ in scene.reported] == ["FailedMirror"]
    assert await controller.pending.wait("shop", "uid-gone") is not None
    controller.pending.forget_pod("uid-gone")
    scene.lower.fault = lambda _verb, _plural, _key: None
    assert scene.woken == []
    await controller.reconcile(key)
    assert scene.woken == ["uid-pod"]


async def test_a_pod_is_requeued_when_the_policy_without_copy_is_deleted():
    scene = Scene()
    for informer in (scene.controller._upper, scene.controller.copies.lower):
        informer._synced.set()
    scene.add_foreign("web")
    scene.add_pod()
    key = scene.add(POLICY)
    await scene.controller.reconcile(key)
    assert await scene.controller.pending.wait("shop", "uid-pod") is not None
    scene.upper.remove("networkpolicies", key)
    await scene.controller.reconcile(key)
    assert scene.woken == ["uid-pod"]


async def test_new_pods_wait_while_new_policies_cannot_be_read():
    """Otherwise a pod would start without a policy that was created meanwhile."""
    scene = Scene()
    controller = scene.controller
    for informer in (controller._upper, controller.copies.lower):
        informer._synced.set()
    reflector = controller._upper._reflector
    reflector.last_error = Forbidden("no rights", code=403)
    problem = await controller.pending.wait("shop", "uid-pod")
    assert problem is not None
    assert "cannot be watched: no rights" in problem.message
    reflector.last_error = Expired("too old", code=410)
    with pytest.raises(Unavailable):
        await controller.pending.wait("shop", "uid-pod")
    reflector.last_error = None
    assert await controller.pending.wait("shop", "uid-pod") is None


async def test_waiting_pods_of_a_tenant_do_not_occupy_all_workers():
    scene = Scene()
    controller = scene.controller
    for informer in (controller._upper, controller.copies.lower):
        informer._synced.set()
    scene.add_pod()
    key = scene.add(POLICY)
    waiting = [asyncio.ensure_future(controller.pending.wait("shop", "uid-pod")) for _ in range(20)]
    await asyncio.sleep(0.1)
    refused = [task for task in waiting if task.done()]
    assert len(refused) == 15
    assert all(isinstance(task.exception(), Unavailable) for task in refused)
    await controller.reconcile(key)
    assert [await task for task in waiting if task not in refused] == [None] * 5
    assert await controller.pending.wait("shop", "uid-pod") is None


async def test_a_policy_that_is_being_deleted_keeps_its_copy():
    """It isolates upper pods until its finalizers are removed."""
    scene = Scene()
    key = scene.add(POLICY)
    scene.add_pod()
    await scene.controller.reconcile(key)
    body = scene.upper.objects["networkpolicies", key]
    stamp = {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["example.com/x"]}
    scene.upper.put("networkpolicies", {**body, "metadata": {**body["metadata"], **stamp}})
    await scene.controller.reconcile(key)
    assert scene.copy() is not None
    scene.upper.remove("networkpolicies", key)
    await scene.controller.reconcile(key)
    assert scene.copy() is None


async def test_a_copy_in_an_earlier_namespace_stays_for_the_pods_there():
    """Their traffic would be open when the configuration maps the namespace to another one."""
    scene = Scene()
    scene.lower.feed(scene.all_caches.lower_namespaces)
    for name in ("shop", "other"):
        scene.lower.put("namespaces", pod_controller_setup.lower_namespace("shop", name=name))
    key = scene.add(POLICY)
    scene.add_pod()
    await scene.controller.reconcile(key)
    scene.lower.put("pods", pod_controller_setup.lower_pod("uid-pod"))
    scene.context.rules.namespace_map = NamespaceMap(explicit={"shop": "other"})
    await scene.controller.reconcile(key)
    assert {copy.namespace for copy in scene.copies.store.list()} == {"shop", "other"}
    scene.lower.remove("pods", "shop/web")
    await asyncio.sleep(1)
    await scene.controller.reconcile(key)
    assert {copy.namespace for copy in scene.copies.store.list()} == {"other"}


async def test_replaces_a_budget_that_is_named_after_an_earlier_virtual_node():
    """The eviction API refuses pods with two budgets."""
    scene = Scene("podDisruptionBudgets")
    key = scene.add({"selector": {}}, status=HEALTHY)
    scene.add_pod()
    await scene.controller.reconcile(key)
    copy = scene.copy()
    assert copy is not None
    scene.context.nodes = {"a-new-one": next(iter(scene.context.nodes.values())), **scene.context.nodes}
    await scene.controller.reconcile(key)
    found = scene.copy()
    assert found is not None
    assert found["metadata"]["name"] != copy["metadata"]["name"]
    scene.context.nodes = {"a-newer-one": next(iter(scene.context.nodes.values())), **scene.context.nodes}
    scene.upper.remove("poddisruptionbudgets", key)
    await scene.controller.reconcile(key)
    assert scene.copy() is None


async def test_a_budget_does_not_take_over_a_value_of_a_moment():
    scene = Scene("podDisruptionBudgets")
    spec: dict[str, Any] = {"selector": {}}
    scene.add_pod("a")
    scene.add_pod("b")
    key = scene.add(spec, status={**HEALTHY, "desiredHealthy": 2})
    await scene.controller.reconcile(key)
    scene.add(spec, status={**HEALTHY, "desiredHealthy": 1})
    await scene.controller.reconcile(key)
    await asyncio.sleep(10)
    scene.upper.remove("pods", "shop/b")  # the status still counts it
    assert await scene.controller.reconcile(key) is not None
    copy = scene.copy()
    assert copy is not None
    assert copy["spec"]["minAvailable"] == 2


def test_empty_lists_that_a_server_omits_are_no_difference():
    metadata: dict[str, Any] = {"labels": {}, "annotations": {}}
    desired = {"metadata": metadata, "spec": {"podSelector": {}, "ingress": [], "minAvailable": 0}}
    assert NETWORK_POLICIES.patch({"metadata": metadata, "spec": {"minAvailable": 0}}, desired) is None
    assert NETWORK_POLICIES.patch({"metadata": metadata, "spec": {}}, desired) == {
        "spec": {"minAvailable": 0}
    }


async def test_labels_that_lower_pods_have_with_other_values_select_no_peers():
    """The label of a lower pod is not that of the upper pod."""
    scene = Scene()
    scene.context.rules.changed_labels = KeyPatterns(("app",))
    scene.add_pod()
    selector = {"podSelector": {"matchLabels": {"app": "web"}}}
    key = scene.add({**POLICY, "ingress": [{"from": [selector]}]})
    await scene.controller.reconcile(key)
    copy = scene.copy()
    assert copy is not None
    assert copy["spec"]["ingress"] == []


async def test_repairs_a_changed_copy_and_replaces_nothing_of_a_recreated_object():
    scene = Scene()
    key = scene.add(POLICY)
    scene.add_pod()
    await scene.controller.reconcile(key)
    scene.lower.change("networkpolicies", key, spec={"podSelector": {"matchLabels": {"unused": "x"}}})
    await scene.controller.reconcile(key)
    copy = scene.copy()
    assert copy is not None
    assert "unused" not in copy["spec"]["podSelector"]["matchLabels"]
    scene.add(POLICY, uid="u-2")
    await scene.controller.reconcile(key)
    assert scene.writes() == ["create", "patch", "patch"]
    copy = scene.copy()
    assert copy is not None
    assert copy["metadata"]["labels"]["virtual-node.io/upper-uid"] == "u-2"


@pytest.mark.parametrize(
    "spec",
    [
        {"podSelector": 7, "policyTypes": ["Ingress"]},
        {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": []}]}, 5]},
        {"podSelector": {"matchLabels": [1e300]}},
        {"podSelector": {"matchExpressions": [{"operator": "In"}]}},
        {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": {"from": 10**4000}},
        [],
        "x" * 100_000,
    ],
)
async def test_a_malformed_object_is_reported_and_stops_nothing(spec):
    scene = Scene()
    key = scene.add(spec)
    scene.add_pod()
    await scene.controller.reconcile(key)
    copy = scene.copy()
    assert copy is None or copy["spec"].get("ingress", []) == []
    assert len(str(scene.reported)) < 2000


async def test_a_budget_allows_more_only_after_a_while():
    """The status of the budget and the pods arrive at different times."""
    scene = Scene("podDisruptionBudgets")
    spec = {"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": 1}
    key = scene.add(spec, status=HEALTHY)
    await scene.controller.reconcile(key)
    assert scene.copy() is None
    scene.add_pod("a", app="web")
    scene.add_pod("b", app="web")
    await scene.controller.reconcile(key)
    copy = scene.copy()
    assert copy is not None
    assert copy["metadata"]["name"].startswith("web-")
    assert copy["spec"]["minAvailable"] == 2
    scene.add(spec, status={**HEALTHY, "desiredHealthy": 1})
    result = await scene.controller.reconcile(key)
    assert result is not None
    assert result.requeue_after == pytest.approx(10)
    await asyncio.sleep(10)
    await scene.controller.reconcile(key)
    copy = scene.copy()
    assert copy is not None
    assert copy["spec"]["minAvailable"] == 1
    scene.add(spec, status={**HEALTHY, "desiredHealthy": 2})
    await scene.controller.reconcile(key)
    assert scene.writes() == ["create", "patch", "patch"]


async def test_waits_for_an_api_that_a_cluster_lacks():
    """A CustomResourceDefinition that is installed later; nothing else is affected."""
    scene = Scene("gateways")
    scene.lower.fault = refusing(NotFound("no such resource"), "gateways")
    loop = asyncio.get_running_loop()
    began = loop.time()
    waiting = asyncio.ensure_future(scene.controller._both_have_it())
    await asyncio.sleep(650)
    assert not waiting.done()
    scene.lower.fault = lambda _verb, _plural, _key: None
    await waiting
    assert loop.time() - began == pytest.approx(1200)


async def test_a_copy_that_another_process_recreates_is_deleted_once():
    """Its pods have no lower pods yet, for example because a ConfigMap is missing."""
    scene = Scene()
    key = scene.add(POLICY)
    scene.add_pod()
    await scene.controller.reconcile(key)
    copy = scene.copy()
    assert copy is not None
    scene.upper.remove("pods", "shop/pod")
    for number in range(20):
        result = await scene.controller.reconcile(key)
        await asyncio.sleep((result and result.requeue_after) or 0.1)
        if scene.copy() is None:
            scene.lower.put(
                "networkpolicies", {**copy, "metadata": {**copy["metadata"], "uid": f"c-{number}"}}
            )
    assert scene.writes() == ["create", "delete"]
    scene.add_pod()
    await scene.controller.reconcile(key)
    scene.upper.remove("pods", "shop/pod")
    for _ in range(2):
        result = await scene.controller.reconcile(key)
        await asyncio.sleep((result and result.requeue_after) or 0.1)
    assert scene.copy() is None


async def test_a_copy_that_another_program_changes_again_and_again_is_repaired_with_pauses():
    """Such as a process with other ignoreLabels. A change of the upper object is written at once."""
    scene, theirs = Scene(), {"podSelector": {"matchLabels": {"unused": "x"}}}
    key = scene.add(POLICY)
    scene.add_pod()
    await scene.controller.reconcile(key)
    loop = asyncio.get_running_loop()
    began = loop.time()
    while loop.time() < began + 3600:
        scene.lower.change("networkpolicies", key, spec=theirs)
        result = await scene.controller.reconcile(key)
        await asyncio.sleep((result and result.requeue_after) or 0.1)
    assert 10 < len(scene.writes()) < 30
    assert [reason for reason, _ in scene.reported] == ["CopyContested"]
    scene.lower.change("networkpolicies", key, spec=theirs)
    for policy in (POLICY, {**POLICY, "policyTypes": ["Egress"]}):
        scene.add(policy)
        await scene.controller.reconcile(key)
        copy = scene.copy()
        assert copy is not None
        assert copy["spec"]["policyTypes"] == policy["policyTypes"]
        assert "unused" not in copy["spec"]["podSelector"]["matchLabels"]


_TOO_LARGE = {"matchExpressions": [{"key": f"k{number}", "operator": "Exists"} for number in range(51)]}


@pytest.mark.parametrize(
    ("tls", "listener", "is_left"),
    [
        ({"frontend": {"default": {"validation": {}}}}, {}, False),
        ({}, {"allowedRoutes": {"namespaces": {"from": "Selector", "selector": _TOO_LARGE}}}, True),
    ],
    ids=["its copy would accept all clients", "its selector cannot be compared"],
)
async def test_the_copy_of_a_gateway_without_listeners_that_can_be_copied(tls, listener, is_left):
    scene = Scene("gateways", kind="Gateway")
    scene.add_pod()
    https = {"name": "https", "port": 443, "protocol": "HTTPS", "tls": {"certificateRefs": []}}
    key = scene.add({"gatewayClassName": "lower", "listeners": [https]})
    await scene.controller.reconcile(key)
    assert scene.copy() is not None
    scene.add({"gatewayClassName": "lower", "listeners": [https | listener], "tls": tls})
    await scene.controller.reconcile(key)
    assert (scene.copy() is not None) == is_left
    assert [reason for reason, _ in scene.reported] == ["NotMirrored"]
