"""State that outlives this process: which nodes an owner's pods avoid, and how often they have been moved.

It is stored in two ConfigMaps in ``--freeze-namespace``. Every webhook replica reads ``virtual-node-unschedulable``
(format: ``node_avoidance``). Only the descheduler uses ``virtual-node-descheduler`` (format: ``History``). Only the leader
writes, with merge patches of the keys that change, so its copy in memory equals the ConfigMaps. It reads both when its
leadership begins.

Moves are counted in *rounds*. All pods of an owner that are moved because of the same bad placement are one round.
If a pod created after the last round began is stuck again, it begins the next round after a back-off. The
back-off doubles with each round up to a maximum. A window without a round resets the count.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec

from clusterset.model.moving import node_avoidance
from controller_runtime import log, resources
from controller_runtime.apimachinery import timestamps
from controller_runtime.apimachinery.decoding import decode
from controller_runtime.client.client import Client, find
from controller_runtime.errors import AlreadyExists, ApiError, NotFound
from controller_runtime.util.rate_limiter import exponential
from descheduler.config import Limits


@dataclass(frozen=True, slots=True)
class History:
    """Rounds of one owner."""

    rounds: int
    last: datetime
    """Start of the last round."""

    def render(self, namespace: str) -> str:
        """Return the value stored in the ConfigMap."""
        value = {"namespace": namespace, "rounds": self.rounds, "last": timestamps.rfc3339(self.last)}
        return msgspec.json.encode(value).decode()


def parse(data: Mapping[str, Any] | None) -> dict[str, History]:
    """Return the histories in the ConfigMap's data by owner key; skip entries that cannot be parsed."""
    found: dict[str, History] = {}
    for key, text in (data or {}).items():
        try:
            value = decode(text)
            found[key] = History(int(value["rounds"]), timestamps.parse(value["last"]))
        except (KeyError, TypeError, ValueError):
            continue
    return found


class Verdict(enum.Enum):
    """Whether a pod may be moved now: SAME_ROUND and NEW_ROUND allow it."""

    SAME_ROUND = enum.auto()
    NEW_ROUND = enum.auto()
    WAIT = enum.auto()
    GIVE_UP = enum.auto()


@dataclass(frozen=True, slots=True)
class Decision:
    """A verdict. ``wait``: for WAIT and GIVE_UP, seconds until the next decision (GIVE_UP: rest of the window)."""

    verdict: Verdict
    wait: float = 0.0
    rounds: int = 0
    """Rounds in the current window."""


def decide(
    history: History | None, *, created: datetime, now: datetime, limits: Limits, is_bare: bool = False
) -> Decision:
    """Decide whether a pod may be moved now.

    Args:
        history: history of the pod's owner; None: none of its pods was moved.
        created: creation time of the pod. A pod created before the second in which the last round began is
            part of that round.
        now: wall clock.
        limits: back-off and maximum.
        is_bare: whether the pod has no controller. Rounds of bare pods have a single pod.
    """
    if history is None or expired(history, now=now, limits=limits):
        return Decision(Verdict.NEW_ROUND)
    if not is_bare and created < history.last.replace(microsecond=0):
        return Decision(Verdict.SAME_ROUND, rounds=history.rounds)
    since = (now - history.last).total_seconds()
    if limits.rounds and history.rounds >= limits.rounds:
        return Decision(Verdict.GIVE_UP, wait=max(1.0, limits.window - since), rounds=history.rounds)
    wait = exponential(history.rounds - 1, base=limits.backoff, maximum=limits.backoff_maximum) - since
    if wait > 0:
        return Decision(Verdict.WAIT, wait=wait, rounds=history.rounds)
    return Decision(Verdict.NEW_ROUND, rounds=history.rounds)


def expired(history: History, *, now: datetime, limits: Limits) -> bool:
    """Report whether the window has passed since the last round began."""
    return now - history.last > timedelta(seconds=limits.window)


HISTORY = "virtual-node-descheduler"
_PRUNE_SLACK = 5.0
"""Seconds to wait after an expiry, so that later expiries are pruned with the same write."""

