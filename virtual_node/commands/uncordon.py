"""``virtual-node uncordon``: lets virtual nodes take pods again, and cancels their drain."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from clusterset.model import names
from controller_runtime.process.argparser import Parser
from virtual_node.commands import cordon
from virtual_node.commands.common import connect
from virtual_node.config import program


def main(argv: Sequence[str]) -> int:
    """Uncordon the nodes, cancel their drain, and return 0."""
    removed = {names.ANNOTATION_DRAIN: None, names.ANNOTATION_DRAIN_STATUS: None}
    asyncio.run(cordon.change_all(parser().parse_args(argv), unschedulable=False, annotations=removed))
    return 0


def parser() -> Parser:
    """Return the command's parser."""
    own = Parser(
        program.name(),
        "uncordon",
        about="Let the virtual nodes of a lower cluster take new pods again, and cancel their drain. A pod "
        "whose replacement is not Ready yet stays. Moved pods do not return.",
        examples=(("After the maintenance of a lower cluster", "uncordon tokyo"),),
        exit_codes="0 uncordoned, 2 there is no such virtual node, or a right is missing",
    )
    cordon.add_target(own)
    connect.add_flags(own)
    return own
