"""The service controller on caches that a test fills, with a lower cluster that answers from a dict."""

from __future__ import annotations

import asyncio
import contextlib
import json
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from controller_runtime import resources
from controller_runtime.api import names
from controller_runtime.errors import AlreadyExists, ApiError, Conflict, Forbidden, Invalid, NotFound
from controller_runtime.informer import Informer
from controller_runtime.objects import Object, from_dict
from virtual_node import config as configuration
from virtual_node.controllers.context import INDEX_UID, INDEX_UPPER_UID, PodCaches
from virtual_node.controllers.endpoint_slices import (
    INDEX_SERVICE,
    EndpointSlices,
    LegacyEndpoints,
    endpoint_mirror,
)
from virtual_node.controllers.service_copies import upper_service
from virtual_node.controllers.service_links import INDEX_NAMESPACE
from virtual_node.controllers.services import ServiceController
from virtual_node.controllers.services_users import GRACE, NamespaceUsers

CLUSTER = "upper-1"


Writes = list[tuple[str, str]]


class Lower:
    """A lower apiserver: objects by (plural, namespace/name), and what was asked of it."""

    cluster = "lower"

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.calls: list[tuple[str, str, str]] = []
        self.families = {"IPv4"}
        self.without: set[str] = set()
        """Resources that this cluster does not know."""
        self.others_pods: list[Any] = []
        self.informers: dict[str, Informer] = {}

    async def list(self, resource, **_selection):
        self.calls.append(("list", resource.plural, ""))
        if resource.plural in self.without:
            raise NotFound("the server could not find the requested resource")
        return SimpleNamespace(items=self.others_pods if resource is resources.PODS else [])

    async def get(self, resource, name, *, namespace=None):
        self.calls.append(("get", resource.plural, f"{namespace}/{name}"))
        try:
            return self.objects[resource.plural, f"{namespace}/{name}"]
        except KeyError:
            raise NotFound("not found") from None

    async def create(self, resource, body, *, namespace=None):
        key = f"{namespace}/{body['metadata']['name']}"
        self.calls.append(("create", resource.plural, key))
        if (resource.plural, key) in self.objects:
            raise AlreadyExists("exists")
        asked = set(body.get("spec", {}).get("ipFamilies") or ())
        if not asked <= self.families:
            raise Invalid("spec.ipFamilies[0]: not configured on this cluster")
        body = json.loads(json.dumps(body))
        body["metadata"] |= {"uid": f"l-{len(self.calls)}", "resourceVersion": "1"}
        self.put(resource, body)
        return body

    async def patch(self, resource, name, patch, *, namespace=None):
        self.calls.append(("patch", resource.plural, f"{namespace}/{name}"))
        body = self.objects[resource.plural, f"{namespace}/{name}"]
        for key, value in (patch.get("metadata", {}).get("annotations") or {}).items():
            body["metadata"]["annotations"] |= {key: value}
            if value is None:
                del body["metadata"]["annotations"][key]
        self.put(resource, body)
        return body

    async def delete(self, resource, name, *, namespace=None, uid=None):
        key = f"{namespace}/{name}"
        self.calls.append(("delete", resource.plural, key))
        assert self.objects[resource.plural, key]["metadata"]["uid"] == uid
        del self.objects[resource.plural, key]
        self.informers[resource.plural].store.remove(key)

    def put(self, resource, body) -> None:
        """Have an object there, and in the cache when it carries our label."""
        key = f"{body['metadata']['namespace']}/{body['metadata']['name']}"
        self.objects[resource.plural, key] = body
        if body["metadata"].get("labels", {}).get(names.LABEL_UPPER_CLUSTER) == CLUSTER:
            self.informers[resource.plural].store.put(key, from_dict(body))

    def wrote(self) -> Writes:
        """Verbs and keys of the writes to Services."""
        return [
            (verb, key)
            for verb, plural, key in self.calls
            if plural == "services" and verb not in {"get", "list"}
        ]


