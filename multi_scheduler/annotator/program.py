"""The declaration of ``virtual-node-annotator``, and the rights that it needs in the upper cluster."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from clusterset.model.rights import VIRTUAL_NODE
from controller_runtime.leaderelection import Election
from controller_runtime.process.flags import duration
from controller_runtime.process.program import Program
from controller_runtime.process.settings import PROCESS, Positive, Setting
from controller_runtime.rights import Right, leader_election
from multi_scheduler.config import ProcessSettings

_ANNOTATIONS = "annotations"


class AnnotatorSettings(ProcessSettings, kw_only=True):
    """The flags of the annotator."""

    lower_nodes: Annotated[bool, Setting(_ANNOTATIONS, "--lower-nodes")] = False
    """Annotate lower nodes, too; needs the right patch on nodes in lower clusters."""
    interval: Annotated[Positive, Setting(_ANNOTATIONS, "--interval D", parse=duration)] = 60.0
    """Time between two comparisons of all nodes."""
    refresh: Annotated[Positive, Setting(_ANNOTATIONS, "--refresh D", parse=duration)] = 300.0
    """Time after which unchanged values are written again, so that readers can judge their age."""
    threshold: Annotated[float, Meta(ge=0, le=100), Setting(_ANNOTATIONS, "--threshold PERCENT")] = 5.0
    """Change of a value, in percent of the written one, that is written before --refresh."""
    namespace: Annotated[str, Setting(PROCESS, "--namespace NS", "POD_NAMESPACE")] = "kube-system"
    """Namespace of the Lease."""
    election: Election = msgspec.field(default_factory=Election)

    def check(self) -> None:
        """Read the configuration, and check the settings together, see ``ProgramSettings.check``."""
        super().check()
        self.election.check()


PROGRAM = Program(
    name="virtual-node-annotator",
    about="Writes the usage and the free resources of lower nodes as annotations to virtual nodes, and to lower nodes if "
    "it may. The keys are those of kube-safe-scheduler's annotators.",
    settings=AnnotatorSettings,
    run="multi_scheduler.annotator.app:run",
    rights="multi_scheduler.annotator.program",
    examples=[
        ("Annotate virtual nodes", "--kubeconfig upper.yaml --config clusters.yaml"),
        ("Annotate lower nodes, too", "--kubeconfig upper.yaml --config clusters.yaml --lower-nodes"),
    ],
)

UPPER: tuple[Right, ...] = (
    Right("", "nodes", ("list", "watch"), "map virtual nodes to lower clusters"),
    Right("", "nodes", ("patch",), "annotations of usage", "", "", (VIRTUAL_NODE,)),
    *leader_election(PROGRAM.name, "only one of several replicas writes"),
)

LOWER_ANNOTATE: tuple[Right, ...] = (Right("", "nodes", ("patch",), "annotations of usage (--lower-nodes)"),)
"""Added to the multi-scheduler's `LOWER` with `--lower-nodes`. No command or chart grants this right."""
