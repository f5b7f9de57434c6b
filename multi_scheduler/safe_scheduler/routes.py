"""The paths of kube-safe-scheduler, for schedulers that are configured for it, and a path for each of this process' agents."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from controller_runtime.process.version import version
from multi_scheduler.directory import NodeDirectory
from multi_scheduler.extender import protocol
from multi_scheduler.extender.extender import Extender
from multi_scheduler.extender.server import Decide, ExtenderServer
from multi_scheduler.safe_scheduler.scheduler import Predicate, Priority, SafeScheduler

PREFIX = "/scheduler"
NO_BIND = "Extender doesn't support Bind: make 'BindVerb' be empty in your ExtenderConfig"


def add_routes(
    server: ExtenderServer,
    scheduler: SafeScheduler,
    agents: Mapping[str, Extender],
    directory: NodeDirectory,
    *,
    bind: Decide | None,
) -> None:
    """Serve ``/version`` and all paths under ``/scheduler``.

    Args:
        server: the server that gets the routes.
        scheduler: agents of kube-safe-scheduler.
        agents: the multi-scheduler's agents, each in its own extender.
        directory: finds Nodes for calls with names, and rejects unknown virtual nodes.
        bind: binds a pod; None: bind calls get an error, as in kube-safe-scheduler.
    """
    server.add_route("GET", "/version", _version)
    predicates: dict[str, Decide] = {name: partial(server.filter_by, one) for name, one in agents.items()}
    priorities: dict[str, Decide] = {name: partial(server.prioritize_by, one) for name, one in agents.items()}
    for name, predicate in scheduler.predicates().items():
        predicates[name] = partial(_filter, server, predicate, directory)
    for name, priority in scheduler.priorities().items():
        priorities[name] = partial(_prioritize, priority, directory)
    for verb, kind, decides in (
        ("filter", "predicates", predicates),
        ("prioritize", "priorities", priorities),
    ):
        for name, decide in decides.items():
            _add(server, f"{PREFIX}/{kind}/{name}", server.handler(verb, decide))
    _add(server, f"{PREFIX}/preemption", server.handler("preempt", None))
    _add(server, f"{PREFIX}/bind", server.handler("bind", bind or _no_bind))


def _add(server: ExtenderServer, path: str, handler: Handler) -> None:
    server.add_route("POST", path, handler)
    server.add_route("POST", f"{path}/", partial(_without_slash, path))


async def _version(_request: web.Request) -> web.Response:
    return web.Response(text=version())


async def _without_slash(path: str, _request: web.Request) -> web.Response:
    return web.Response(status=307, headers={"Location": path})


async def _no_bind(_body: bytes) -> bytes:
    return protocol.binding_result(NO_BIND)


async def _filter(
    server: ExtenderServer, predicate: Predicate, directory: NodeDirectory, body: bytes
) -> bytes:
    asked = protocol.candidates(body)
    nodes = _nodes(asked, directory)
    refused = {name: why for name in asked.names if (why := directory.refusal(name, nodes.get(name)))}
    failed = predicate(asked.pod, {name: node for name, node in nodes.items() if name not in refused})
    passing = [name for name in asked.names if name not in failed and name not in refused]
    server.filtered(asked)
    return protocol.filter_result(asked, passing, failed, refused)


async def _prioritize(priority: Priority, directory: NodeDirectory, body: bytes) -> bytes:
    asked = protocol.candidates(body)
    points = priority(asked.pod, _nodes(asked, directory))
    return msgspec.json.encode([{"Host": name, "Score": points.get(name, 0)} for name in asked.names])


def _nodes(asked: protocol.Candidates, directory: NodeDirectory) -> dict[str, Mapping[str, Any]]:
    found = asked.nodes if asked.nodes is not None else {name: directory.node(name) for name in asked.names}
    return {name: node for name, node in found.items() if node is not None}
