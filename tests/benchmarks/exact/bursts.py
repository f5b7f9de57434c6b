"""One burst: pods are created at once, judged when all schedulers are quiet, and deleted."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from clusterset.model.pod.conditions import condition
from controller_runtime import resources
from controller_runtime.client.client import Client
from controller_runtime.errors import NotFound
from controller_runtime.objects import Object
from tests.benchmarks.exact.pods import GROUP, MINIMUM, NAMESPACE, Wanted
from tests.benchmarks.exact.watching import MOMENT, Watched, node_of
from tests.benchmarks.load import for_all
from tests.benchmarks.stage import progress

_QUIET = 5.0
"""Seconds without a change after which a pod that waits although it fits counts."""
_LATER = 12.0
"""Further seconds for such pods: longer than kube-scheduler's longest back-off."""
_LIMIT = 150.0
_PROBES = "exact=probe"


@dataclass(eq=False)
class Outcome:
    """Counts of one burst; ``sum`` adds several."""

    pods: int = 0
    bound: int = 0
    promised_twice: int = 0
    """Bound pods that their lower scheduler could not place at some time."""
    promised_twice_long: int = 0
    """The same for more than ``MOMENT`` seconds."""
    waiting: int = 0
    waiting_although_fit: int = 0
    """Pods without an upper node that a lower node admits, or whose group fits, ``_QUIET`` seconds after the last change."""
    waiting_although_fit_later: int = 0
    """The same after ``_LATER`` further seconds."""
    lower_scheduler_places: int = 0
    """Waiting pods without a group that the lower schedulers placed when all of them were created there at once."""
    partial_groups: int = 0
    """Groups with more than no and less than their minimum of bound pods."""
    preferring: int = 0
    """Lower pods that prefer a node and are bound."""
    preferred_lacked_room: int = 0
    """Of these, the ones with another node because the preferred one had no room."""
    preference_ignored: int = 0
    """Of these, the ones with another node although the preferred one had room."""
    loud: int = 0
    """Bursts that were not quiet within the limit."""
    seconds: float = 0.0
    """Time from the first creation to the last change."""
    broken: dict[str, list[str]] = field(default_factory=dict)
    """Names of the pods that broke a goal, by goal; not summed."""
    bound_names: list[str] = field(default_factory=list)
    """Names of the bound pods; not summed."""

    def __iadd__(self, other: Outcome) -> Self:
        for name, value in other._counts().items():
            setattr(self, name, getattr(self, name) + value)
        return self

    def figures(self) -> dict[str, Any]:
        """Return the counts, named as in the results."""
        return {_camel(name): value for name, value in self._counts().items()}

    def _counts(self) -> dict[str, float]:
        return {name: value for name, value in vars(self).items() if isinstance(value, int | float)}


