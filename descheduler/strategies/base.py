"""Base classes of strategies. Strategies run concurrently and request moves of pods from the mover.

To add a strategy, write a module with a ``Strategy`` subclass and register it in the entry-point group
``virtual_node.descheduler``. Its parameters are a msgspec struct, against which the policy file is checked. A
strategy that is not periodic calls ``mover.waiting.settle`` for pods that no longer need a requested move.
"""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec

from controller_runtime import log
from controller_runtime.apimachinery import matching
from controller_runtime.errors import ApiError, ConfigError, ConnectionFailed
from controller_runtime.objects import Object
from controller_runtime.util.rate_limiter import ExponentialBackoff
from controller_runtime.workqueue.controller import Controller, Result
from descheduler.cluster import ClusterView
from descheduler.config import PriorityThreshold, Struct, label_matcher
from descheduler.moving.move_reports import Move, Outcome
from descheduler.moving.mover import Mover

_SYSTEM_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
_RETRY = 10.0


BY_FLAGS = "strategies without --policy-config-file"
"""Title of the flags that set parameters of strategies."""


class Namespaces(Struct):
    """Namespaces of the pods that a strategy considers."""

    include: list[str] = msgspec.field(default_factory=list)
    exclude: list[str] = msgspec.field(default_factory=list)

    def contain(self, namespace: str) -> bool:
        """Report whether the pods of a namespace are considered."""
        return namespace not in self.exclude and (not self.include or namespace in self.include)


class Params(Struct):
    """Parameters of every strategy: the pods that it considers."""

    namespaces: Namespaces = msgspec.field(default_factory=Namespaces)
    label_selector: dict[str, Any] = msgspec.field(default_factory=dict)
    priority_threshold: PriorityThreshold = msgspec.field(default_factory=PriorityThreshold)


@dataclass(frozen=True, slots=True)
class Context:
    """Objects shared by all strategies."""

    mover: Mover
    interval: float
    """Seconds between two passes of periodic strategies; 0: only one pass."""

    @property
    def view(self) -> ClusterView:
        """Return the caches."""
        return self.mover.view


def pod_matcher(params: Params, where: str) -> matching.Matcher:
    """Return a function that reports whether the parameters' label selector matches given labels.

    Raises:
        ConfigError: the selector is invalid.
    """
    return label_matcher(params.label_selector, where=f"{where}.labelSelector")


class Strategy(abc.ABC):
    """A strategy; it runs while its process is the leader."""

    name: ClassVar[str]
    """Name in policy files, logs and metrics."""
    aliases: ClassVar[tuple[str, ...]] = ()
    """Other names in policy files."""
    params_type: ClassVar[type[Params]] = Params

    def __init__(self, context: Context, params: Any, *, where: str = "") -> None:
        """Create the strategy.

        Args:
            context: shared objects.
            params: instance of ``params_type``.
            where: path of the field that holds the parameters, for errors.

        Raises:
            ConfigError: a parameter is invalid; the message names the field.
        """
        self.context = context
        self.params = params
        self.log = log.get_logger(component="strategy", strategy=self.name)
        self._matches = pod_matcher(params, where)
        self._priority = _threshold(params.priority_threshold, where)

    @abc.abstractmethod
    async def run(self) -> None:
        """Work until cancelled; a periodic strategy without an interval returns after one pass."""

    def concerns(self, pod: Object) -> bool:
        """Report whether the parameters select the pod."""
        if not self.params.namespaces.contain(pod.namespace) or not self._matches(pod.labels):
            return False
        if self._priority is None:
            return True
        return ((pod.spec or {}).get("priority") or 0) < self._priority

    async def try_move(self, pod: Object, request: Move) -> Outcome:
        """Request a move in a pass over many pods; return an error for one pod as its outcome.

        Raises:
            ConnectionFailed: the API server does not answer, so the pass cannot continue.
        """
        try:
            return await self.context.mover.move(pod, request)
        except ConnectionFailed:
            raise
        except ApiError as error:
            self.log.warning("move failed", pod=pod.key, error=str(error))
            return Outcome(why=f"a request failed: {error}", cause="request failed")
        except Exception as error:  # users can write unexpected values into pods
            self.log.exception("move failed", pod=pod.key)
            return Outcome(why=f"an internal error: {error!r}", cause="request failed")


class PeriodicStrategy(Strategy):
    """A strategy that examines all pods in every pass, because no single event triggers it."""

    async def run(self) -> None:
        """Make a pass per interval until cancelled; without an interval, return after one successful pass."""
        while True:
            try:
                with self.context.mover.waiting.one_pass(self.name, last=not self.context.interval):
                    await self.work_through()
            except ApiError as error:
                self.log.warning("pass failed", error=str(error))
                if not self.context.interval:
                    await asyncio.sleep(_RETRY)
                    continue
            except Exception:  # an error must not end the strategy
                self.log.exception("pass failed")
                if not self.context.interval:
                    raise
            if not self.context.interval:
                return
            await asyncio.sleep(self.context.interval)

    def is_candidate(self, pod: Object) -> bool:
        """Report whether the parameters select the pod, the pod has a controller, and it may be moved."""
        return (
            pod.controller is not None and self.concerns(pod) and not self.context.mover.why_not_movable(pod)
        )

    @abc.abstractmethod
    async def work_through(self) -> None:
        """Make one pass."""


class PodQueue(Controller[str]):
    """Reconciles pods (namespace/name). Namespaces take turns, so that one namespace cannot occupy all workers."""

    def __init__(
        self,
        name: str,
        reconcile: Callable[[str], Awaitable[Result | None]],
        *,
        workers: int,
        longest_backoff: float,
    ) -> None:
        super().__init__(
            name,
            reconcile,
            workers=workers,
            backoff=ExponentialBackoff(0.5, longest_backoff),
            flow=lambda key: key.partition("/")[0],
        )
        self.needs_node: set[str] = set()
        """Keys of pods to move as soon as another virtual node admits them."""

    def result(self, key: str, outcome: Outcome) -> Result:
        """Return when to request the move of a pod again after this outcome."""
        if outcome.needs_node:
            self.needs_node.add(key)
        return Result(requeue_after=outcome.retry_after)

    def requeue_waiting(self) -> None:
        """Requeue the pods that no other virtual node admitted."""
        waiting, self.needs_node = self.needs_node, set()
        for key in sorted(waiting):
            self.enqueue(key)


def _threshold(threshold: PriorityThreshold, where: str) -> int | None:
    if threshold.value is not None:
        return threshold.value
    if not threshold.name:
        return None
    try:
        return _SYSTEM_PRIORITIES[threshold.name]
    except KeyError:
        raise ConfigError(
            f"{where}.priorityThreshold.name: {threshold.name!r}: PriorityClasses are not read; write the value instead"
        ) from None
