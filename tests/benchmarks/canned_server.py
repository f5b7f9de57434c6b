"""API servers of an upper and several lower clusters with many mirrored pods, from templates; they store nothing.

``python -m tests.benchmarks.canned_server --clusters 20 --pods 100000 --nodes 0`` prints its port and serves
``/upper`` and ``/lower-0`` to ``/lower-19`` on loopback. Watches are silent until ``GET /go?events=N``, which makes the
watches of lower pods send N changes in total.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime

import msgspec
from aiohttp import web

from clusterset.model import names
from controller_runtime.apimachinery.timestamps import rfc3339
from controller_runtime.process.program import version
from hack.sandbox.nodes.kwok import kwok_node
from tests.benchmarks.canned_pods import CLUSTER_ID, NAMESPACE, templates
from tests.serving import served

HOST = "127.0.0.1"
_LEASES = "apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/"
_READY = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
_NOT_FOUND = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404, "reason": "NotFound"}
_BATCH = 50
"""Events per write."""
_Collection = tuple[int, Callable[[int], bytes]]
_NONE: _Collection = (0, lambda _: b"")


class _Server:
    """The answers to all requests."""

    def __init__(self, clusters: int, pods: int, nodes: int) -> None:
        self._clusters, self._nodes, self._share = clusters, nodes, pods // clusters
        self._pods = {f"lower-{number}": templates(f"vn-{number}") for number in range(clusters)}
        self._go = asyncio.Event()
        self._events = 0

    async def go(self, request: web.Request) -> web.Response:
        """Make the watches of lower pods send changes."""
        self._events = int(request.query["events"]) // self._clusters
        self._go.set()
        return web.Response()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a request to one of the API servers."""
        cluster, path = request.match_info["cluster"], request.match_info["path"]
        if path == "version":
            return web.json_response({"major": "1", "minor": "34", "gitVersion": "v1.34.4"})
        if path == "api/v1/namespaces/kube-system":
            return web.json_response({"metadata": {"name": "kube-system", "uid": CLUSTER_ID}})
        if path.startswith(_LEASES):
            name = path.removeprefix(_LEASES)
            now = rfc3339(datetime.now(UTC))
            spec = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": now}
            return web.json_response({"metadata": {"name": name}, "spec": spec})
        if path.startswith("readyz"):
            return web.Response(text="ok")
        if "watch" in request.query:
            return await self._watch(request, cluster, path)
        if re.search(r"/v\d\w*/(namespaces/[^/]+/)?[a-z]+/[^/]+$", f"/{path}"):
            return web.json_response(_NOT_FOUND, status=404)
        return self._page(request, cluster, path)

    def _page(self, request: web.Request, cluster: str, path: str) -> web.Response:
        start, limit = int(request.query.get("continue") or 0), int(request.query.get("limit") or 0)
        count, make = self._collection(request, cluster, path)
        end = min(count, start + limit) if limit else count
        token = b'"continue":"%d",' % end if end < count else b""
        items = b",".join(make(number) for number in range(start, end))
        body = b'{"kind":"List","apiVersion":"v1","metadata":{%s"resourceVersion":"1"},"items":[%s]}' % (
            token,
            items,
        )
        return web.Response(body=body, content_type="application/json")

    def _collection(self, request: web.Request, cluster: str, path: str) -> _Collection:
        """Return the number of objects of a collection, and a function that returns one by number."""
        labels, fields = request.query.get("labelSelector", ""), request.query.get("fieldSelector", "")
        if path == "api/v1/pods" and cluster == "upper":
            found = re.fullmatch(r"spec\.nodeName=vn-(\d+)", fields)
            return (self._share, self._pods[f"lower-{found[1]}"][0].body) if found else _NONE
        if path == "api/v1/pods":
            is_owned = f"={CLUSTER_ID}" in labels and f"!={CLUSTER_ID}" not in labels
            return (self._share, self._pods[cluster][1].body) if is_owned else _NONE
        if path == "api/v1/namespaces":
            owned = {"virtual-node.io/upper-cluster": CLUSTER_ID} if cluster != "upper" else {}
            body = msgspec.json.encode({"metadata": {"name": NAMESPACE, "uid": "n", "resourceVersion": "1", "labels": owned}})  # fmt: skip
            return 1, lambda _: body
        if path == "api/v1/nodes":
            return (self._nodes, _node) if cluster != "upper" else (self._clusters, virtual_node)
        return _NONE

    async def _watch(self, request: web.Request, cluster: str, path: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        owned = request.query.get("labelSelector", "")
        if path == "api/v1/pods" and cluster != "upper" and f"!={CLUSTER_ID}" not in owned and self._share:
            await self._go.wait()
            template = self._pods[cluster][1]
            for start in range(0, self._events, _BATCH):
                numbers = range(start, min(start + _BATCH, self._events))
                await response.write(b"".join(template.event(n % self._share, n + 2) for n in numbers))
        await asyncio.Event().wait()
        return response


def _node(number: int) -> bytes:
    body = kwok_node(f"node-{number:05d}")
    body["status"] |= {"conditions": [_READY], "nodeInfo": {"kubeletVersion": "v1.34.4"}}
    body["metadata"] |= {"uid": f"node-{number}", "resourceVersion": "1"}
    return msgspec.json.encode(body)


def virtual_node(number: int) -> bytes:
    labels = {names.LABEL_NODE_TYPE: names.NODE_TYPE_VIRTUAL, names.LABEL_VERSION: version()}
    body = kwok_node(f"vn-{number}", labels=labels, pods=1_000_000)
    body["metadata"]["uid"] = f"vn-{number}"
    body["status"]["conditions"] = [_READY]
    return msgspec.json.encode(body)


@contextlib.asynccontextmanager
async def canned(*, clusters: int, pods: int, nodes: int = 0) -> AsyncIterator[str]:
    """Start the API servers in a process of their own; yield their URL."""
    arguments = [f"--clusters={clusters}", f"--pods={pods}", f"--nodes={nodes}"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", __name__, *arguments, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        yield f"http://{HOST}:{int(await process.stdout.readline())}"
    finally:
        process.kill()
        await process.wait()


async def _serve(clusters: int, pods: int, nodes: int) -> None:
    server = _Server(clusters, pods, nodes)
    async with served(web.get("/go", server.go), web.get("/{cluster}/{path:.*}", server.answer)) as port:
        print(port, flush=True)
        await asyncio.Event().wait()


def main(arguments: Sequence[str]) -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clusters", type=int, default=20)
    parser.add_argument("--pods", type=int, default=100_000, help="in all clusters together")
    parser.add_argument("--nodes", type=int, default=0, help="of each lower cluster")
    options = parser.parse_args(arguments)
    asyncio.run(_serve(options.clusters, options.pods, options.nodes))


if __name__ == "__main__":
    main(sys.argv[1:])