class Recorder:
    """Keeps events."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []

    def event(self, involved, kind, reason, _message) -> None:
        self.events.append((kind, reason))


class Namespaces:
    """Every namespace is there and allowed."""

    async def ensure(self, namespace, *, upper_name) -> None:
        pass

    def forget(self, namespace) -> None:
        pass

    def allowed(self, namespace) -> bool:
        return bool(namespace != "forbidden")


class Scene:
    """A controller, what it reads and what it wrote."""

    def __init__(self, **settings: Any) -> None:
        self.lower = Lower()
        self.recorder = Recorder()
        self.unseen: list[Object] = []
        """What the upper cluster has, and our caches do not show yet."""
        self.later = False
        """The upper cluster has everything in a later state than our caches."""
        upper = SimpleNamespace(cluster="upper", list=self._list_above)
        self.context: Any = SimpleNamespace(
            name="lower1", cluster_id=CLUSTER, upper=upper, lower=self.lower, nodes={"vn": None},
            settings=configuration.Config(**settings), recorder=self.recorder, log=structlog.get_logger(),
            lower_namespace=lambda name: name,
        )  # fmt: skip
        client: Any = upper
        self.pods = Informer(client, resources.PODS, indexers={INDEX_UID: lambda pod: (pod.uid,)})
        lower_client: Any = self.lower
        lower_pods = Informer(lower_client, resources.PODS, indexers={INDEX_UPPER_UID: lambda _pod: ()})
        caches = PodCaches(upper={"vn": self.pods}, lower=lower_pods)
        self.services = Informer(
            client, resources.SERVICES, indexers={INDEX_NAMESPACE: lambda service: (service.namespace,)}
        )
        self.copies = Informer(lower_client, resources.SERVICES, indexers={INDEX_SERVICE: upper_service})
        namespaces: Any = Namespaces()
        context: Any = self.context
        self.controller = ServiceController(
            context, caches, namespaces=namespaces, upper=self.services, lower=self.copies
        )
        self.mirror = EndpointSlices(context, caches, upper=self.controller._slices)
        self.controller._endpoints = self.mirror
        self.lower.informers = {"services": self.copies, "endpointslices": self.mirror.lower}
        self.caches = caches

    async def _list_above(self, resource, *, namespace, field_selector="", label_selector="", **_rest):
        cached = self.services if resource is resources.SERVICES else self.controller._slices
        return SimpleNamespace(
            items=[
                thing(one.kind, one.name, one.namespace, "later") if self.later else one
                for one in [*cached.store.list(), *self.unseen]
                if one.namespace == namespace
                and field_selector in {"", f"metadata.name={one.name}"}
                and label_selector in {"", *(f"{key}={value}" for key, value in one.labels.items())}
            ]
        )

    def add_pod(self, namespace="shop", uid="p-1") -> None:
        """A pod comes to our virtual node."""
        self.pods._store(thing("Pod", "pod", namespace, uid), initial=False)

    def remove_pod(self, namespace="shop") -> None:
        """And goes."""
        self.pods._remove(f"{namespace}/pod", None)

    def add_service(self, name="web", namespace="shop", uid="u-1", **spec) -> str:
        """An upper Service; its key."""
        spec = {"type": "ClusterIP", "clusterIP": "10.96.0.9", "ports": [{"port": 80}], **spec}
        self.services._store(thing("Service", name, namespace, uid, spec=spec), initial=False)
        return f"{namespace}/{name}"

    def remove_service(self, key) -> None:
        """It goes."""
        self.services._remove(key, None)

    def add_slice(self, name="web-1", namespace="shop", service="web", uid="s-1") -> None:
        """An upper EndpointSlice with one address."""
        body = thing("EndpointSlice", name, namespace, uid).to_dict()
        body["metadata"]["labels"] = {"kubernetes.io/service-name": service}
        body |= {"addressType": "IPv4", "endpoints": [{"addresses": ["10.1.0.1"]}], "ports": [{"port": 80}]}
        self.controller._slices._store(from_dict(body), initial=False)


def thing(kind, name, namespace, uid, **fields) -> Object:
    """A cached object."""
    return from_dict(
        {
            "apiVersion": "v1",
            "kind": kind,
            "metadata": {"name": name, "namespace": namespace, "uid": uid, "resourceVersion": "1"},
            **fields,
        }
    )


def foreign(name, namespace) -> dict[str, Any]:
    """A lower Service of somebody else's."""
    return {
        "metadata": {"name": name, "namespace": namespace, "uid": "theirs"},
        "spec": {"clusterIP": "10.97.0.1"},
    }


