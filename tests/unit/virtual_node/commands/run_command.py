"""Runs commands against a small API server with scripted objects and rights."""

from __future__ import annotations

import asyncio
import fnmatch
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from controller_runtime.apimachinery import matching
from tests.kubeconfigs import whole, write
from tests.unit.controller_runtime.loopback import Server, failure, reply, serve
from virtual_node import cli

Answer = Callable[[web.Request], web.StreamResponse | Awaitable[web.StreamResponse]]
Objects = Mapping[str, list[dict[str, Any]]]
"""Path of a collection → its objects."""
NODES = "/api/v1/nodes"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
PODS = "/api/v1/pods"
SHOP = "/api/v1/namespaces/shop/pods"
EVENTS = "/api/v1/namespaces/shop/events"
DEPLOYMENTS = "/apis/apps/v1/namespaces/shop/deployments"


def kubeconfig(folder: Path, url: str) -> str:
    """Return the path of a kubeconfig for the server."""
    content = whole("prod", cluster={"server": url}, user={"token": "t"}, namespace="shop")
    return write(folder / "kubeconfig", content)


class Person:
    """A user who runs commands against one API server."""

    def __init__(self, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
        self.capsys = capsys
        self.folder = folder
        self.server: Server | None = None

    async def types(
        self,
        *words: str,
        objects: Objects | None = None,
        forbidden: tuple[str, ...] = (),
        answers: Mapping[str, Answer] | None = None,
        flags_first: bool = False,
    ) -> tuple[int, str, str]:
        """Return exit code, output and errors of a command.

        Args:
            words: the command line; ``--kubeconfig`` is added.
            objects: objects in the server.
            forbidden: shell patterns of paths that this user may not read.
            answers: paths with a response of their own.
            flags_first: ``--kubeconfig`` comes before the command's other words, not after them.
        """

        async def script(request: web.Request) -> web.StreamResponse:
            if any(fnmatch.fnmatchcase(request.path, pattern) for pattern in forbidden):
                return failure(
                    403, "Forbidden", f'"{request.path}" is forbidden: User "dev" cannot get resource'
                )
            if answers and request.path in answers:
                special = answers[request.path](request)
                return special if isinstance(special, web.StreamResponse) else await special
            return answer(request, objects or {})

        async with serve(script) as server:
            self.server = server
            place = 1 if flags_first else len(words)
            command = [*words]
            command[place:place] = ["--kubeconfig", kubeconfig(self.folder, server.url)]
            try:
                code = await asyncio.to_thread(cli.main, command)
            except SystemExit as end:
                code = int(end.code or 0)
        out, err = self.capsys.readouterr()
        return code, out, err


def _node(one: dict[str, Any]) -> str:
    return (one.get("spec") or {}).get("nodeName") or ""


def answer(request: web.Request, objects: Objects) -> web.StreamResponse:
    """Respond as an API server: with a collection, or an object of one."""
    found = objects.get(request.path)
    if found is None and request.path == PODS:
        found = [pod for path, pods in objects.items() if path == SHOP for pod in pods]
    if found is not None:
        labels = request.query.get("labelSelector", "")
        fields = dict(part.split("=") for part in request.query.get("fieldSelector", "").split(",") if part)
        items = [
            one
            for one in found
            if matching.parse_selector(labels)(one["metadata"].get("labels") or {})
            and fields.get("spec.nodeName", _node(one)) == _node(one)
            and fields.get("metadata.name", one["metadata"]["name"]) == one["metadata"]["name"]
        ]
        return reply({"kind": "List", "metadata": {}, "items": items})
    collection, _, name = request.path.rpartition("/")
    for one in objects.get(collection, ()):
        if one["metadata"]["name"] == name:
            return reply(one)
    return failure(404, "NotFound", f"{request.path} not found")
