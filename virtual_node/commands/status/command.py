"""``virtual-node status``: prints a line for every virtual node of an upper cluster."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from clusterset.model import names
from controller_runtime import resources
from controller_runtime.apimachinery.readable import count, guess
from controller_runtime.errors import ConfigError
from controller_runtime.objects import Object
from controller_runtime.process import terminal
from virtual_node.commands.common import connect, output
from virtual_node.commands.parsers import status as parser
from virtual_node.commands.status import rows
from virtual_node.config import program
from virtual_node.examine.components import failing
from virtual_node.examine.engine import of_all_pods
from virtual_node.examine.facts import BOUND, COMPONENTS, LEASES, NODES, SWARMS, WAITING, WORDS
from virtual_node.examine.finding import UPPER, Finding
from virtual_node.examine.health import Health
from virtual_node.examine.health import health as health_of
from virtual_node.examine.objects import cluster_of, key
from virtual_node.examine.reader import VIRTUAL_NODES, Need, Reader, server_clock
from virtual_node.examine.snapshot import Snapshot, View
from virtual_node.examine.source import Source

if TYPE_CHECKING:
    from controller_runtime.client.client import Client

_EXPLAINED = 5
"""Maximum number of faults that are printed; ``doctor`` prints the others."""
_LEASES_RIGHT = Need("list", resources.LEASES, namespace=names.NODE_LEASES)


def main(argv: Sequence[str]) -> int:
    """Run the command; return 0 when every virtual node is Ready and there is no error, otherwise 1.

    Also returns 1 if there are no virtual nodes.

    Raises:
        ConfigError: listing nodes is forbidden, or a named node does not exist; exit code 2.
    """
    options = parser().parse_args(argv)
    if options.watch and options.output in output.DATA:
        raise ConfigError("--watch: shows tables and names; leave -o json and -o yaml to kubectl get --watch")
    nodes, health = asyncio.run(_run(options))
    is_ready = nodes and all(node["ready"] == "True" for node in nodes)
    return 0 if is_ready and not health.is_broken else 1


async def _run(options: argparse.Namespace) -> tuple[list[dict[str, Any]], Health]:
    agent = "virtual-node-status"
    if not options.watch:
        async with connect.upper_briefly(options, agent=agent) as brief:
            return await _print_once(Reader(brief), options)
    async with connect.upper(options, agent=agent) as client:
        reader = Reader(client)
        nodes, health = await _print_once(reader, options)
        await _watch(client, nodes, reader, options)
    return nodes, health


async def _print_once(reader: Reader, options: argparse.Namespace) -> tuple[list[dict[str, Any]], Health]:
    nodes, health, now = await _gather(reader, options)
    _show(nodes, reader, options, health=health, now=now)
    return nodes, health


async def _watch(
    client: Client, nodes: list[dict[str, Any]], reader: Reader, options: argparse.Namespace
) -> None:
    """Print changed nodes until interrupted."""
    # Only --watch needs informers and the log.
    from controller_runtime import log  # noqa: PLC0415
    from virtual_node.commands.status.watch import StatusWatch  # noqa: PLC0415

    log.configure("error", "console")
    above = list(nodes)

    def show(changed: Sequence[dict[str, Any]]) -> None:
        _show(changed, reader, options, above=above)
        above.extend(changed)

    await StatusWatch(
        client,
        selector=",".join(filter(None, (VIRTUAL_NODES, options.selector))),
        names=options.names,
        before=nodes,
        pods_seen=Need("list", resources.PODS) not in reader.missing,
        leases_seen=_LEASES_RIGHT not in reader.missing,
        lag_of=lambda node: rows.lag(reader, node),
        show=show,
    ).run()


def _show(
    nodes: Sequence[dict[str, Any]],
    reader: Reader,
    options: argparse.Namespace,
    *,
    above: Sequence[dict[str, Any]] = (),
    health: Health | None = None,
    now: datetime | None = None,
) -> None:
    """Print nodes and faults, or changed nodes aligned with rows printed earlier (``above``)."""
    if options.output in output.DATA:
        verdict = health.data() if health is not None else None
        output.data({"nodes": nodes, "health": verdict, "missingRights": reader.rights()}, options.output)
        return
    if options.output == "name":
        for node in nodes:
            terminal.line(f"node/{node['name']}")
        return
    wide = options.output == "wide"
    leases_seen = _LEASES_RIGHT not in reader.missing
    lines, lines_above = (
        [rows.line(node, wide=wide, leases_seen=leases_seen) for node in some] for some in (nodes, above)
    )
    output.table(
        (*rows.COLUMNS, *rows.WIDE) if wide else rows.COLUMNS,
        lines,
        above=lines_above,
        empty=f"There are no virtual nodes (label {VIRTUAL_NODES}) in this cluster; {program.name('doctor')} says why.",
        headers=not above and not options.no_headers,
        spare=() if wide else rows.SPARE,
    )
    if health is not None and now is not None:
        output.note(reader.note())
        for fault in health.faults[:_EXPLAINED]:
            output.note(f"{fault.severity.value}: {fault.text(now)} ({fault.next_step})")
        if more := len(health.faults) - _EXPLAINED:
            output.note(f"and {count(more, 'more fault')}: {program.name('doctor')}" if more > 0 else "")


async def _gather(
    reader: Reader, options: argparse.Namespace
) -> tuple[list[dict[str, Any]], Health, datetime]:
    """Return the described nodes, the health, and the time by the API server's clock."""
    view = View(UPPER)
    # Nothing of this needs the names of the virtual nodes.
    early = asyncio.gather(
        server_clock(reader.client), Source(view, reader).load((LEASES, WAITING, COMPONENTS, SWARMS))
    )
    try:
        nodes = _named(await reader.virtual_nodes(options.selector), options.names)
    except BaseException:
        early.cancel()
        await asyncio.gather(early, return_exceptions=True)
        raise
    now, _ = await early
    leases = view.get(LEASES) or {}
    found = await rows.read(reader, nodes, leases)
    described = [
        rows.describe(node.to_dict(), pods, leases.get(node.name), now=now)
        for node, pods in zip(nodes, found, strict=True)
    ]
    known = [pods for pods in found if pods is not None]
    view.put(NODES, [node.to_dict() for node in nodes])
    if len(known) == len(nodes):
        view.put(BOUND, ())
    of_bound = [each for pods in known for each in pods.findings or ()]
    health = await judge(reader, Snapshot(now, upper=view), of_bound)
    health = _about(nodes, health) if options.names or options.selector else health
    return described, health, now