@pytest.mark.looptime
async def test_a_service_goes_below_with_the_first_pod_of_its_namespace():
    """Not before, and its endpoints with it."""
    scene = Scene()
    key = scene.add_service()
    scene.add_slice()
    await scene.controller.reconcile(key)
    assert scene.lower.wrote() == []
    scene.add_pod()
    assert await scene.controller.reconcile(key) is None
    assert scene.lower.wrote() == [("create", key)]
    assert len(scene.mirror.lower.store) == 1
    await scene.controller.reconcile(key)
    assert scene.lower.wrote() == [("create", key)]


@pytest.mark.looptime
async def test_a_namespace_out_of_use_keeps_its_copies_for_a_while():
    """The grace begins with the last pod's end, a pod that comes ends it, and then everything goes."""
    scene = Scene()
    key = scene.add_service()
    scene.add_slice()
    scene.add_pod()
    await scene.controller.reconcile(key)
    scene.remove_pod()
    again = await scene.controller.reconcile(key)
    assert again is not None
    assert again.requeue_after == GRACE
    await asyncio.sleep(GRACE - 1)
    later = await scene.controller.reconcile(key)
    assert later is not None
    assert later.requeue_after == pytest.approx(1)
    assert scene.lower.wrote() == [("create", key)]
    await asyncio.sleep(1)
    await scene.controller.reconcile(key)
    assert scene.lower.wrote() == [("create", key), ("delete", key)]
    assert len(scene.mirror.lower.store) == 0


@pytest.mark.looptime
async def test_copies_that_another_process_needs_stay():
    """Virtual nodes of one upper cluster in two processes share the copies."""
    scene = Scene()
    key = scene.add_service()
    scene.add_pod()
    await scene.controller.reconcile(key)
    scene.remove_pod()
    await scene.controller.reconcile(key)
    await asyncio.sleep(GRACE)
    scene.lower.others_pods = [object()]
    later = await scene.controller.reconcile(key)
    assert later is not None
    assert later.requeue_after == GRACE
    assert scene.lower.wrote() == [("create", key)]


MINE, THEIRS = "always.virtual-node.io/vn", "always.virtual-node.io/vn-other"


def _marks(scene: Scene, key: str) -> set[str]:
    annotations = scene.lower.objects["services", key]["metadata"]["annotations"]
    return {mark for mark in annotations if mark.startswith("always.")}


@pytest.mark.looptime
async def test_what_an_installation_always_wants_is_marked_as_long_as_it_does():
    """Every installation marks for itself; a pattern that goes takes its mark along, and the copy stays for the pods."""
    scene = Scene(services=configuration.ServicesConfig(always=["shop/*"]))
    key = scene.add_service()
    await scene.controller.reconcile(key)
    assert _marks(scene, key) == {MINE}
    scene.add_pod()
    scene.context.settings.services.always = []
    await scene.controller.reconcile(key)
    assert _marks(scene, key) == set()
    await scene.controller.reconcile(key)
    assert scene.lower.wrote() == [("create", key), ("patch", key)]
    scene.context.settings.services.always = ["shop/*"]
    await scene.controller.reconcile(key)
    assert _marks(scene, key) == {MINE}


@pytest.mark.looptime
async def test_what_another_installation_always_wants_is_not_ours_to_remove():
    """However long nobody here uses it; when they want it no more it goes as any other."""
    scene = Scene(services=configuration.ServicesConfig(always=["shop/*"]))
    key = scene.add_service()
    await scene.controller.reconcile(key)
    scene.lower.objects["services", key]["metadata"]["annotations"][THEIRS] = "true"
    scene.lower.put(resources.SERVICES, scene.lower.objects["services", key])
    scene.context.settings.services.always = []
    await scene.controller.reconcile(key)
    await asyncio.sleep(GRACE + 1)
    assert await scene.controller.reconcile(key) is None
    assert _marks(scene, key) == {THEIRS}
    del scene.lower.objects["services", key]["metadata"]["annotations"][THEIRS]
    scene.lower.put(resources.SERVICES, scene.lower.objects["services", key])
    await scene.controller.reconcile(key)
    await asyncio.sleep(GRACE + 1)
    await scene.controller.reconcile(key)
    assert scene.lower.wrote()[-1] == ("delete", key)


@pytest.mark.looptime
async def test_a_deleted_service_goes_at_once():
    """Without any grace, by the uid of the copy."""
    scene = Scene()
    key = scene.add_service()
    scene.add_slice()
    scene.add_pod()
    await scene.controller.reconcile(key)
    scene.remove_service(key)
    await scene.controller.reconcile(key)
    assert scene.lower.objects == {}


