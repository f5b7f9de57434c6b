"""The settings of evictions, from flags and the policy file."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from controller_runtime.process.flags import duration
from controller_runtime.process.settings import Positive, Setting

MOVING = "moving"
"""Title of the flags about moves."""

Count = Annotated[int, Meta(ge=0)]


class Limits(msgspec.Struct, kw_only=True):
    """Back-off and maximum of one owner's rounds of moves (``descheduler.memory.history``). Times are in seconds."""

    backoff: Annotated[float, Setting(MOVING, "--backoff D", parse=duration)] = 60.0
    """Time between an owner's first and second round; doubles every round."""
    backoff_maximum: float = 1800.0
    """Longest time between two rounds."""
    rounds: Annotated[int, Setting(MOVING, "--max-deschedules N")] = 5
    """Rounds of moves per owner, after which its pods stay. 0: no limit."""
    window: Annotated[Positive, Setting(MOVING, "--deschedule-window D", parse=duration)] = 7200.0
    """Time without a round after which an owner's rounds are forgotten."""


class EvictionOptions(msgspec.Struct, kw_only=True):
    """Which pods may be moved, and how many per pass."""

    dry_run: Annotated[bool, Setting(MOVING, "--dry-run")] = False
    """Move no pods; report planned moves in log and events."""
    local_storage: Annotated[bool, Setting(MOVING, "--evict-local-storage-pods")] = False
    """Also move pods with emptyDir or hostPath volumes."""
    system_critical: bool = False
    ignore_pvc: bool = False
    max_per_node: Annotated[Count, Setting(MOVING, "--max-pods-to-evict-per-node N")] = 0
    """Moves off a node per pass, or per minute without --descheduling-interval. 0: no limit."""
    max_per_namespace: Count = 0
    """Moves out of one namespace per pass. 0: no limit."""
    max_total: Count = 0
    """Moves per pass. 0: no limit."""
    make_before_break: Annotated[bool, Setting(MOVING, "--make-before-break")] = True
    """Evict a Ready pod of a Deployment only after its replacement is Ready."""
    wave: Annotated[int, Meta(ge=1), Setting(MOVING, "--pods-per-wave N")] = 20
    """Pods whose replacements start at the same time."""
    pass_seconds: float = 60.0
    """Length of a pass in seconds for the three maximums, also for strategies without passes of their own."""
    limits: Limits = msgspec.field(default_factory=Limits)