async def judge(reader: Reader, snapshot: Snapshot, of_bound: Sequence[Finding]) -> Health:
    """Return the health of an installation, with log lines or events that explain failing components.

    ``of_bound`` are the findings about pods on the virtual nodes, which are examined already.
    """
    components = failing(snapshot.upper.get(COMPONENTS) or (), snapshot.now)
    words = {key(pod): (await reader.last_words(pod) or [""])[-1] for pod in components}
    snapshot.upper.put(WORDS, words)
    return health_of(snapshot, of_pods=[*of_all_pods(snapshot), *of_bound])


def _about(nodes: Sequence[Object], health: Health) -> Health:
    """Return the health with only the faults of these nodes and of their lower clusters."""
    names = {node.name for node in nodes}
    clusters = {cluster_of(node.to_dict()) for node in nodes}
    return replace(
        health,
        faults=[
            each
            for each in health.faults
            if each.node in names or (not each.node and each.cluster in clusters)
        ],
    )


def _named(nodes: list[Object], wanted: Sequence[str]) -> list[Object]:
    existing = {node.name for node in nodes}
    for name in wanted:
        if name not in existing:
            hint = guess(name, existing) or f"; there are {', '.join(sorted(existing)) or 'none'}"
            raise ConfigError(f"there is no virtual node {name!r}{hint}")
    return [node for node in nodes if not wanted or node.name in wanted]