_MAX_OWNERS = 2000
"""Maximum number of owners per ConfigMap (1 MiB). An additional owner replaces the oldest entry of the namespace with
most entries."""


@dataclass(eq=False)
class Memory:
    """The leader's copy of both ConfigMaps, and their only writer."""

    client: Client
    namespace: str
    freeze_period: float
    limits: Limits
    now: Callable[[], datetime]

    def __post_init__(self) -> None:
        self._frozen: dict[str, tuple[str, dict[str, datetime]]] = {}
        self._histories: dict[str, History] = {}
        self._changed = asyncio.Event()
        self._batches: dict[str, tuple[dict[str, str | None], asyncio.Future[None]]] = {}
        """ConfigMap → the changes that the next write contains, and the future that this write completes."""
        self._locks = {name: asyncio.Lock() for name in (node_avoidance.CONFIG_MAP, HISTORY)}
        self._log = log.get_logger(component="memory")
        self._subscribers: list[Callable[[], None]] = []

    @contextlib.contextmanager
    def subscribed(self, on_thaw: Callable[[], None]) -> Iterator[None]:
        """Call ``on_thaw``, within the block, when pods of an owner no longer avoid a node."""
        self._subscribers.append(on_thaw)
        try:
            yield
        finally:
            self._subscribers.remove(on_thaw)

    async def load(self) -> None:
        """Read both ConfigMaps.

        Raises:
            ApiError: a request failed.
        """
        self._frozen = dict(node_avoidance.parse_all(await self._read(node_avoidance.CONFIG_MAP)))
        self._histories = parse(await self._read(HISTORY))

    async def run(self) -> None:
        """Remove entries when they expire, until cancelled."""
        while True:
            self._changed.clear()
            wait = self._next_expiry()
            try:
                async with asyncio.timeout(wait):
                    await self._changed.wait()
            except TimeoutError:
                try:
                    await self._prune()
                except ApiError as error:
                    self._log.warning("expired entries not pruned yet", error=str(error))
                    await asyncio.sleep(_PRUNE_SLACK)

    def frozen(self, key: str) -> dict[str, datetime]:
        """Return the nodes that an owner's pods avoid now, each with the time at which it was frozen."""
        _, nodes = self._frozen.get(key, ("", {}))
        return node_avoidance.active(nodes, now=self.now(), freeze_period=self.freeze_period)

    def history(self, key: str) -> History | None:
        """Return an owner's history; None if none of its pods was moved."""
        return self._histories.get(key)

    async def freeze(self, key: str, namespace: str, nodes: Iterable[str]) -> None:
        """Make an owner's future pods avoid nodes.

        Raises:
            ApiError: the nodes are not stored. The owner's pods must then stay, because their successors would
                use these nodes.
        """
        moment = self.now().replace(microsecond=0)
        wanted = {**self.frozen(key), **dict.fromkeys(nodes, moment)}
        newest = {owner: max(nodes.values()) for owner, (_, nodes) in self._frozen.items() if owner != key}
        forgotten = _oldest(newest)
        changes = {**dict.fromkeys(forgotten), key: node_avoidance.render(namespace, wanted)}
        await self._write(node_avoidance.CONFIG_MAP, changes)
        for owner in forgotten:
            self._frozen.pop(owner, None)
        self._frozen[key] = (namespace, wanted)
        self._changed.set()

    async def thaw(self, node: str, *, since: datetime) -> None:
        """Make a recovered node usable again: remove its freezes that began at ``since`` or later."""
        begin = since.replace(microsecond=0)

        def others(_key: str, nodes: dict[str, datetime]) -> dict[str, datetime]:
            return {name: moment for name, moment in nodes.items() if name != node or moment < begin}

        if await self._reduce(others):
            self._notify()

    async def note_round(self, key: str, namespace: str) -> int:
        """Count a round of an owner; return its number of rounds in the window.

        Raises:
            ApiError: the round is not stored.
        """
        now = self.now()
        before = self._histories.get(key)
        rounds = 0 if before is None or expired(before, now=now, limits=self.limits) else before.rounds
        noted = History(rounds + 1, now)
        forgotten = _oldest({owner: entry.last for owner, entry in self._histories.items() if owner != key})
        await self._write(HISTORY, {**dict.fromkeys(forgotten), key: noted.render(namespace)})
        for owner in forgotten:
            self._histories.pop(owner, None)
        self._histories[key] = noted
        self._changed.set()
        return noted.rounds

    def _next_expiry(self) -> float | None:
        now = self.now()
        due = [
            (since - now).total_seconds() + self.freeze_period
            for _, nodes in self._frozen.values()
            for since in nodes.values()
        ]
        due += [(entry.last - now).total_seconds() + self.limits.window for entry in self._histories.values()]
        return max(0.1, min(due) + min(_PRUNE_SLACK, self.freeze_period / 10)) if due else None

    async def _prune(self) -> None:
        is_reduced = await self._reduce(lambda key, _nodes: self.frozen(key))
        now = self.now()
        old = [key for key, entry in self._histories.items() if expired(entry, now=now, limits=self.limits)]
        if old:
            await self._write(HISTORY, dict.fromkeys(old))
            for key in old:
                del self._histories[key]
        if is_reduced:
            self._notify()

    def _notify(self) -> None:
        for on_thaw in list(self._subscribers):
            on_thaw()

    async def _reduce(self, rest_of: Callable[[str, dict[str, datetime]], dict[str, datetime]]) -> bool:
        """Keep for each owner only the frozen nodes that ``rest_of`` returns; return whether a node was removed."""
        kept = {
            key: (namespace, rest)
            for key, (namespace, nodes) in self._frozen.items()
            if len(rest := rest_of(key, nodes)) < len(nodes)
        }
        if not kept:
            return False
        changes = {
            key: node_avoidance.render(namespace, rest) if rest else None
            for key, (namespace, rest) in kept.items()
        }
        await self._write(node_avoidance.CONFIG_MAP, changes)
        self._frozen = {key: entry for key, entry in (self._frozen | kept).items() if entry[1]}
        return True

    async def _read(self, name: str) -> dict[str, Any]:
        config_map = await find(self.client, resources.CONFIG_MAPS, name, namespace=self.namespace)
        if config_map is None:
            return {}
        return config_map.get("data") or {}

    async def _write(self, name: str, changes: Mapping[str, str | None]) -> None:
        """Write keys. Changes that arrive during a write are combined into the next write.

        Concurrent patches of one object would conflict in the API server, which retries them.
        """
        batch = self._batches.get(name)
        if batch is None:
            gathered: dict[str, str | None] = {}
            batch = (gathered, asyncio.ensure_future(self._flush(name, gathered)))
            self._batches[name] = batch
        batch[0].update(changes)
        await batch[1]

    async def _flush(self, name: str, changes: dict[str, str | None]) -> None:
        async with self._locks[name]:
            del self._batches[name]  # later changes form the next batch
            await self._patch(name, changes)

    async def _patch(self, name: str, changes: Mapping[str, str | None]) -> None:
        patch = {"data": dict(changes)}
        try:
            await self.client.patch(resources.CONFIG_MAPS, name, patch, namespace=self.namespace)
        except NotFound:
            added = {key: value for key, value in changes.items() if value is not None}
            if not added:
                return
            body = {"metadata": {"name": name, "namespace": self.namespace}, "data": added}
            try:
                await self.client.create(resources.CONFIG_MAPS, body, namespace=self.namespace)
            except AlreadyExists:
                await self.client.patch(resources.CONFIG_MAPS, name, patch, namespace=self.namespace)


def _oldest(entries: Mapping[str, datetime]) -> list[str]:
    """Return the keys to remove to make room for one more.

    These are the oldest keys of the namespace with most keys. A tenant can create any number of owners,
    because it can write any owner UID into its pods, and must not displace entries of other tenants.
    """
    if len(entries) < _MAX_OWNERS:
        return []
    namespaces = {key: key.partition(".")[0] for key in entries}
    counts = Counter(namespaces.values())
    return heapq.nsmallest(
        len(entries) - _MAX_OWNERS + 1,
        entries,
        key=lambda owner: (-counts[namespaces[owner]], entries[owner]),
    )
