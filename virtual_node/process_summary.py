"""Summaries of the pods of all virtual nodes of this process, for ``status``. Each pod is evaluated once per version."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from controller_runtime.cache.namespace_budget import is_stub
from controller_runtime.objects import Object
from controller_runtime.util.event_loop import Slicer
from controller_runtime.util.keyed import SharedAnswers
from virtual_node import metrics
from virtual_node.controllers.base.context import PodCaches
from virtual_node.node_summary import (
    MOST_FINDINGS,
    RESOURCES,
    Lag,
    NodeSummary,
    PodNumbers,
    PodSummary,
    Summaries,
    summarize,
    summary_of,
)
from virtual_node.process_state import ProcessState

T = TypeVar("T")
_UNKNOWN = PodSummary(PodNumbers(is_running=False, is_trouble=False, used=(0,) * len(RESOURCES)), ())
"""Of a pod whose content is not cached."""
_Evaluated = dict[str, tuple[str, PodSummary]]
"""Resource version and summary of pods, by uid; the version is empty if the content of the pod is not cached."""


async def evaluated(
    pods: Iterable[Object],
    before: dict[str, tuple[str, T]],
    evaluate: Callable[[Object], T],
    slicer: Slicer,
    *,
    version: Callable[[Object], str] = lambda pod: pod.resource_version,
) -> dict[str, tuple[str, T]]:
    """Return version and value of each pod, by uid; only pods with another version than in ``before`` are evaluated.

    The values are also added to ``before``, so that after a cancelled call a later one does not begin again.
    """
    current: dict[str, tuple[str, T]] = {}
    for pod in pods:
        known, now = before.get(pod.uid), version(pod)
        if known is None or known[0] != now:
            known = now, evaluate(pod)
        before[pod.uid] = current[pod.uid] = known
        await slicer.tick()
    return current


def _version(pod: Object) -> str:
    return "" if is_stub(pod) else pod.resource_version


@dataclass(eq=False, repr=False)
class ProcessSummary:
    """Evaluates the upper pods of all that this process runs, when it is asked for them."""

    state: ProcessState
    """Of the process."""

    def __post_init__(self) -> None:
        self._evaluated: dict[str, _Evaluated] = {}
        """By virtual node."""
        self._evaluating = asyncio.Lock()
        self._answers: SharedAnswers[str, bytes] = SharedAnswers(fresh=0)

    async def refresh(self) -> None:
        """Evaluate the pods that have changed since the last call, in slices."""
        async with self._evaluating:
            caches = dict(self._caches())
            for name in self._evaluated.keys() - caches.keys():
                del self._evaluated[name]
            # Most pods of a node have equal numbers and no findings; one object for all needs a fifth of the memory.
            same = {each.numbers: each for each in self.pods() if not each.findings}

            def summary(pod: Object) -> PodSummary:
                if is_stub(pod):
                    return _UNKNOWN
                found = summary_of(pod.to_dict())
                return found if found.findings else same.setdefault(found.numbers, found)

            slicer = Slicer()
            for name, cached in caches.items():
                before, pods = self._evaluated.setdefault(name, {}), cached.upper[name].store.list()
                self._evaluated[name] = await evaluated(pods, before, summary, slicer, version=_version)

    def pods(self) -> Iterator[PodSummary]:
        """Yield the summaries of all pods as of the last ``refresh``."""
        for evaluated in self._evaluated.values():
            for _, summary in evaluated.values():
                yield summary

    async def answer(self, node: str) -> bytes:
        """Return the JSON of ``Summaries`` for who may read a virtual node; the pods of others are not named in it."""
        return await self._answers.get(node, lambda: self._answer(node))

    async def _answer(self, node: str) -> bytes:
        await self.refresh()
        slicer, found = Slicer(), {}
        lags: dict[str, Lag] = {}
        for cluster in self.state.clusters.values():
            for name in cluster.nodes:
                if (summary := self._summary(name, cluster.caches)) is None:
                    continue
                if cluster.config.name not in lags:
                    lags[cluster.config.name] = metrics.lag(cluster.config.name)
                summary.lag = lags[cluster.config.name] or None
                found[name] = summary if name == node else summary.for_others()
                await slicer.tick()
        return msgspec.json.encode(Summaries(found))

    def _summary(self, name: str, caches: PodCaches | None) -> NodeSummary | None:
        """Return the summary of a virtual node; None: the cache is not current or complete, so the pods must be listed."""
        informer = caches.upper.get(name) if caches is not None else None
        evaluated = self._evaluated.get(name)
        if (
            informer is None
            or evaluated is None
            or not informer.has_synced
            or informer.last_error is not None
        ):
            return None
        if any(not version for version, _ in evaluated.values()):
            return None
        summary = summarize(one for _, one in evaluated.values())
        return summary if summary.findings is not None and len(summary.findings) <= MOST_FINDINGS else None

    def _caches(self) -> Iterator[tuple[str, PodCaches]]:
        for cluster in self.state.clusters.values():
            if cluster.caches is not None:
                for name in cluster.caches.upper:
                    yield name, cluster.caches
