"""Changes of a running upper pod, applied to its lower pod."""

from __future__ import annotations

import asyncio

import pytest

from clusterset.model import names
from controller_runtime.errors import Forbidden, Invalid, NotFound, ServerTimeout
from tests import objects
from tests.fakes.apiserver.client import refusing
from tests.fakes.apiserver.storage import Body
from tests.unit.virtual_node.controllers.pod_controller_setup import KEY, Scene, clusters, mirroring, running

pytestmark = pytest.mark.looptime

OWN_WRITES = 40.0
"""Seconds after which a pod is reconciled though the cache does not show our last write (``consistency``)."""


def resize(scene: Scene, *, cpu: str = "2", image: str = "web:1") -> None:
    """Give the upper pod so many CPUs, a label, and optionally another image."""
    resized = {"name": "main", "image": image, "resources": {"requests": {"cpu": cpu}}}
    labels = {"labels": {"new": "label"}, "generation": 2}
    scene.upper.change("pods", KEY, spec={"containers": [resized]}, metadata=labels)


async def test_keeps_only_the_current_objects_in_memory():
    """Each object that a record keeps in addition to the caches costs several KiB per pod."""
    async with running() as scene:
        scene.bind()
        await asyncio.sleep(1)
        scene.lower.change("pods", KEY, status={"phase": "Running"})
        await asyncio.sleep(10)
        record = scene.pods._records["u-1"]
        upper, lower = scene.caches.upper_pod("u-1"), scene.caches.lower_pod("u-1")
        assert (record.spec.synced, record.lower.last, record.spec.written) == (upper, lower, None)


async def test_a_restart_keeps_changes_of_lower_admission():
    """A lower registry mirror rewrites images: writing the original ones would restart all containers."""
    upper, lower = clusters()
    first = Scene(upper, lower)
    async with mirroring(first):
        first.bind()
        await asyncio.sleep(10)
        lower.change("pods", KEY, spec={"containers": [{"name": "main", "image": "mirror.local/web:1"}]})
    async with mirroring(Scene(upper, lower)) as second:
        await asyncio.sleep(10)
        upper.change("pods", KEY, metadata={"labels": {"new": "label"}})
        await asyncio.sleep(10)
        below = second.below()
        assert below["metadata"]["labels"]["new"] == "label"
        assert below["spec"]["containers"][0]["image"] == "mirror.local/web:1"
        upper.change("pods", KEY, spec={"containers": [{"name": "main", "image": "web:2"}]})
        await asyncio.sleep(10)
        assert second.below()["spec"]["containers"][0]["image"] == "web:2"


def _cpu(amount: str) -> Body:
    return {"requests": {"cpu": amount}}


async def test_a_change_of_a_container_keeps_what_lower_admission_changed_in_others():
    """A registry mirror and a cluster with minimum requests: the other container would restart, or the resize be refused."""
    web, proxy = {"name": "web", "image": "web:1"}, {"name": "proxy", "image": "proxy:1"}
    async with running() as scene:
        above = [{**web, "resources": _cpu("1")}, {**proxy, "resources": _cpu("10m")}]
        scene.bind(containers=above)
        await asyncio.sleep(10)
        admitted = [
            {"name": "web", "image": "mirror.local/web:1", "resources": _cpu("1")},
            {"name": "proxy", "image": "mirror.local/proxy:1", "resources": _cpu("250m")},
        ]
        scene.lower.change("pods", KEY, spec={"containers": admitted})
        await asyncio.sleep(10)
        above = [{**above[0], "image": "web:2", "resources": _cpu("2")}, above[1]]
        scene.upper.change("pods", KEY, spec={"containers": above})
        await asyncio.sleep(10)
        expected = [{**admitted[0], "image": "web:2", "resources": _cpu("2")}, admitted[1]]
        assert scene.below()["spec"]["containers"] == expected
        above = [above[0], {**above[1], "resources": _cpu("500m")}]
        scene.upper.change("pods", KEY, spec={"containers": above})
        await asyncio.sleep(10)
        assert scene.below()["spec"]["containers"] == [
            expected[0],
            {**expected[1], "resources": _cpu("500m")},
        ]


