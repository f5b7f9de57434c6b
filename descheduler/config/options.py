"""The process's options: command line and policy file combined."""

from __future__ import annotations

from dataclasses import dataclass, field

from clusterset.model import names
from controller_runtime.leaderelection.flags import ControllerOptions
from descheduler.config.policy import StrategyConfig

DEFAULT_NODE_SELECTOR = f"{names.LABEL_NODE_TYPE}={names.NODE_TYPE_VIRTUAL}"


@dataclass(frozen=True, slots=True)
class Limits:
    """Back-off and maximum of one owner's rounds of moves (``descheduler.memory.history``). Times are in seconds."""

    backoff: float = 60.0
    """Time between the first and the second round; doubles with every round."""
    backoff_maximum: float = 1800.0
    """Longest time between two rounds."""
    rounds: int = 5
    """Rounds within a window after which the owner's pods are no longer moved; 0: no maximum."""
    window: float = 7200.0
    """Time without a round after which the owner's rounds are forgotten."""


@dataclass(frozen=True, slots=True)
class EvictionOptions:
    """Which pods may be moved, and how many per pass."""

    dry_run: bool = False
    local_storage: bool = False
    system_critical: bool = False
    ignore_pvc: bool = False
    max_per_node: int = 0
    """Moves off one virtual node per pass; 0: no limit."""
    max_per_namespace: int = 0
    """Moves out of one namespace per pass; 0: no limit."""
    max_total: int = 0
    """Moves per pass; 0: no limit."""
    make_before_break: bool = True
    """Whether the replacement of a Ready pod starts before the pod is evicted."""
    wave: int = 20
    """Maximum number of pods whose replacements start at the same time."""
    pass_seconds: float = 60.0
    """Length of a pass in seconds for the three maximums, also for strategies without passes of their own."""
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(ControllerOptions):
    """Parsed command line and policy file."""

    strategies: tuple[StrategyConfig, ...] = ()
    eviction: EvictionOptions = field(default_factory=EvictionOptions)
    node_selector: str = ""
    """Label selector of the virtual nodes to deschedule from; empty: all."""
    interval: float = 0.0
    """Seconds between two passes of the periodic strategies; 0: only one pass, at start."""
    freeze_namespace: str = "kube-system"
    freeze_period: float = 300.0
    warnings: tuple[str, ...] = ()
