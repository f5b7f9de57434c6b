"""``virtual-node cordon`` and ``uncordon``: keep new pods off virtual nodes, or let the nodes take pods again.

Running pods stay. ``drain`` finds and changes virtual nodes by the functions here.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from clusterset.model import names
from controller_runtime import resources
from controller_runtime.apimachinery.readable import guess
from controller_runtime.client.client import Client
from controller_runtime.errors import ConfigError, Forbidden
from controller_runtime.objects import Object
from controller_runtime.process import terminal
from virtual_node.commands import parsers
from virtual_node.commands.common import connect
from virtual_node.examine.reader import Reader, refusal


def main(argv: Sequence[str]) -> int:
    """Cordon the nodes and return 0."""
    asyncio.run(change_all(parsers.cordon().parse_args(argv), unschedulable=True, annotations={}))
    return 0


def uncordon(argv: Sequence[str]) -> int:
    """Uncordon the nodes, cancel their drain, and return 0."""
    removed = {names.ANNOTATION_DRAIN: None, names.ANNOTATION_DRAIN_STATUS: None}
    asyncio.run(change_all(parsers.uncordon().parse_args(argv), unschedulable=False, annotations=removed))
    return 0


async def find(reader: Reader, targets: Sequence[str]) -> list[Object]:
    """Return the virtual nodes with these names, and those of lower clusters with these names; sorted by name.

    Raises:
        ConfigError: a name belongs to no virtual node and no lower cluster, or listing nodes is forbidden.
    """
    known: dict[str, list[Object]] = {}
    for node in await reader.virtual_nodes():
        for name in {node.name, node.labels.get(names.LABEL_LOWER_CLUSTER) or node.name}:
            known.setdefault(name, []).append(node)
    for target in targets:
        if target not in known:
            hint = guess(target, sorted(known)) or f"; there are {', '.join(sorted(known)) or 'none'}"
            raise ConfigError(f"there is no lower cluster and no virtual node {target!r}{hint}")
    found = {node.name: node for target in targets for node in known[target]}
    return [found[name] for name in sorted(found)]


async def change_all(
    options: argparse.Namespace, *, unschedulable: bool, annotations: Mapping[str, Any]
) -> None:
    """Change the virtual nodes of ``options.targets`` as ``change`` does, and print a line for each.

    Raises:
        ConfigError, ApiError: as ``find`` and ``change``.
    """
    verb = "cordon" if unschedulable else "uncordon"
    async with connect.upper(options, agent=f"virtual-node-{verb}") as client:
        for node in await find(Reader(client), options.targets):
            await change(client, node.name, unschedulable=unschedulable, annotations=annotations)
            terminal.line(f"node/{node.name} {verb}ed")


async def change(client: Client, node: str, *, unschedulable: bool, annotations: Mapping[str, Any]) -> None:
    """Cordon or uncordon a node, and set or remove (None) annotations.

    Raises:
        ConfigError: patching nodes is forbidden.
        ApiError: the request failed.
    """
    patch: dict[str, Any] = {"spec": {"unschedulable": unschedulable or None}}
    if annotations:
        patch["metadata"] = {"annotations": dict(annotations)}
    try:
        await client.patch(resources.NODES, node, patch)
    except Forbidden:
        raise refusal("patch", resources.NODES) from None