@pytest.mark.looptime
async def test_a_service_that_only_our_cache_lacks_keeps_its_copy():
    """Another process has made it while our watch is behind: a new copy would have another address."""
    scene = Scene()
    key = scene.add_service()
    scene.add_slice()
    scene.add_pod()
    await scene.controller.reconcile(key)
    scene.unseen = scene.services.store.list()
    scene.remove_service(key)
    result = await scene.controller.reconcile(key)
    assert result is not None
    assert result.requeue_after
    assert scene.lower.wrote() == [("create", key)]
    assert len(scene.mirror.lower.store) == 1


@pytest.mark.looptime
async def test_a_slice_that_only_our_cache_lacks_stays():
    """Or its endpoints would be out of service until our watch has caught up; what is gone above goes."""
    scene = Scene()
    key = scene.add_service()
    scene.add_slice()
    scene.add_pod()
    await scene.controller.reconcile(key)
    scene.unseen = scene.controller._slices.store.list()
    scene.controller._slices._remove("shop/web-1", None)
    await scene.controller.reconcile(key)
    assert len(scene.mirror.lower.store) == 1
    scene.unseen = []
    await scene.controller.reconcile(key)
    assert len(scene.mirror.lower.store) == 0


@pytest.mark.looptime
async def test_two_processes_do_not_undo_each_other():
    """The other one knows a later state of Service and slice; what it wrote is left until our caches have it, too."""
    scene = Scene()
    key = scene.add_service()
    scene.add_slice()
    scene.add_pod()
    await scene.controller.reconcile(key)
    service, piece = scene.services.store.list()[0], scene.controller._slices.store.list()[0]
    for resource, cache in (
        (resources.SERVICES, scene.copies),
        (resources.ENDPOINT_SLICES, scene.mirror.lower),
    ):
        (copy,) = [one.to_dict() for one in cache.store.list()]
        copy["metadata"]["annotations"]["virtual-node.io/applied"] = "later"
        scene.lower.put(resource, copy)
    scene.lower.calls.clear()
    scene.later = True
    await scene.controller.reconcile(key)
    assert [call for call in scene.lower.calls if call[0] == "patch"] == []
    scene.later = False
    await scene.controller.reconcile(key)
    assert [plural for verb, plural, _ in scene.lower.calls if verb == "patch"] == [
        "services",
        "endpointslices",
    ]
    assert (service, piece) == (scene.services.store.list()[0], scene.controller._slices.store.list()[0])


@pytest.mark.looptime
async def test_a_service_of_a_later_uid_is_not_replaced_by_an_earlier_one():
    """Our cache still has the Service that was deleted; the copy belongs to its successor and keeps its address."""
    scene = Scene()
    key = scene.add_service()
    scene.add_pod()
    await scene.controller.reconcile(key)
    copy = scene.copies.store.list()[0].to_dict()
    copy["metadata"]["labels"][names.LABEL_UPPER_UID] = "u-2"
    scene.lower.put(resources.SERVICES, copy)
    scene.later = True
    await scene.controller.reconcile(key)
    assert scene.lower.wrote() == [("create", key)]


@pytest.mark.looptime
async def test_a_stranger_who_takes_the_name_while_a_copy_is_replaced_gets_no_endpoints():
    """The copy is looked at again before anything leads to it."""
    scene = Scene()
    key = scene.add_service()
    scene.add_pod()
    await scene.controller.reconcile(key)
    scene.add_service(uid="u-2")
    scene.add_slice()
    delete = scene.lower.delete

    async def delete_and_lose(resource, name, *, namespace=None, uid=None):
        await delete(resource, name, namespace=namespace, uid=uid)
        scene.lower.put(resources.SERVICES, foreign("web", "shop"))

    scene.lower.delete = delete_and_lose  # type: ignore[method-assign]
    with pytest.raises(Conflict):
        await scene.controller.reconcile(key)
    await scene.controller.reconcile(key)
    assert len(scene.mirror.lower.store) == 0
    assert scene.recorder.events[-1] == ("Warning", "ServiceConflict")


@pytest.mark.looptime
async def test_a_service_made_again_under_its_name_is_a_new_copy():
    """A copy of the old uid is replaced."""
    scene = Scene()
    key = scene.add_service()
    scene.add_pod()
    await scene.controller.reconcile(key)
    scene.add_service(uid="u-2")
    await scene.controller.reconcile(key)
    assert scene.lower.wrote() == [("create", key), ("delete", key), ("create", key)]


