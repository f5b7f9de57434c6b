"""API servers in memory behind HTTPS, with nodes that run every pod at once: the product's process without control planes.

They store objects by the rules of ``tests.fakes.apiserver``. Pods of lower clusters are bound, get an event, run, and are
removed when they are deleted, as on kwok nodes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from aiohttp import web

from controller_runtime.apimachinery.timestamps import rfc3339
from controller_runtime.client.verbs import PatchType
from controller_runtime.errors import ApiError
from tests.fakes.apiserver.selectors import selection
from tests.fakes.apiserver.server import Server
from tests.fakes.apiserver.storage import Body, Commit, is_namespaced, object_key

_TYPES = {kind.value: kind for kind in PatchType}
_REVIEWS = "reviews"


class MemoryServer:
    """One API server: its storage, its open watches, and the number of requests by verb and resource."""

    def __init__(self, name: str) -> None:
        self.storage = Server(name, namespaces=("kube-system", "default"))
        self.requests: Counter[str] = Counter()
        self._watches: dict[str, set[asyncio.Queue[Commit]]] = {}
        self.storage.observers.append(self._committed)

    def _committed(self, commit: Commit) -> None:
        for queue in self._watches.get(commit.plural, ()):
            queue.put_nowait(commit)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a request."""
        path = request.match_info["path"]
        if path == "version":
            return web.json_response({"major": "1", "minor": "34", "gitVersion": "v1.34.4"})
        parts = path.split("/")[2 if path.startswith("api/") else 3 :]
        namespace = ""
        if len(parts) > 2 and parts[0] == "namespaces" and is_namespaced(parts[2]):
            namespace, parts = parts[1], parts[2:]
        plural, name, subresource = (*parts, "", "", "")[:3]
        if "watch" not in request.query:
            self.requests[f"{request.method} {plural}{'/' if subresource else ''}{subresource}"] += 1
        try:
            if "watch" in request.query:
                return await self._watch(request, plural, namespace)
            code, answer = self._verb(request, await request.read(), namespace, (plural, name, subresource))
        except ApiError as error:
            code = error.code or 500
            answer = {
                "kind": "Status",
                "status": "Failure",
                "code": code,
                "reason": error.reason,
                "message": str(error),
            }
        return web.Response(body=msgspec.json.encode(answer), status=code, content_type="application/json")

    def _verb(
        self, request: web.Request, raw: bytes, namespace: str, place: tuple[str, str, str]
    ) -> tuple[int, Any]:
        """Return status code and body; ``place`` is plural, name and subresource."""
        method, (plural, name, subresource) = request.method, place
        body = msgspec.json.decode(raw) if raw else {}
        key, storage = object_key(plural, namespace, name), self.storage
        if method == "GET":
            return 200, storage.get(plural, key) if name else self._page(request.query, plural, namespace)
        if method == "POST" and plural.endswith(_REVIEWS):
            return 201, {
                **body,
                "status": {"allowed": True, "resourceRules": [], "nonResourceRules": [], "incomplete": False},
            }
        if method == "POST" and subresource == "token":
            seconds = int(body["spec"].get("expirationSeconds") or 3600)
            until = rfc3339(datetime.now(UTC) + timedelta(seconds=seconds))
            return 201, {
                **body,
                "status": {"token": f"e30.{'e' * 900}.{'s' * 340}", "expirationTimestamp": until},
            }
        if method == "POST":
            return 201, storage.create(plural, body, namespace=namespace or None)
        if method == "PATCH":
            kind = _TYPES[request.content_type]
            return 200, storage.patch(plural, key, body, subresource=subresource or None, patch_type=kind)
        if method == "PUT":
            return 200, storage.update(plural, key, body, subresource=subresource or None)
        wanted = body.get("preconditions") or {}
        return 200, storage.delete(plural, key, uid=wanted.get("uid"), grace=body.get("gracePeriodSeconds"))

    def _page(self, query: Mapping[str, str], plural: str, namespace: str) -> Any:
        matches = selection(namespace or None, query.get("labelSelector"), query.get("fieldSelector"))
        found = [body for body in self.storage.objects[plural].values() if matches(body)]
        start, limit = int(query.get("continue") or 0), int(query.get("limit") or 0) or len(found)
        more = {"continue": str(start + limit)} if start + limit < len(found) else {}
        metadata = {"resourceVersion": str(self.storage.version), **more}
        return {
            "kind": "List",
            "apiVersion": "v1",
            "metadata": metadata,
            "items": found[start : start + limit],
        }

    async def _watch(self, request: web.Request, plural: str, namespace: str) -> web.StreamResponse:
        query = request.query
        matches = selection(namespace or None, query.get("labelSelector"), query.get("fieldSelector"))
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        queue: asyncio.Queue[Commit] = asyncio.Queue()
        watches = self._watches.setdefault(plural, set())
        watches.add(queue)
        try:
            await response.prepare(request)
            version = int(query.get("resourceVersion") or self.storage.version)
            for commit in [one for one in self.storage.history[plural] if one.version > version]:
                queue.put_nowait(commit)
            while True:
                commit = await queue.get()
                if commit.version <= version:
                    continue
                version = commit.version
                has, was = (
                    commit.new is not None and matches(commit.new),
                    commit.old is not None and matches(commit.old),
                )
                if has or was:
                    kind = "DELETED" if not has else "MODIFIED" if was else "ADDED"
                    metadata = {**commit.body["metadata"], "resourceVersion": str(commit.version)}
                    await response.write(
                        msgspec.json.encode({"type": kind, "object": {**commit.body, "metadata": metadata}})
                        + b"\n"
                    )
        except ConnectionError:  # the client is gone
            return response
        finally:
            watches.discard(queue)


