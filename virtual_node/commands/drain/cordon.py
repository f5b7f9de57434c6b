"""``virtual-node cordon``: keeps new pods off virtual nodes. Running pods stay."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from controller_runtime.process.argparser import Parser
from virtual_node.commands.common import connect
from virtual_node.commands.drain import nodes
from virtual_node.config import program


def main(argv: Sequence[str]) -> int:
    """Cordon the nodes and return 0."""
    asyncio.run(nodes.change_all(parser().parse_args(argv), unschedulable=True, annotations={}))
    return 0


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