@pytest.mark.parametrize(
    ("name", "namespace", "kind"), [("kubernetes", "default", "Normal"), ("web", "shop", "Warning")]
)
@pytest.mark.looptime
async def test_a_foreign_service_is_left_alone_and_told_of_once(name, namespace, kind):
    """No write but the create that failed, one event however often it is looked at, no endpoints."""
    scene = Scene()
    scene.lower.put(resources.SERVICES, foreign(name, namespace))
    key = scene.add_service(name, namespace)
    scene.add_slice(namespace=namespace, service=name)
    scene.add_pod(namespace)
    for _ in range(3):
        result = await scene.controller.reconcile(key)
        assert result is not None
        assert result.requeue_after
    assert scene.lower.wrote() == [("create", key)]
    assert scene.recorder.events == [(kind, "ServiceConflict")]
    assert scene.lower.objects["services", key]["metadata"]["uid"] == "theirs"
    assert len(scene.mirror.lower.store) == 0


@pytest.mark.looptime
async def test_a_name_that_becomes_free_is_taken():
    """After the foreign Service has gone, the next look creates ours."""
    scene = Scene()
    scene.lower.put(resources.SERVICES, foreign("web", "shop"))
    key = scene.add_service()
    scene.add_pod()
    await scene.controller.reconcile(key)
    del scene.lower.objects["services", key]
    assert await scene.controller.reconcile(key) is None
    assert names.LABEL_UPPER_CLUSTER in scene.lower.objects["services", key]["metadata"]["labels"]


@pytest.mark.parametrize(
    ("namespace", "always", "expected"),
    [
        ("kube-system", ["kube-system/*"], True),
        ("kube-system", [], False),
        ("forbidden", [], False),
        ("elsewhere", ["elsewhere/w?b"], True),
    ],
)
@pytest.mark.looptime
async def test_which_services_are_wanted(namespace, always, expected):
    """Pods alone bring nothing into kube-system, nor from where they may not come; patterns need no pods."""
    scene = Scene(services=configuration.ServicesConfig(always=always))
    key = scene.add_service(namespace=namespace)
    if namespace != "elsewhere":
        scene.add_pod(namespace)
    await scene.controller.reconcile(key)
    assert bool(scene.lower.wrote()) is expected


@pytest.mark.looptime
async def test_families_that_the_lower_cluster_lacks_are_not_asked_for_twice():
    """The second try leaves the choice to it, and the result is left in peace."""
    scene = Scene()
    key = scene.add_service(ipFamilyPolicy="SingleStack", ipFamilies=["IPv6"])
    scene.add_pod()
    await scene.controller.reconcile(key)
    assert scene.lower.objects["services", key]["spec"]["ipFamilyPolicy"] == "PreferDualStack"
    copy = scene.lower.objects["services", key]
    copy["spec"] |= {"ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack"}
    scene.lower.put(resources.SERVICES, copy)
    scene.lower.calls.clear()
    await scene.controller.reconcile(key)
    assert scene.lower.wrote() == []


@pytest.mark.looptime
async def test_an_older_cluster_gets_endpoints():
    """Where discovery.k8s.io/v1 is unknown, Endpoints are written instead of slices."""
    scene = Scene()
    context, caches = scene.context, scene.caches
    assert isinstance(await endpoint_mirror(context, caches, scene.controller._slices), EndpointSlices)
    scene.lower.without = {"endpointslices"}
    mirror = await endpoint_mirror(context, caches, scene.controller._slices)
    assert isinstance(mirror, LegacyEndpoints)
    scene.lower.informers["endpoints"] = mirror.lower
    scene.controller._endpoints = mirror
    key = scene.add_service()
    scene.add_slice()
    scene.add_pod()
    await scene.controller.reconcile(key)
    assert scene.lower.objects["endpoints", key]["subsets"] == [
        {"addresses": [{"ip": "10.1.0.1"}], "ports": [{"port": 80}]}
    ]
    scene.remove_service(key)
    await scene.controller.reconcile(key)
    assert scene.lower.objects == {}