@dataclass(eq=False)
class Player:
    """Plays bursts on running clusters."""

    watched: Watched
    stories: Path | None = None
    """Directory for the stories of bursts that break a goal."""
    asks_lower_schedulers: bool = True
    _played: int = 0

    async def play(
        self, burst: Sequence[Wanted], tag: str, *, quiet: float = _QUIET, clients: int = 16
    ) -> Outcome:
        """Create the pods, wait until all schedulers are quiet, count, and delete the pods.

        ``tag`` makes the names unique. With one client, pods are created in order.
        """
        watched, client = self.watched, self.watched.upper.client
        pods = {f"{tag}-{pod.name}": replace(pod, name=f"{tag}-{pod.name}") for pod in burst}
        watched.story.lines.clear()
        self._played += 1
        for cluster in watched.lower.values():
            cluster.start_burst()
        started = time.monotonic()

        async def create(pod: Wanted) -> None:
            await client.create(resources.PODS, pod.upper(), namespace=NAMESPACE)

        await for_all(pods.values(), create, clients=clients)
        is_quiet = await watched.quiet(lambda: watched.is_settled(len(pods)), seconds=quiet, limit=_LIMIT)
        outcome = self._count(len(pods))
        outcome.loud = int(not is_quiet)
        outcome.seconds = watched.story.changed - started
        if outcome.waiting_although_fit:
            await asyncio.sleep(_LATER)
            outcome.waiting_although_fit_later = len(self._fitting())
        if self.asks_lower_schedulers:
            outcome.broken["placed by a lower scheduler"] = await self._ask_lower_schedulers(pods)
            outcome.lower_scheduler_places = len(outcome.broken["placed by a lower scheduler"])
        self._tell(tag, outcome, pods)
        await self.clear()
        return outcome

    async def clear(self) -> None:
        """Delete all pods and wait until none is left."""
        client = self.watched.upper.client
        pods = [pod.name for pod in self.watched.upper.pods.store.list()]
        await for_all(pods, lambda name: _delete(client, name))
        if not await self.watched.quiet(self.watched.is_empty, seconds=0.5, limit=_LIMIT):
            raise TimeoutError("pods of the last burst are not deleted")

    def _count(self, pods: int) -> Outcome:
        watched = self.watched
        for cluster in watched.lower.values():
            cluster.end_burst()
        bound = {pod.uid: pod for pod in watched.bound()}
        lacking = {
            bound[uid].name: seconds
            for cluster in watched.lower.values()
            for uid, seconds in cluster.unschedulable.items()
            if uid in bound
        }
        fitting = self._fitting()
        preferences = [one for cluster in watched.lower.values() for one in cluster.preferences]
        elsewhere = [one for one in preferences if one.preferred != one.node]
        return Outcome(
            pods=pods,
            bound=len(bound),
            promised_twice=len(lacking),
            promised_twice_long=sum(seconds > MOMENT for seconds in lacking.values()),
            waiting=len(watched.waiting()),
            waiting_although_fit=len(fitting),
            partial_groups=sum(0 < count < least for count, least in _groups(watched).values()),
            preferring=len(preferences),
            preferred_lacked_room=sum(not one.had_room for one in elsewhere),
            preference_ignored=sum(one.had_room for one in elsewhere),
            broken={"promised twice": sorted(lacking), "waits although it fits": fitting},
            bound_names=sorted(pod.name for pod in bound.values()),
        )

    def _fitting(self) -> list[str]:
        """Return the names of the pods that wait although a lower node admits them, or a cluster their group."""
        found, groups = [], defaultdict(list)
        for pod in self.watched.waiting():
            if group := _group(pod):
                groups[group].append(pod)
            elif self.watched.fitting(pod):
                found.append(pod.name)
        counts = _groups(self.watched)
        for group, pods in groups.items():
            bound, least = counts[group]
            if bound < least and self.watched.has_room_for_all(pods, least):
                found += [pod.name for pod in pods]
        return sorted(found)

    async def _ask_lower_schedulers(self, wanted: Mapping[str, Wanted]) -> list[str]:
        """Create the waiting pods in all lower clusters; return those that a lower scheduler places, and delete them.

        If there is none, the lower schedulers prove that no waiting pod fits. Otherwise the pods may have taken room from
        each other, so the number is a lower bound.
        """
        waiting = [pod for pod in self.watched.waiting() if not _group(pod)]
        placed: set[str] = set()

        async def ask(name: str, client: Client) -> None:
            asked = [pod for pod in waiting if self.watched.upper.admits(pod, f"vn-{name}")]

            async def create(pod: Object) -> None:
                body = wanted[pod.name].lower()
                body["metadata"]["labels"]["exact"] = "probe"
                await client.create(resources.PODS, body, namespace=NAMESPACE)

            await for_all(asked, create, clients=8)
            async with asyncio.timeout(_LIMIT):
                while True:
                    found = (
                        await client.list(resources.PODS, namespace=NAMESPACE, label_selector=_PROBES)
                    ).items
                    if all(node_of(pod) or condition(pod.status, "PodScheduled") for pod in found):
                        break
                    await asyncio.sleep(0.2)
            placed.update(pod.name for pod in found if node_of(pod))
            await for_all([pod.name for pod in asked], lambda pod: _delete(client, pod, seconds=0), clients=8)

        await asyncio.gather(*(ask(name, one.client) for name, one in self.watched.lower.items()))
        return sorted(placed)

    def _tell(self, tag: str, outcome: Outcome, pods: Mapping[str, Wanted]) -> None:
        broken = {goal: names for goal, names in outcome.broken.items() if names}
        progress(
            f"{tag}: {outcome.pods} pods, {outcome.bound} bound, {outcome.promised_twice} promised twice "
            f"({outcome.promised_twice_long} for long), {outcome.waiting_although_fit} wait although they fit "
            f"({outcome.waiting_although_fit_later} later, {outcome.lower_scheduler_places} by the lower schedulers), "
            f"{outcome.partial_groups} partial groups, {outcome.preference_ignored} of {outcome.preferring} preferences "
            f"ignored, {outcome.preferred_lacked_room} without room, "
            f"{outcome.seconds:.1f} s{', not quiet' if outcome.loud else ''}"
        )
        if self.stories is None or not (broken or outcome.preferred_lacked_room or outcome.loud):
            return
        lines = [f"{goal}: {', '.join(names)}" for goal, names in broken.items()]
        lines += [repr(pods[name]) for names in broken.values() for name in names if name in pods]
        first = self.watched.story.lines[0][0] if self.watched.story.lines else 0.0
        lines += [
            f"{time.strftime('%H:%M:%S', time.gmtime(at))} {at - first:8.3f} {text}"
            for at, text in self.watched.story.lines
        ]
        self.stories.mkdir(parents=True, exist_ok=True)
        (self.stories / f"{self._played:03}-{tag}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _groups(watched: Watched) -> dict[str, tuple[int, int]]:
    """Return the number of bound pods, and the minimum, by group."""
    found: dict[str, tuple[int, int]] = {}
    for pod in watched.upper.pods.store.list():
        if group := _group(pod):
            count, _ = found.get(group, (0, 0))
            found[group] = count + bool(node_of(pod)), int(pod.annotations[MINIMUM])
    return found


def _group(pod: Object) -> str:
    return pod.annotations.get(GROUP, "")


async def _delete(client: Client, name: str, *, seconds: int | None = None) -> None:
    try:
        await client.delete(resources.PODS, name, namespace=NAMESPACE, grace_period_seconds=seconds)
    except NotFound:
        return


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
