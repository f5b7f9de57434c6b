"""``/pods`` and ``/runningpods/``: a v1 PodList, encoded in batches."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import msgspec
from aiohttp import web

from virtual_node.kubelet.base.backend import Backend

_BATCH = 50
"""Pods per batch. Encoding a batch takes about 5 ms; then other tasks (Lease renewals, streams) may run."""

_encode = msgspec.json.Encoder().encode


class PodRoutes:
    """Handlers of ``/pods`` and ``/runningpods/``."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def pods(self, request: web.Request) -> web.StreamResponse:
        """Return the pods bound to this node."""
        return await _pod_list(request, self._backend.pods())

    async def running_pods(self, request: web.Request) -> web.StreamResponse:
        """Return the pods that run in the lower cluster for this node."""
        return await _pod_list(request, self._backend.running_pods())


async def _pod_list(request: web.Request, pods: Iterable[Mapping[str, Any]]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    await response.write(b'{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[')
    remaining, separator = iter(pods), b""
    while batch := [_encode(pod) for pod in islice(remaining, _BATCH)]:
        await response.write(separator + b",".join(batch))
        separator = b","
        await asyncio.sleep(0)
    await response.write(b"]}\n")
    return response