@pytest.mark.looptime
async def test_a_pod_waits_for_addresses_but_not_for_long():
    """Until the copy shows, or two seconds; a name that is taken is nothing to wait for."""
    scene = Scene()
    loop = asyncio.get_running_loop()
    begun = loop.time()
    await scene.controller.settled("shop")
    assert loop.time() == begun
    key = scene.add_service()
    scene.add_pod()
    await scene.controller.settled("shop")
    assert loop.time() - begun == pytest.approx(2)
    scene.lower.put(resources.SERVICES, foreign("web", "shop"))
    waiting = asyncio.ensure_future(scene.controller.settled("shop"))
    await asyncio.sleep(0)
    await scene.controller.reconcile(key)
    await waiting
    assert loop.time() - begun == pytest.approx(2)


@pytest.mark.looptime
async def test_copies_of_another_mapping_go():
    """After a restart with another prefix the Service is in its new namespace below, and only there."""
    scene = Scene()
    key = scene.add_service()
    scene.add_slice()
    scene.add_pod()
    await scene.controller.reconcile(key)
    scene.context.lower_namespace = lambda name: f"x-{name}"
    await scene.controller.reconcile(key)
    assert {found for _, found in scene.lower.objects} == {
        "x-shop/web", f"x-shop/{next(iter(scene.mirror.lower.store.list())).name}",
    }  # fmt: skip
    assert len(scene.lower.objects) == 2


@pytest.mark.looptime
async def test_copies_of_another_installation_with_another_mapping_stay():
    """Two installations that map the namespace to different ones would otherwise fight for ever."""
    scene = Scene()
    key = scene.add_service()
    scene.add_pod()
    await scene.controller.reconcile(key)
    scene.context.lower_namespace = lambda name: f"x-{name}"
    scene.lower.others_pods = [object()]
    await scene.controller.reconcile(key)
    assert scene.lower.wrote() == [("create", key), ("create", f"x-{key}")]


@pytest.mark.looptime
async def test_a_refusal_is_told_and_nobody_waits_for_it():
    """A quota on Services must not slow the pods of the namespace; the next try that works forgets it."""
    scene = Scene()
    loop = asyncio.get_running_loop()
    key = scene.add_service()
    scene.add_pod()
    create = scene.lower.create

    async def refuse(*_arguments, **_options):
        raise Forbidden("exceeded quota: services", code=403)

    scene.lower.create = refuse  # type: ignore[method-assign]
    with pytest.raises(Forbidden):
        await scene.controller.reconcile(key)
    assert scene.recorder.events == [("Warning", "FailedMirror")]
    begun = loop.time()
    await scene.controller.settled("shop")
    assert loop.time() == begun
    scene.lower.create = create  # type: ignore[method-assign]
    await scene.controller.reconcile(key)
    assert scene.lower.wrote() == [("create", key)]


@pytest.mark.looptime
async def test_switched_off_nothing_runs_and_nobody_waits():
    """``--enable-controllers=PVControllers``."""
    scene = Scene(enable_controllers=["PVControllers"])
    scene.add_service()
    begun = asyncio.get_running_loop().time()
    await scene.controller.run()
    await scene.controller.settled("shop")
    assert asyncio.get_running_loop().time() == begun
    assert scene.lower.calls == []


@pytest.mark.looptime
async def test_a_lower_cluster_that_does_not_answer_is_waited_for():
    """The controller starts when the cluster first answers, and never fails the others."""
    scene = Scene()
    failures = 3

    async def listing(resource, **_selection):
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise ApiError("no")
        return SimpleNamespace(items=[])

    scene.lower.list = listing  # type: ignore[method-assign]
    assert isinstance(await scene.controller._choose(), EndpointSlices)
    assert failures == -1


@pytest.mark.looptime
async def test_users_are_told_of_when_the_first_comes_and_the_last_goes():
    """And not in between."""
    scene = Scene()
    told: list[str] = []
    users = NamespaceUsers([scene.pods], on_change=told.append)
    scene.add_pod()
    other = thing("Pod", "other", "shop", "p-2")
    scene.pods._store(other, initial=False)
    assert told == ["shop"]
    scene.remove_pod()
    assert told == ["shop"]
    assert "shop" in users
    scene.pods._remove("shop/other", None)
    assert told == ["shop", "shop"]
    assert "shop" not in users
    assert users.grace("shop") == GRACE
    await asyncio.sleep(GRACE / 2)
    scene.add_pod()
    scene.remove_pod()
    assert users.grace("shop") == GRACE
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(GRACE + 1):
            await asyncio.Event().wait()
    assert users.grace("shop") == 0
