"""What a strategy is: something that runs beside the others and asks the mover to move pods.

To add one: a module with a ``Strategy`` subclass, registered under the entry-point group
``virtual_node.descheduler``. Its parameters are a msgspec struct; the policy file's are checked against it. One that
is not periodic tells ``mover.waiting`` which of the pods it has asked for need not be moved any more.
"""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar

import msgspec

from controller_runtime import log
from controller_runtime.api import matching
from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError, ConfigError
from controller_runtime.objects import Object
from controller_runtime.util.backoff import ExponentialBackoff
from controller_runtime.workqueue.controller import Controller, Result
from controller_runtime.workqueue.queue import WorkQueue
from descheduler.config import fields
from descheduler.memory.store import Memory
from descheduler.moving.mover import Mover
from descheduler.moving.unfreeze import Releaser
from descheduler.view.cluster import ClusterView

_SYSTEM_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
_RETRY = 10.0


Positive = Annotated[float, msgspec.Meta(gt=0)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]


class Struct(msgspec.Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """Base of everything read from a policy file."""


class Namespaces(Struct):
    """Which namespaces a strategy looks at."""

    include: list[str] = msgspec.field(default_factory=list)
    exclude: list[str] = msgspec.field(default_factory=list)


class PriorityThreshold(Struct):
    """Pods of this priority or a higher one stay."""

    value: int | None = None
    name: str = ""


class Params(Struct):
    """What every strategy's parameters have: which pods it is about."""

    namespaces: Namespaces = msgspec.field(default_factory=Namespaces)
    label_selector: dict[str, Any] = msgspec.field(default_factory=dict)
    priority_threshold: PriorityThreshold = msgspec.field(default_factory=PriorityThreshold)


@dataclass(frozen=True, slots=True)
class Context:
    """What strategies work with."""

    client: Client
    view: ClusterView
    mover: Mover
    memory: Memory
    releaser: Releaser
    interval: float
    """Seconds between two passes of periodic strategies; 0: one pass."""
    now: Callable[[], datetime] = lambda: datetime.now(UTC)


def pod_matcher(params: Params, where: str) -> matching.Matcher:
    """Return whether labels are those of pods that a strategy is about.

    Raises:
        ConfigError: the selector is wrong. A misspelt field would select all pods.
    """
    try:
        fields.only(params.label_selector, {"matchLabels", "matchExpressions"}, f"{where}.labelSelector")
        return matching.compile_selector(params.label_selector)
    except ValueError as error:
        raise ConfigError(f"{where}.labelSelector: {error}") from None


class Strategy(abc.ABC):
    """One strategy, running while its process leads."""

    name: ClassVar[str]
    """In policy files, logs and metrics."""
    aliases: ClassVar[tuple[str, ...]] = ()
    """Other names for it in policy files."""
    params_type: ClassVar[type[Params]] = Params

    def __init__(self, context: Context, params: Any, *, where: str = "") -> None:
        """Set up.

        Args:
            context: what to work with.
            params: of ``params_type``.
            where: the field that holds them, for errors.

        Raises:
            ConfigError: a parameter makes no sense; names the field.
        """
        self.context = context
        self.params = params
        self.log = log.get_logger(component="strategy", strategy=self.name)
        self._matches = pod_matcher(params, where)
        self._priority = _threshold(params.priority_threshold, where)

    @abc.abstractmethod
    async def run(self) -> None:
        """Work until cancelled; a periodic strategy without an interval ends after its pass."""

    def concerns(self, pod: Object) -> bool:
        """Whether the pod is one of those that the parameters select."""
        wanted = self.params.namespaces
        if wanted.include and pod.namespace not in wanted.include:
            return False
        if pod.namespace in wanted.exclude or not self._matches(pod.labels):
            return False
        if self._priority is None:
            return True
        return ((pod.spec or {}).get("priority") or 0) < self._priority


class PeriodicStrategy(Strategy):
    """A strategy that looks at everything now and then, because no single event calls for it."""

    async def run(self) -> None:
        """Pass, sleep, pass."""
        while True:
            try:
                with self.context.mover.waiting.one_pass(self.name, last=not self.context.interval):
                    await self.work_through()
            except ApiError as error:
                self.log.warning("pass not finished", error=str(error))
                if not self.context.interval:
                    await asyncio.sleep(_RETRY)
                    continue
            if not self.context.interval:
                return
            await asyncio.sleep(self.context.interval)

    @abc.abstractmethod
    async def work_through(self) -> None:
        """One pass."""


def pod_controller(
    name: str, reconcile: Callable[[str], Awaitable[Result | None]], *, workers: int, longest_backoff: float
) -> Controller[str]:
    """Return a controller of pods (namespace/name) in which namespaces take turns.

    Args:
        name: in logs and metrics.
        reconcile: moves a pod, or leaves it.
        workers: pods at the same time; no namespace holds all of them.
        longest_backoff: seconds that a pod whose move fails again and again waits.
    """
    queue: WorkQueue[str] = WorkQueue(
        name,
        rate_limiter=ExponentialBackoff(0.5, longest_backoff),
        flow=lambda key: key.partition("/")[0],
        workers=workers,
    )
    return Controller(name, reconcile, workers=workers, queue=queue)


def _threshold(threshold: PriorityThreshold, where: str) -> int | None:
    if threshold.value is not None:
        return threshold.value
    if not threshold.name:
        return None
    try:
        return _SYSTEM_PRIORITIES[threshold.name]
    except KeyError:
        raise ConfigError(
            f"{where}.priorityThreshold.name: {threshold.name!r} is looked up nowhere; write its value instead"
        ) from None