class KwokNodes:
    """Runs the pods of a server at once, and removes those that are being deleted."""

    def __init__(self, server: MemoryServer) -> None:
        self._storage = server.storage
        self._changed: asyncio.Queue[Commit] = asyncio.Queue()
        server.storage.observers.append(
            lambda commit: self._changed.put_nowait(commit) if commit.plural == "pods" else None
        )

    async def run(self) -> None:
        """Run pods until cancelled."""
        while True:
            commit = await self._changed.get()
            pod = commit.new
            if pod is None:
                continue
            if commit.verb == "create" and not pod["spec"].get("nodeName"):
                self._start(commit.key, pod)
            elif commit.verb == "delete" and "deletionTimestamp" in pod["metadata"]:
                self._storage.delete("pods", commit.key, grace=0, who="kubelet")

    def _start(self, key: str, pod: Body) -> None:
        now = rfc3339(datetime.now(UTC))
        self._storage.bind(key, "node-0", who="scheduler")
        self._storage.create("events", scheduled(pod, now), who="scheduler")
        self._storage.patch("pods", key, {"status": running(pod, now)}, subresource="status", who="kubelet")


def scheduled(pod: Body, now: str) -> Body:
    """Return the scheduler's event of a pod."""
    metadata = pod["metadata"]
    subject = {key: metadata[key] for key in ("namespace", "name", "uid", "resourceVersion")}
    return {
        "metadata": {"name": f"{metadata['name']}.{metadata['uid'][:16]}", "namespace": metadata["namespace"]},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", **subject},
        "type": "Normal", "reason": "Scheduled", "message": f"Successfully assigned {metadata['name']} to node-0",
        "reportingComponent": "default-scheduler", "reportingInstance": "scheduler-0", "action": "Binding",
        "source": {}, "eventTime": None, "firstTimestamp": now, "lastTimestamp": now, "count": 1,
    }  # fmt: skip


def running(pod: Body, now: str) -> Body:
    """Return the status of a pod that runs."""
    return {
        "phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}], "hostIP": "192.168.0.1",
        "hostIPs": [{"ip": "192.168.0.1"}], "startTime": now, "qosClass": "Burstable",
        "conditions": [
            {"type": name, "status": "True", "lastTransitionTime": now}
            for name in ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
        ],
        "containerStatuses": [
            {"name": one["name"], "ready": True, "started": True, "restartCount": 0, "image": one["image"],
             "imageID": f"{one['image']}@sha256:0000", "containerID": "containerd://0",
             "state": {"running": {"startedAt": now}}, "lastState": {}}
            for one in pod["spec"]["containers"]
        ],
    }  # fmt: skip
