"""PodLifeTime of sigs.k8s.io/descheduler as tensile-kube's policies use it: moves pods that do not start.

``maxPodLifeTimeSeconds`` is the threshold of ``Unschedulable``. Two things differ from tensile-kube on
purpose. A pod that is pulling its image is not moved (``states`` may name waiting reasons for which pods are
moved). The time begins when the lower scheduler refuses the pod, not at the pod's creation.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from controller_runtime.errors import ConfigError
from controller_runtime.process.settings import Positive
from descheduler.strategies.base import Context, Params
from descheduler.strategies.unschedulable import Unschedulable, UnschedulableParams

_STARTED = frozenset({"Running", "Succeeded", "Failed", "Unknown"})


class PodLifeTimeParams(Params, kw_only=True):
    """Parameters of ``PodLifeTime``."""

    max_pod_life_time_seconds: Positive
    states: list[str] = msgspec.field(default_factory=list)
    """v1alpha2: Pending, and reasons of waiting containers such as ImagePullBackOff."""
    pod_status_phases: list[str] = msgspec.field(default_factory=list)
    """v1alpha1: Pending."""


class PodLifeTime(Unschedulable):
    """``Unschedulable`` under the name and parameters of tensile-kube's policies."""

    name: ClassVar[str] = "PodLifeTime"
    params_type: ClassVar[type[Params]] = PodLifeTimeParams

    def __init__(self, context: Context, params: PodLifeTimeParams, *, where: str = "") -> None:
        for field, values in (("states", params.states), ("podStatusPhases", params.pod_status_phases)):
            started = sorted(_STARTED & set(values))
            if started:
                raise ConfigError(
                    f"{where}.{field}: {started[0]}: pods that have started are not moved by age; write Pending"
                )
        super().__init__(
            context,
            UnschedulableParams(
                namespaces=params.namespaces,
                label_selector=params.label_selector,
                priority_threshold=params.priority_threshold,
                threshold_seconds=params.max_pod_life_time_seconds,
                waiting_reasons=[state for state in params.states if state != "Pending"],
            ),
            where=where,
        )
