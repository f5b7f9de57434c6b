"""Pressure of a node: its share of pods, and how long tasks waited for CPU, memory and IO (PSI). No IO.

Sources: the kernel's ``Documentation/accounting/psi.rst``; KEP-4205; KEP-5394 for when pressure starts and ends. CPU
pressure counts only on busy nodes, because throttled containers raise it on idle nodes as well
(kubernetes/enhancements#5062).
"""

from __future__ import annotations

from dataclasses import dataclass

from clusterset.usage import Thresholds
from multi_scheduler.formulas.numbers import clamp

BUSY = 0.7
"""CPU utilization from which CPU pressure counts."""
_PODS, _CPU, _MEMORY, _IO = 0.4, 0.2, 0.25, 0.15
"""Weights of the four parts of a node's load. kubeleet, the model for this score, publishes no weights."""


@dataclass(frozen=True, slots=True)
class Stall:
    """Percent of time in which some or all tasks waited for one resource, as averages over 10 and 60 seconds."""

    some10: float = 0.0
    some60: float = 0.0
    full10: float = 0.0
    full60: float = 0.0


@dataclass(frozen=True, slots=True)
class Pressure:
    """Pressure of a node by resource."""

    cpu: Stall = Stall()
    memory: Stall = Stall()
    io: Stall = Stall()


def load(pods: float, found: Pressure, *, utilization: float | None) -> float:
    """Return a node's load from 0 to 1.

    Args:
        pods: number of pods as a share of the node's limit.
        found: pressure of the node.
        utilization: CPU utilization, 0 to 1; None: unknown, so CPU pressure does not count.
    """
    cpu = found.cpu.some10 if _is_busy(utilization) else 0.0
    memory = 0.5 * found.memory.some10 + 0.5 * found.memory.full10
    waiting = _CPU * cpu + _MEMORY * memory + _IO * found.io.some10
    return clamp(_PODS * pods + waiting / 100)


def score(pods: float, found: Pressure, *, utilization: float | None, is_pressed: bool) -> float:
    """Return 1 for an empty node without pressure, 0 for a node under pressure. Arguments as for ``load``."""
    return 0.0 if is_pressed else 1 - load(pods, found, utilization=utilization)


def is_pressed(
    found: Pressure, thresholds: Thresholds, *, utilization: float | None, was_pressed: bool = False
) -> bool:
    """Report whether a node is under pressure.

    Pressure starts when both averages of a resource reach its threshold, and ends when the longer one falls below it.
    """
    # CPU counts by ``some``, because ``full`` is always 0 for a node's CPU.
    pairs = (
        (found.cpu.some10, found.cpu.some60, thresholds.cpu, _is_busy(utilization)),
        (found.memory.full10, found.memory.full60, thresholds.memory, True),
        (found.io.full10, found.io.full60, thresholds.io, True),
    )
    return any(
        counts and long >= threshold and (was_pressed or short >= threshold)
        for short, long, threshold, counts in pairs
    )


def _is_busy(utilization: float | None) -> bool:
    return utilization is not None and utilization > BUSY