@pytest.mark.parametrize(("generation", "image"), [(1, "mirror.local/web:1"), (2, "web:1")])
async def test_an_upgrade_keeps_changes_of_lower_admission(generation, image):
    """An earlier release did not record its request; it was equal if the upper pod has not changed since."""
    upper, lower = clusters()
    first = Scene(upper, lower)
    async with mirroring(first):
        first.bind()
        await asyncio.sleep(10)
    lower.change(
        "pods", KEY, spec={"containers": [{"name": "main", "image": "mirror.local/web:1"}]},
        metadata={"annotations": {names.ANNOTATION_APPLIED: '{"labels":[],"annotations":[]}'}},
    )  # fmt: skip
    upper.change("pods", KEY, metadata={"generation": generation})
    async with mirroring(Scene(upper, lower)) as second:
        await asyncio.sleep(10)
        assert second.below()["spec"]["containers"][0]["image"] == image


async def test_an_ephemeral_container_finds_its_references():
    """Kubectl debug with a profile that reads a ConfigMap: the copy follows, with upper values."""
    async with running() as scene:
        scene.upper.put("configmaps", objects.config_map("tools", {"a": "b"}))
        scene.bind()
        await asyncio.sleep(10)
        node = {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
        debugger = {
            "name": "d",
            "image": "t",
            "env": [node],
            "envFrom": [{"configMapRef": {"name": "tools"}}],
        }
        scene.upper.change("pods", KEY, spec={"ephemeralContainers": [debugger]})
        await asyncio.sleep(10)
        assert scene.below()["spec"]["ephemeralContainers"][0]["env"] == [{"name": "NODE", "value": "vn"}]
        assert scene.lower.find("configmaps", "shop/tools") is not None


@pytest.mark.parametrize("links", [True, False])
async def test_a_debug_container_gets_the_service_variables_of_its_pods_containers(links):
    """As in a kubelet; the user's variables win, and so do those of ``envFrom``."""
    async with running() as scene:
        scene.upper.put("services", objects.service("front", address="10.0.0.9"))
        scene.upper.put("configmaps", objects.config_map("tools", {"FRONT_PORT": "from the ConfigMap"}))
        scene.bind(enableServiceLinks=links)
        await asyncio.sleep(10)
        debugger = {
            "name": "d",
            "image": "t",
            "env": [{"name": "FRONT_SERVICE_PORT", "value": "mine"}],
            "envFrom": [{"configMapRef": {"name": "tools"}}],
        }
        scene.upper.change("pods", KEY, spec={"ephemeralContainers": [debugger]})
        await asyncio.sleep(10)
        below = scene.below()
        main, debug = (
            {one["name"]: one["value"] for one in below["spec"][kind][0].get("env") or ()}
            for kind in ("containers", "ephemeralContainers")
        )
        if links:
            assert main["FRONT_SERVICE_HOST"] == "10.0.0.9"
            assert debug["FRONT_SERVICE_HOST"] == "10.0.0.9"
            assert debug["FRONT_SERVICE_PORT"] == "mine"
            assert set(main) - set(debug) == {"FRONT_PORT"}
        else:
            assert (main, debug) == ({}, {"FRONT_SERVICE_PORT": "mine"})


async def test_a_debug_container_added_before_the_pod_started_is_added_later():
    """A pod cannot be created with one."""
    async with running() as scene:
        needed = {"name": "c", "image": "web:1", "envFrom": [{"configMapRef": {"name": "tools"}}]}
        scene.bind(containers=[needed])
        await asyncio.sleep(10)
        assert not scene.is_below()
        scene.upper.change("pods", KEY, spec={"ephemeralContainers": [{"name": "d", "image": "t"}]})
        await asyncio.sleep(10)
        scene.upper.put("configmaps", objects.config_map("tools", {}))
        await asyncio.sleep(10)
        assert [one["name"] for one in scene.below()["spec"]["ephemeralContainers"]] == ["d"]


async def test_a_refused_resize_does_not_block_other_changes():
    """The event names the refusal; a label is applied, and the generation is not reported as observed."""
    async with running() as scene:
        scene.bind()
        await asyncio.sleep(10)
        scene.lower.change("pods", KEY, status={"phase": "Running", "observedGeneration": 1})
        await asyncio.sleep(10)
        assert scene.above()["status"]["observedGeneration"] == 1
        scene.lower.fault = refusing(Invalid("no"), "pods/resize")
        resize(scene)
        await asyncio.sleep(10)
        below, above = scene.below(), scene.above()
        assert below["metadata"]["labels"]["new"] == "label"
        assert [reason for reason, _ in scene.events] == ["UpdateRefused"]
        assert above["status"]["observedGeneration"] == 1


async def test_a_resize_that_a_quota_forbids_is_reported_and_retried():
    """Meanwhile a label is applied; as soon as the quota has room, the pod has its size."""
    async with running() as scene:
        scene.bind()
        await asyncio.sleep(10)
        scene.lower.fault = refusing(Forbidden("exceeded quota: tight", code=403), "pods/resize")
        resize(scene)
        await asyncio.sleep(10)
        below = scene.below()
        assert below["metadata"]["labels"]["new"] == "label"
        assert "resources" not in below["spec"]["containers"][0]
        assert set(scene.events) == {("UpdateRefused", "Lower cluster lower1: exceeded quota: tight")}
        scene.lower.fault = lambda _verb, _plural, _key: None
        await asyncio.sleep(120)
        assert scene.below()["spec"]["containers"][0]["resources"] == {"requests": {"cpu": "2"}}


NO_CAPACITY = {"details": {"causes": [{"reason": "NodeCapacity"}]}}
TOO_LARGE = Forbidden("node didn't have enough allocatable resources: cpu", code=403, status=NO_CAPACITY)


@pytest.mark.parametrize(
    ("error", "reason", "is_retried"),
    [
        (Forbidden("exceeded quota: tight", code=403), "Deferred", True),
        (TOO_LARGE, "Infeasible", False),
        (Invalid("requests cannot be removed", code=422), "Infeasible", False),
        (NotFound("the server could not find the requested resource", code=404), "Infeasible", False),
    ],
    ids=["quota", "larger than the lower node", "invalid", "older lower cluster"],
)
async def test_a_refused_resize_is_pending_as_on_a_kubelet(error, reason, is_retried):
    """The scheduler counts an infeasible resize as no resources. The condition stays over a restart, and ends with a revert."""
    upper, lower = clusters()

    def pending() -> list[tuple[str, str, int]]:
        conditions = upper.the("pods", KEY)["status"].get("conditions") or ()
        return [
            (one["status"], one["reason"], one["observedGeneration"])
            for one in conditions
            if one["type"] == "PodResizePending"
        ]

    first = Scene(upper, lower)
    async with mirroring(first):
        first.bind()
        await asyncio.sleep(10)
        resize(first, cpu="1")
        lower.change("pods", KEY, status={"phase": "Running"})
        await asyncio.sleep(10)
        assert pending() == []
        lower.fault = refusing(error, "pods/resize")
        resize(first, cpu="2")
        await asyncio.sleep(10)
        assert pending() == [("True", reason, 2)]
        before = len(lower.asked("patch", "pods/resize"))
        lower.change("pods", KEY, status={"message": "other"})
        await asyncio.sleep(100)
        assert (len(lower.asked("patch", "pods/resize")) > before) == is_retried
    async with mirroring(second := Scene(upper, lower)):
        await asyncio.sleep(10)
        assert pending() == [("True", reason, 2)]
        resize(second, cpu="1")
        await asyncio.sleep(10)
        assert pending() == []
        resize(second, cpu="2")
        await asyncio.sleep(10)
        lower.fault = lambda _verb, _plural, _key: None
        resize(second, cpu="3")
        await asyncio.sleep(120)
        assert pending() == []


@pytest.mark.parametrize("forbidden", ["pods/resize", "pods/ephemeralcontainers"])
async def test_a_reverted_change_is_reverted_although_a_part_of_it_was_forbidden(forbidden):
    """The applied part, image or size, is changed back."""
    async with running() as scene:
        scene.bind()
        await asyncio.sleep(10)
        resize(scene, cpu="1")
        await asyncio.sleep(10)
        before = scene.below()["spec"]["containers"]
        scene.lower.fault = refusing(Forbidden("no", code=403), forbidden)
        scene.upper.change("pods", KEY, spec={"ephemeralContainers": [{"name": "d", "image": "t"}]})
        resize(scene, cpu="2", image="web:2")
        await asyncio.sleep(10)
        assert scene.below()["spec"]["containers"][0]["image"] == "web:2"
        resize(scene, cpu="1")
        await asyncio.sleep(120)
        assert scene.below()["spec"]["containers"] == before


async def test_a_debug_container_that_a_policy_forbids_is_reported():
    """Lower Pod Security refuses with 403, long after kubectl has ended."""
    async with running() as scene:
        scene.bind()
        await asyncio.sleep(10)
        scene.lower.fault = refusing(
            Forbidden('violates PodSecurity "restricted:latest"', code=403), "pods/ephemeralcontainers"
        )
        scene.upper.change("pods", KEY, spec={"ephemeralContainers": [{"name": "d", "image": "t"}]})
        await asyncio.sleep(10)
        assert scene.events[0] == (
            "UpdateRefused",
            'Lower cluster lower1: violates PodSecurity "restricted:latest"',
        )


@pytest.mark.parametrize(
    "refusal",
    [Forbidden('violates PodSecurity "baseline:latest"', code=403), Invalid("invalid", code=422)],
    ids=["forbidden", "invalid"],
)
async def test_a_debug_container_that_the_lower_cluster_refuses_does_not_block_others(refusal):
    """Users cannot remove it from the pod, so those before and after it are added alone."""
    async with running() as scene:
        scene.bind()
        await asyncio.sleep(10)
        patch = scene.lower.patch

        async def refusing_traced(*arguments, **options):
            if "SYS_PTRACE" in str(arguments):
                raise refusal
            return await patch(*arguments, **options)

        scene.lower.patch = refusing_traced  # type: ignore[method-assign]
        traced = {"name": "traced", "securityContext": {"capabilities": {"add": ["SYS_PTRACE"]}}}
        wanted: list[Body] = [{"name": "before"}, traced, {"name": "after"}]
        scene.upper.change(
            "pods", KEY, spec={"ephemeralContainers": [{"image": "t", **container} for container in wanted]}
        )
        await asyncio.sleep(10)
        added = {container["name"] for container in scene.below()["spec"]["ephemeralContainers"]}
        assert added == {"before", "after"}
        assert {reason for reason, _ in scene.events} == {"UpdateRefused"}
        assert refusal.message in scene.events[0][1]


def record_below(scene: Scene) -> str:
    """Return the lower pod's record of debug containers."""
    return str(scene.below()["metadata"]["annotations"].get(names.ANNOTATION_DEBUG_CONTAINERS, ""))


def debug(*wanted: str) -> Body:
    """Return the part of a spec with debug containers of these names."""
    return {"ephemeralContainers": [{"name": name, "image": "t"} for name in wanted]}


def owned(*wanted: str, manager: str) -> Body:
    """Return metadata that says who added these debug containers."""
    items: Body = {f'k:{{"name":"{name}"}}': {} for name in wanted}
    fields = {"f:spec": {"f:ephemeralContainers": items}}
    return {"managedFields": [{"manager": manager, "subresource": "ephemeralcontainers", "fieldsV1": fields}]}


async def test_added_debug_containers_are_recorded():
    """One after the other; a label that changes at the same time does not remove the record."""
    async with running() as scene:
        scene.bind()
        await asyncio.sleep(10)
        scene.upper.change("pods", KEY, spec=debug("a"))
        await asyncio.sleep(10)
        assert record_below(scene) == "a"
        scene.upper.change("pods", KEY, spec=debug("a", "b"), metadata={"labels": {"new": "label"}})
        await asyncio.sleep(10)
        assert record_below(scene) == "a,b"
        assert scene.below()["metadata"]["labels"]["new"] == "label"
        assert not scene.events


async def test_a_debug_container_of_the_lower_cluster_is_never_recorded():
    """A user of the upper pod saw its name in an event, and adds one of this name. The lower cluster is asked once."""
    async with running() as scene:
        scene.bind()
        await asyncio.sleep(10)
        scene.lower.change("pods", KEY, spec=debug("shell"), metadata=owned("shell", manager="kubectl-debug"))
        await asyncio.sleep(10)
        scene.upper.change("pods", KEY, spec=debug("shell", "mine"))
        await asyncio.sleep(60)
        scene.upper.change("pods", KEY, metadata={"labels": {"new": "label"}})
        await asyncio.sleep(60)
        assert record_below(scene) == "mine"
        ((reason, message),) = set(scene.events)
        assert (reason, "names that were added in the lower cluster: shell." in message) == (
            "UpdateRefused",
            True,
        )
        assert len(scene.events) == 1


@pytest.mark.parametrize(("manager", "record"), [("virtual-node", "d"), ("kubectl-debug", "")])
async def test_debug_containers_of_an_earlier_process_are_recorded(manager, record):
    """It was of a release without a record, crashed before it wrote the record, or did not get the answer."""
    upper, lower = clusters()
    first = Scene(upper, lower)
    async with mirroring(first):
        first.bind()
        await asyncio.sleep(10)
    upper.change("pods", KEY, spec=debug("d"))
    lower.change("pods", KEY, spec=debug("d"), metadata=owned("d", manager=manager))
    async with mirroring(Scene(upper, lower)) as second:
        await asyncio.sleep(10)
        assert record_below(second) == record


async def test_a_lost_answer_does_not_lose_a_debug_container():
    """The lower cluster has added it, and the next attempt records it."""
    async with running() as scene:
        scene.bind()
        await asyncio.sleep(10)
        patch = scene.lower.patch

        async def losing(*arguments, subresource=None, **options):
            answer = await patch(*arguments, subresource=subresource, **options)
            if subresource == "ephemeralcontainers":
                scene.lower.patch = patch  # type: ignore[method-assign]
                scene.lower.change("pods", KEY, metadata=owned("d", manager="virtual-node"))
                raise ServerTimeout("no answer", code=504)
            return answer

        scene.lower.patch = losing  # type: ignore[method-assign]
        scene.upper.change("pods", KEY, spec=debug("d"))
        await asyncio.sleep(30)
        assert record_below(scene) == "d"


async def test_a_refused_debug_container_is_not_recorded():
    """A container that an administrator of the lower cluster adds later under its name stays out of reach."""
    async with running() as scene:
        scene.bind()
        await asyncio.sleep(10)
        scene.lower.fault = refusing(Invalid("no", code=422), "pods/ephemeralcontainers")
        scene.upper.change("pods", KEY, spec=debug("d"))
        await asyncio.sleep(10)
        scene.lower.fault = lambda _verb, _plural, _key: None
        scene.lower.change("pods", KEY, spec=debug("d"), metadata=owned("d", manager="kubectl-debug"))
        scene.upper.change("pods", KEY, metadata={"labels": {"new": "label"}})
        await asyncio.sleep(60)
        assert record_below(scene) == ""


async def test_a_resize_is_observed_once_the_lower_kubelet_has_seen_it():
    """The upper observedGeneration follows the kubelet, not the patch."""
    async with running() as scene:
        scene.bind()
        await asyncio.sleep(10)
        scene.lower.change("pods", KEY, status={"phase": "Running", "observedGeneration": 1})
        await asyncio.sleep(10)
        resized = {"name": "main", "image": "web:1", "resources": {"requests": {"cpu": "2"}}}
        scene.upper.change("pods", KEY, spec={"containers": [resized]}, metadata={"generation": 5})
        await asyncio.sleep(10)
        assert scene.above()["status"]["observedGeneration"] == 1
        scene.lower.change("pods", KEY, status={"observedGeneration": 2})
        await asyncio.sleep(10)
        above = scene.above()
        assert above["status"]["observedGeneration"] == 5
        assert above["metadata"]["annotations"][names.ANNOTATION_LOWER_UID]


async def test_a_deletion_is_observed_with_the_result():
    """It increments the generation of both pods; a finalizer keeps the upper pod, so its owner reads the status."""
    async with running() as scene:
        scene.bind()
        await asyncio.sleep(10)
        scene.lower.change("pods", KEY, status={"phase": "Running", "observedGeneration": 1})
        await asyncio.sleep(10)
        deleted = {"deletionTimestamp": "2026-01-01T00:00:30Z", "deletionGracePeriodSeconds": 30}
        scene.upper.change(
            "pods", KEY, metadata={**deleted, "generation": 2, "finalizers": ["example.com/keep"]}
        )
        await asyncio.sleep(1)
        scene.lower.change(
            "pods",
            KEY,
            metadata={**deleted, "generation": 2},
            status={"phase": "Failed", "observedGeneration": 2},
        )
        await asyncio.sleep(10)
        status = scene.above()["status"]
        assert (status["phase"], status["observedGeneration"]) == ("Failed", 2)


async def test_a_lower_cluster_that_cannot_resize_gets_the_rest_of_a_change():
    """It is older than pods/resize and answers NotFound, as for a deleted pod."""
    async with running() as scene:
        scene.bind()
        await asyncio.sleep(10)
        scene.lower.fault = refusing(
            NotFound("the server could not find the requested resource", code=404), "pods/resize"
        )
        resize(scene, image="web:2")
        await asyncio.sleep(60)
        below = scene.below()
        assert below["metadata"]["labels"]["new"] == "label"
        assert below["spec"]["containers"][0]["image"] == "web:2"
        assert [reason for reason, _ in scene.events] == ["UpdateRefused"]
        assert len(scene.lower.asked("patch", "pods/resize")) == 1


async def test_a_change_reverted_before_the_lower_cache_shows_it_is_reverted():
    """For example an operator moves its leader's label: compared with the stale cache there is no difference."""
    async with running() as scene:
        scene.bind()
        await asyncio.sleep(10)
        resize(scene, cpu="1")
        await asyncio.sleep(10)
        before = scene.below()
        scene.lower.held.add("pods")
        resize(scene, cpu="2", image="web:2")
        scene.upper.change("pods", KEY, metadata={"labels": {"new": "leader"}})
        await asyncio.sleep(OWN_WRITES)
        assert scene.below()["metadata"]["labels"]["new"] == "leader"
        resize(scene, cpu="1")
        await asyncio.sleep(OWN_WRITES)
        scene.lower.release("pods")
        await asyncio.sleep(10)
        assert scene.below()["spec"] == before["spec"]
        assert scene.below()["metadata"]["labels"] == before["metadata"]["labels"]


async def test_lower_metadata_changes_are_reverted_without_a_loop():
    """Another controller that repeats its change costs at most one patch in thirty seconds."""
    async with running() as scene:
        scene.bind()
        await asyncio.sleep(10)
        expected = scene.below()["metadata"]
        for change in (
            {"labels": {names.LABEL_VIRTUAL_POD: None}},
            {"annotations": {names.ANNOTATION_APPLIED: "x"}},
        ):
            scene.lower.change("pods", KEY, metadata=change)
            await asyncio.sleep(60)
            assert {field: scene.below()["metadata"][field] for field in change} == {
                field: expected[field] for field in change
            }
        before = len(scene.lower.asked("patch", "pods"))
        for number in range(60):
            scene.lower.change("pods", KEY, metadata={"labels": {names.LABEL_VIRTUAL_POD: str(number)}})
            await asyncio.sleep(1)
        assert 1 <= len(scene.lower.asked("patch", "pods")) - before <= 3


async def test_a_changed_label_does_not_make_a_running_lower_pod_an_orphan():
    """The other label still names its upper pod: the first is restored, and nothing is deleted."""
    async with running() as scene:
        scene.bind()
        await asyncio.sleep(10)
        before = scene.below()
        scene.lower.change("pods", KEY, metadata={"labels": {names.LABEL_UPPER_UID: "another"}})
        await asyncio.sleep(60)
        after = scene.below()
        assert (after["metadata"]["uid"], after["metadata"]["labels"]) == (
            before["metadata"]["uid"], before["metadata"]["labels"],
        )  # fmt: skip
        assert "deletionTimestamp" not in after["metadata"]


@pytest.mark.parametrize("label", [names.LABEL_UPPER_CLUSTER, names.LABEL_UPPER_UID, names.LABEL_NODE])
@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_finished_pod_gets_its_labels_back(label, is_restarted):
    """Without them it would not be deleted with its upper pod."""
    upper, lower = clusters()
    first = Scene(upper, lower)
    async with mirroring(first):
        first.bind()
        await asyncio.sleep(10)
        lower.change("pods", KEY, status={"phase": "Succeeded"})
        await asyncio.sleep(10)
        if not is_restarted:
            lower.change("pods", KEY, metadata={"labels": {label: None}})
            await asyncio.sleep(60)
    if is_restarted:
        lower.change("pods", KEY, metadata={"labels": {label: None}})
    async with mirroring(Scene(upper, lower)):
        await asyncio.sleep(60)
        assert label in lower.the("pods", KEY)["metadata"]["labels"]
        upper.remove("pods", KEY)
        await asyncio.sleep(10)
        below = lower.find("pods", KEY)
        assert below is None or "deletionTimestamp" in below["metadata"]


async def test_a_resize_is_reverted_after_a_refused_image_and_a_restart():
    """The lower pod's annotation shows the incomplete change, because the process that resized it has ended."""
    upper, lower = clusters()
    first = Scene(upper, lower)
    container = {"name": "main", "image": "web:1", "resources": {"requests": {"cpu": "1"}}}
    async with mirroring(first):
        first.bind(containers=[container])
        await asyncio.sleep(10)
        patch = lower.patch

        async def refusing_patch(*arguments, **options):
            if "bad image" in str(arguments):
                raise Invalid("spec.containers[0].image: Invalid value")
            return await patch(*arguments, **options)

        lower.patch = refusing_patch  # type: ignore[method-assign]
        resize(first, cpu="2", image="bad image")
        await asyncio.sleep(10)
        assert first.below()["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "2"
    async with mirroring(Scene(upper, lower)):
        await asyncio.sleep(10)
        upper.change("pods", KEY, spec={"containers": [container]}, metadata={"generation": 3})
        await asyncio.sleep(10)
        assert lower.the("pods", KEY)["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "1"
