"""An apiserver in memory, as far as the descheduler can tell: versions, preconditions, grace, budgets, watches."""

from __future__ import annotations

import asyncio
import copy
import itertools
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from controller_runtime import resources
from controller_runtime.api import names, timestamps
from controller_runtime.client.client import ObjectList
from controller_runtime.client.reconnect_queue import Outage
from controller_runtime.errors import AlreadyExists, Conflict, Invalid, NotFound, TooManyRequests
from controller_runtime.objects import WatchEvent, from_dict
from controller_runtime.resources import Resource
from tests.unit.descheduler.bodies import now

Key = tuple[str, str, str]
CONFIG_MAP_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")


Batch = list[WatchEvent]
"""An alias, because ``FakeClient.list`` hides the built-in's name inside the class."""


class FakeCluster:
    """Objects by resource, namespace and name. One cluster outlives the clients of many processes."""

    def __init__(self) -> None:
        default = {"kind": "Namespace", "metadata": {"name": "default", "uid": "uid-default"}}
        self.objects: dict[Key, dict[str, Any]] = {("namespaces", "", "default"): default}
        self.created: list[str] = []
        """Uids of all pods that ever were."""
        self.budget_denies = False
        self.sheds_load = False
        """Whether evictions are answered as priority and fairness answers what is too much for it."""
        self.dead_nodes: set[str] = set()
        """Nodes that confirm no pod's end."""
        self._numbers = itertools.count(1)
        self._watchers: dict[str, list[asyncio.Queue[WatchEvent]]] = defaultdict(list)

    def put(self, resource: Resource, body: Mapping[str, Any], *, kind: str = "ADDED") -> dict[str, Any]:
        """Store an object under a new version, and tell the watchers."""
        whole = copy.deepcopy(dict(body))
        metadata = whole.setdefault("metadata", {})
        whole.setdefault("kind", resource.kind)
        whole.setdefault("apiVersion", resource.api_version)
        metadata["resourceVersion"] = str(next(self._numbers))
        if "uid" not in metadata:
            metadata["uid"] = f"uid-{metadata['resourceVersion']}"
        metadata.setdefault("creationTimestamp", timestamps.rfc3339(now()))
        key = (resource.plural, metadata.get("namespace", ""), metadata["name"])
        if resource is resources.PODS and key not in self.objects:
            self.created.append(metadata["uid"])
        self.objects[key] = whole
        self._tell(resource, kind, whole)
        return copy.deepcopy(whole)

    def change(self, resource: Resource, name: str, namespace: str = "", **fields: Any) -> None:
        """Replace top-level fields of an object."""
        there = self.objects[resource.plural, namespace, name]
        self.put(resource, {**there, **fields}, kind="MODIFIED")

    def find(self, resource: Resource, name: str, namespace: str = "default") -> dict[str, Any] | None:
        """An object, or None."""
        return self.objects.get((resource.plural, namespace, name))

    def all(self, resource: Resource) -> list[dict[str, Any]]:
        """All objects of a resource."""
        return [whole for (plural, _, _), whole in self.objects.items() if plural == resource.plural]

    def remove(self, resource: Resource, name: str, namespace: str = "default") -> None:
        """Take an object away."""
        whole = self.objects.pop((resource.plural, namespace, name))
        whole["metadata"]["resourceVersion"] = str(next(self._numbers))
        self._tell(resource, "DELETED", whole)

    def end(self, pod: dict[str, Any], grace: int | None) -> None:
        """Delete a pod, as kubelets confirm it or not."""
        metadata = pod["metadata"]
        node = pod["spec"].get("nodeName")
        if grace == 0 or not node:
            self.remove(resources.PODS, metadata["name"], metadata["namespace"])
            return
        metadata = {
            **metadata,
            "deletionTimestamp": timestamps.rfc3339(now()),
            "deletionGracePeriodSeconds": 1,
        }
        self.put(resources.PODS, {**pod, "metadata": metadata}, kind="MODIFIED")
        if node not in self.dead_nodes:
            uid, name, namespace = metadata["uid"], metadata["name"], metadata["namespace"]
            asyncio.get_running_loop().call_later(1.0, self._confirm, uid, name, namespace)

    def watch(self, resource: Resource) -> asyncio.Queue[WatchEvent]:
        """A queue of what happens from now on."""
        queue: asyncio.Queue[WatchEvent] = asyncio.Queue()
        self._watchers[resource.plural].append(queue)
        return queue

    def _confirm(self, uid: str, name: str, namespace: str) -> None:
        there = self.find(resources.PODS, name, namespace)
        if there is not None and there["metadata"]["uid"] == uid:
            self.remove(resources.PODS, name, namespace)

    def _tell(self, resource: Resource, kind: str, whole: dict[str, Any]) -> None:
        for queue in self._watchers[resource.plural]:
            queue.put_nowait(WatchEvent(kind, from_dict(whole)))


