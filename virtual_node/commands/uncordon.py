"""``virtual-node uncordon``: lets virtual nodes take pods again, and cancels their drain."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from clusterset.model import names
from virtual_node.commands import cordon
from virtual_node.commands.parsers import uncordon as parser


def main(argv: Sequence[str]) -> int:
    """Uncordon the nodes, cancel their drain, and return 0."""
    removed = {names.ANNOTATION_DRAIN: None, names.ANNOTATION_DRAIN_STATUS: None}
    asyncio.run(cordon.change_all(parser().parse_args(argv), unschedulable=False, annotations=removed))
    return 0
