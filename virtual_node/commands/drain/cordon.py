"""``virtual-node cordon``: keeps new pods off virtual nodes. Their pods stay."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence

from controller_runtime.process.argparser import Parser
from virtual_node.commands.common import connect
from virtual_node.commands.common.reader import Reader
from virtual_node.commands.drain import nodes
from virtual_node.config import program


def main(argv: Sequence[str]) -> int:
    """Cordon the nodes and return 0."""
    asyncio.run(_run(parser().parse_args(argv)))
    return 0


async def _run(options: argparse.Namespace) -> None:
    async with connect.upper(options, agent="virtual-node-cordon") as client:
        for node in await nodes.find(Reader(client), options.targets):
            await nodes.change(client, node.name, unschedulable=True, annotations={})
            print(f"node/{node.name} cordoned")  # noqa: T201 - the answer


def parser() -> Parser:
    """Return the command's parser."""
    own = Parser(
        program.name(),
        "cordon",
        about="Keep new pods off the virtual nodes of a lower cluster. Running pods stay.",
        examples=(("All virtual nodes of a lower cluster", "cordon tokyo"),),
        exit_codes="0 cordoned, 2 there is no such virtual node, or a right is missing",
    )
    nodes.add_target(own)
    connect.add_flags(own)
    return own