class FakeClient:
    """One process' connection: the verbs of ``client.Client`` that the descheduler uses.

    Attributes:
        writes: verb and resource of every write so far, rehearsals and events left out.
        before: called before every write; may await, raise or never return.
        after: called after every write, refused ones included.
    """

    cluster = "upper"

    def __init__(self, cluster: FakeCluster) -> None:
        self.server = cluster
        self.outage = Outage()
        self.turn = asyncio.Lock()
        self.writes: list[str] = []
        self.before: Callable[[str], Any] | None = None
        self.after: Callable[[str], Any] | None = None

    async def get(
        self, resource: Resource, name: str, *, namespace: str | None = None, **_: Any
    ) -> dict[str, Any]:
        """GET."""
        await asyncio.sleep(0)
        found = self.server.find(resource, name, namespace or "")
        if found is None:
            raise NotFound("gone", code=404)
        return copy.deepcopy(found)

    async def list(
        self, resource: Resource, *, namespace: str | None = None, label_selector: str | None = None, **_: Any
    ) -> ObjectList:
        """LIST; of label selectors, the one for records."""
        items = [
            from_dict(whole)
            for whole in self.server.all(resource)
            if _selected(whole, namespace, label_selector)
        ]
        return ObjectList(items, "1")

    async def watch_batches(
        self, resource: Resource, *, namespace: str | None = None, label_selector: str | None = None, **_: Any
    ) -> AsyncIterator[Batch]:
        """WATCH."""
        queue = self.server.watch(resource)
        while True:
            event = await queue.get()
            if _selected(event.object.to_dict(), namespace, label_selector):
                yield [event]

    async def create(
        self,
        resource: Resource,
        body: Mapping[str, Any],
        *,
        namespace: str | None = None,
        name: str | None = None,
        subresource: str | None = None,
        params: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """POST, the eviction API included."""
        if params or resource is resources.EVENTS:
            await asyncio.sleep(0)
            return dict(body)
        async with self._write(f"create {subresource or resource.plural}"):
            if subresource == "eviction":
                return self._evict(name or "", namespace or "", body)
            metadata = body["metadata"]
            space = namespace or metadata.get("namespace") or ""
            _check(resource, body)
            if self.server.find(resource, metadata["name"], space) is not None:
                raise AlreadyExists("exists", code=409)
            return self.server.put(resource, {**body, "metadata": {**metadata, "namespace": space}})

    async def patch(
        self, resource: Resource, name: str, patch: Any, *, namespace: str | None = None, **_: Any
    ) -> dict[str, Any]:
        """Merge patch."""
        if resource is resources.EVENTS:
            return {}
        async with self._write(f"patch {resource.plural}"):
            there = self.server.find(resource, name, namespace or "")
            if there is None:
                raise NotFound("gone", code=404)
            wanted = (patch.get("metadata") or {}).get("resourceVersion")
            if wanted and wanted != there["metadata"]["resourceVersion"]:
                raise Conflict("changed", code=409)
            _check(resource, patch)
            return self.server.put(resource, _merged(there, patch), kind="MODIFIED")

    async def update(self, resource: Resource, body: Mapping[str, Any]) -> dict[str, Any]:
        """PUT."""
        metadata = body["metadata"]
        async with self._write(f"update {resource.plural}"):
            there = self.server.find(resource, metadata["name"], metadata["namespace"])
            if there is None:
                raise NotFound("gone", code=404)
            if there["metadata"]["resourceVersion"] != metadata["resourceVersion"]:
                raise Conflict("changed", code=409)
            return self.server.put(resource, body, kind="MODIFIED")

    async def delete(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str | None = None,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_period_seconds: int | None = None,
    ) -> dict[str, Any]:
        """DELETE with preconditions."""
        async with self._write(f"delete {resource.plural}"):
            there = self.server.find(resource, name, namespace or "")
            if there is None:
                raise NotFound("gone", code=404)
            metadata = there["metadata"]
            if uid and uid != metadata["uid"]:
                raise Conflict("another uid", code=409)
            if resource_version and resource_version != metadata["resourceVersion"]:
                raise Conflict("changed", code=409)
            if resource is resources.PODS:
                self.server.end(there, grace_period_seconds)
            else:
                self.server.remove(resource, name, namespace or "")
            return {}

    def _evict(self, name: str, namespace: str, body: Mapping[str, Any]) -> dict[str, Any]:
        there = self.server.find(resources.PODS, name, namespace)
        if there is None:
            raise NotFound("gone", code=404)
        preconditions = body["deleteOptions"]["preconditions"]
        if preconditions["uid"] != there["metadata"]["uid"]:
            raise Conflict("another uid", code=409)
        version = preconditions.get("resourceVersion")
        if version and version != there["metadata"]["resourceVersion"]:
            raise Conflict("changed", code=409)
        if self.server.sheds_load:
            raise TooManyRequests("too many requests, please try again later", code=429, retry_after=1)
        if self.server.budget_denies:
            message = "Cannot evict pod as it would violate the pod's disruption budget."
            status = {"details": {"causes": [{"reason": "DisruptionBudget"}]}}
            raise TooManyRequests(message, code=429, status=status)
        self.server.end(there, None)
        return {}

    def _write(self, what: str) -> _Write:
        return _Write(self, what)


class _Write:
    """A write: hooks around it, and a turn of the loop for everybody else."""

    def __init__(self, client: FakeClient, what: str) -> None:
        self._client = client
        self._what = what

    async def __aenter__(self) -> None:
        await asyncio.sleep(0)
        if self._client.before is not None:
            await self._client.before(self._what)
        self._client.writes.append(self._what)

    async def __aexit__(self, *_: object) -> None:
        if self._client.after is not None:
            await self._client.after(self._what)


def _check(resource: Resource, body: Mapping[str, Any]) -> None:
    for key in body.get("data") or () if resource is resources.CONFIG_MAPS else ():
        if not CONFIG_MAP_KEY.fullmatch(key):
            raise Invalid(
                f"data[{key}]: a valid config key must consist of alphanumeric characters", code=422
            )


def _selected(whole: Mapping[str, Any], namespace: str | None, selector: str | None) -> bool:
    labels = whole["metadata"].get("labels") or {}
    if namespace and whole["metadata"].get("namespace") != namespace:
        return False
    return not selector or labels.get(names.LABEL_DESCHEDULER_RECORD) == "true"


def _merged(there: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    whole = dict(there)
    for field, value in patch.items():
        if value is None:
            whole.pop(field, None)
        elif isinstance(value, Mapping):
            whole[field] = _merged(whole.get(field) or {}, value)
        else:
            whole[field] = value
    return whole
