"""Moves a few pods off clusters under pressure, by an annotation that the multi-scheduler writes.

``virtual-node.io/pressure`` is the mean load of a virtual node's lower nodes, 0 to 1, by the formula of the
multi-scheduler's ``pressure`` agent. If it is missing or too old, no pods are moved off or to the virtual node. Bare
pods stay, because they would lose their running work.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import msgspec

from clusterset.model import names
from controller_runtime.apimachinery import timestamps
from controller_runtime.objects import Object
from controller_runtime.process.settings import Positive
from descheduler.moving.move_reports import Move
from descheduler.pods import least_important_first
from descheduler.strategies.base import Params, PeriodicStrategy

Share = Annotated[float, msgspec.Meta(gt=0, le=1)]


class PressureParams(Params):
    """Parameters of ``Pressure``."""

    threshold: Share = 0.7
    """Load from which pods are moved off a virtual node."""
    margin: Share = 0.2
    """The load of the virtual node that receives pods must be lower by at least this."""
    pods_per_pass: Annotated[int, msgspec.Meta(ge=1)] = 2
    """Maximum number of pods moved off a virtual node per pass, because the load falls with a delay."""
    max_age_seconds: Positive = 600.0
    """Age after which the annotation is ignored."""


class Pressure(PeriodicStrategy):
    """Moves pods off clusters in which pods wait for CPU, memory or IO."""

    name: ClassVar[str] = "Pressure"
    params_type: ClassVar[type[Params]] = PressureParams

    async def work_through(self) -> None:
        """Make one pass, highest load first."""
        view = self.context.view
        now = self.context.mover.now().timestamp()
        found = {node.name: load_of(node, now, self.params.max_age_seconds) for node in view.open_nodes()}
        loads = {name: load for name, load in found.items() if load is not None}
        for name, load in sorted(loads.items(), key=lambda entry: -entry[1]):
            if load >= self.params.threshold:
                await self._relieve(name, loads)

    async def _relieve(self, name: str, loads: Mapping[str, float]) -> None:
        moved = 0
        candidates = [pod for pod in self.context.view.pods_on(name) if self.is_candidate(pod)]
        for pod in least_important_first(candidates):
            takers = [
                node.name
                for node in self.context.view.alternatives(pod)
                if loads.get(node.name, 1.0) <= loads[name] - self.params.margin
            ]
            if not takers:
                continue
            taker = min(takers, key=lambda other: (loads[other], other))
            why = f"{name} is under pressure ({loads[name]:.0%}), {taker} is not ({loads[taker]:.0%})"
            outcome = await self.try_move(pod, Move(strategy=self.name, reason=why))
            moved += bool(outcome.moved)
            if moved >= self.params.pods_per_pass:
                return


def load_of(node: Object, now: float, max_age: float) -> float | None:
    """Return a virtual node's load; None if the annotation is missing, invalid or older than ``max_age`` seconds.

    So is an annotation from the future: the writer's clock is wrong, so the age is unknown.
    """
    annotations = node.annotations
    try:
        load = float(annotations.get(names.ANNOTATION_PRESSURE, ""))
        written = timestamps.parse(annotations.get(names.ANNOTATION_USAGE_AT, "")).timestamp()
    except ValueError:
        return None
    return load if 0 <= load <= 1 and abs(now - written) <= max_age else None
