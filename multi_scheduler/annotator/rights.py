"""The rights that the annotator needs in the upper cluster. Lower clusters: see ``multi_scheduler/rights.py``."""

from __future__ import annotations

from clusterset.model.rights import VIRTUAL_NODE
from controller_runtime.rights import Right, leader_election
from multi_scheduler.annotator.program import PROGRAM

UPPER: tuple[Right, ...] = (
    Right("", "nodes", ("list", "watch"), "map virtual nodes to lower clusters"),
    Right("", "nodes", ("patch",), "annotations of usage", "", "", (VIRTUAL_NODE,)),
    *leader_election(PROGRAM.name, "only one of several replicas writes"),
)

LOWER_ANNOTATE: tuple[Right, ...] = (Right("", "nodes", ("patch",), "annotations of usage (--lower-nodes)"),)
"""Added to the multi-scheduler's `LOWER` with `--lower-nodes`. No command or chart grants this right."""
