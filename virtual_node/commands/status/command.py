"""``virtual-node status``: prints a line for every virtual node of an upper cluster."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from clusterset.model import names
from controller_runtime import resources
from controller_runtime.apimachinery.readable import count, guess
from controller_runtime.errors import ConfigError, Forbidden
from controller_runtime.objects import Object
from controller_runtime.process import terminal
from controller_runtime.process.argparser import Parser
from controller_runtime.process.flags import add_flag, add_switch
from virtual_node.commands.common import connect, installation, output
from virtual_node.commands.status import rows
from virtual_node.commands.status.rows import PodFields
from virtual_node.config import program
from virtual_node.examine import probes
from virtual_node.examine.health import Health
from virtual_node.examine.objects import cluster_of
from virtual_node.examine.reader import NODE_LEASES, VIRTUAL_NODES, Need, Reader

_EXPLAINED = 5
"""Maximum number of faults that are printed; ``doctor`` prints the others."""
_LEASES_RIGHT = Need("list", resources.LEASES, namespace=NODE_LEASES)
_REFUSED = "cannot get resource"
"""Part of the error if the API server refuses the caller; other 403 errors come from the virtual node."""


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
    async with connect.upper(options, agent="virtual-node-status") as client:
        reader = Reader(client)
        nodes, health, now = await _gather(reader, options)
        _show(nodes, reader, options, health=health, now=now)
        if options.watch:
            await _watch(nodes, reader, options)
    return nodes, health


async def _watch(nodes: list[dict[str, Any]], reader: Reader, options: argparse.Namespace) -> None:
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
        reader.client,
        selector=_selector(options),
        names=options.names,
        before=nodes,
        pods_seen=Need("list", resources.PODS) not in reader.missing,
        leases_seen=_LEASES_RIGHT not in reader.missing,
        lag_of=lambda node: _lag(reader, node),
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
    nodes = _named(await reader.virtual_nodes(options.selector), options.names)
    leases, now, _, *pods = await asyncio.gather(
        reader.all(resources.LEASES, namespace=NODE_LEASES),
        probes.clock(reader.client),
        installation.prefetch(reader),
        *(
            reader.fields(resources.PODS, PodFields, field_selector=f"spec.nodeName={node.name}")
            for node in nodes
        ),
    )
    # Metrics are read after the lists, which could delay them beyond their short timeout.
    lags = await asyncio.gather(*(_lag(reader, node) for node in nodes))
    by_name = {lease.name: lease.to_dict() for lease in leases or ()}
    described = [
        {**rows.describe(node.to_dict(), bound, by_name.get(node.name), now=now), "lag": behind}
        for node, bound, behind in zip(nodes, pods, lags, strict=True)
    ]
    health = await installation.judge(
        reader,
        nodes=[node.to_dict() for node in nodes],
        bound=None if None in pods else [pod for bound in pods for pod in bound or ()],
        leases=None if leases is None else by_name,
        now=now,
    )
    health = _about(nodes, health) if options.names or options.selector else health
    return described, health, now


def _about(nodes: Sequence[Object], health: Health) -> Health:
    """Return the health with only the faults of these nodes and of their lower clusters."""
    names = {node.name for node in nodes}
    clusters = {cluster_of(node.to_dict()) for node in nodes}
    return replace(
        health,
        faults=[
            one for one in health.faults if one.node in names or (not one.node and one.cluster in clusters)
        ],
    )


def _selector(options: argparse.Namespace) -> str:
    return ",".join(filter(None, (VIRTUAL_NODES, options.selector)))


def _named(nodes: list[Object], wanted: Sequence[str]) -> list[Object]:
    existing = {node.name for node in nodes}
    for name in wanted:
        if name not in existing:
            hint = guess(name, existing) or f"; there are {', '.join(sorted(existing)) or 'none'}"
            raise ConfigError(f"there is no virtual node {name!r}{hint}")
    return [node for node in nodes if not wanted or node.name in wanted]


async def _lag(reader: Reader, node: Object) -> rows.Lag | None:
    try:
        return await rows.lag_of_node(reader.client, node)
    except Forbidden as error:
        if _REFUSED in error.message:
            reader.missing[Need("get", resources.NODES, subresource="proxy")] = None
        return None


def parser() -> Parser:
    """Return the command's parser."""
    own = Parser(
        program.name(),
        "status",
        about="List the virtual nodes of an upper cluster: Ready, lower cluster and its version, pods "
        "running and in trouble, their requests, mirror lag and last heartbeat.",
        examples=(
            ("Every virtual node", "status"),
            ("With the virtual node's own version, address, taints and last error", "status -o wide"),
            (
                "The virtual nodes of one lower cluster, for a script",
                f"status -l {names.LABEL_LOWER_CLUSTER}=tokyo -o name",
            ),
            ("One virtual node, as JSON", "status vn-tokyo -o json"),
            ("During an upgrade", "status --watch"),
        ),
        exit_codes="0 every virtual node is Ready and no error is found, 1 otherwise or if there is none, 2 "
        "the virtual nodes could not be read",
        notes="What you may not see is shown as '?', and the missing rights are named; that does not change the exit "
        "code. TROUBLE counts pods that do not run and are not starting.",
    )
    own.add_argument("names", nargs="*", metavar="NODE", help="only these virtual nodes")
    connect.add_flags(own)
    add_flag(own, "-l --selector LABELS", "only virtual nodes with these labels")
    output.add_flags(own, "table", "wide", *output.DATA, "name")
    add_switch(own, "-w --watch", "keep running, and print a line for each virtual node that changes")
    return own
