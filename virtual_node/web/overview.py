"""Builds the page's data from the caches of the running lower clusters, in parts that a browser keeps."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any

import msgspec

from controller_runtime.objects import Object
from controller_runtime.util.keyed import SharedAnswers
from controller_runtime.util.responsive import Slicer
from virtual_node.cluster.lower_cluster import LowerCluster
from virtual_node.health.faults import Health
from virtual_node.health.inspections import FIXED, NEW, PERSISTING, UNKNOWN, Inspection
from virtual_node.health.objects import Json
from virtual_node.web import clusters, history
from virtual_node.web.clusters import cluster_card, cluster_detail, stopped_card
from virtual_node.web.events import shown_events
from virtual_node.web.groups import Groups, View
from virtual_node.web.pod_detail import pod_view
from virtual_node.web.reading import Reader, Reading
from virtual_node.web.swarms import swarm_table

_SHARED_SECONDS = 0.5
"""Minimum seconds between two reads of the caches."""
_SHARE = 20
"""Minimum interval of reads as a multiple of their duration, so that they use at most 5 % of a core."""
_LONGEST = 5.0
"""Maximum seconds between two reads."""
_FORGOTTEN = 60.0
"""Seconds without a browser after which rows are dropped; rows of 10,000 pods use 18 MiB."""
_MOST_NAMESPACES = 300
_MOST_FINDINGS = 50
"""Maximum number of an inspection's findings that are sent."""

Parts = dict[str, bytes]
"""JSON by key, in the order in which a browser needs the parts."""


@dataclass(eq=False)
class Overview:
    """Builds the page's data.

    Attributes:
        clusters: the lower clusters that run now, by name; the mapping is read every time.
        leader: returns the leader's host name while this replica stands by; empty: this replica leads.
        elsewhere: returns the host name of the replica that runs each of the other lower clusters, by cluster.
        health: returns the health model's result, which is the page's headline.
        failures: returns why configured lower clusters do not run.
        waiting: returns the upper pods without a node; only those for virtual nodes are shown in lists.
        reach: ``namespace`` and ``port`` of the other replicas' pages, sent while another replica works.
        pod_events: returns the upper cluster's Events about a pod, see ``PodEvents.of``.
        swarms: returns the Swarms, see ``Swarms.known``.
        inspection: returns the history of inspections; None: there is none.
        history: samples of the last hour.
    """

    clusters: Mapping[str, LowerCluster]
    _: KW_ONLY
    leader: Callable[[], str] = lambda: ""
    elsewhere: Callable[[], Mapping[str, str]] = dict
    health: Callable[[], Health]
    failures: Callable[[], Mapping[str, str]] = dict
    waiting: Callable[[], Iterable[Object]] = tuple
    reach: Mapping[str, str] = field(default_factory=dict)
    pod_events: Callable[[Object], list[dict[str, Any]]] = lambda _pod: []
    swarms: Callable[[], Sequence[Json] | None] = tuple
    inspection: Callable[[], Inspection | None] = lambda: None
    history: history.History = field(default_factory=history.History, init=False)

    def __post_init__(self) -> None:
        """Begin without rows."""
        self._reader = Reader(self.clusters, waiting=self.waiting)
        self._reading: tuple[float, Reading] | None = None
        self._lock = asyncio.Lock()
        self._expiries: SharedAnswers[str, list[dict[str, str]]] = SharedAnswers(
            fresh=clusters.EXPIRIES_FRESH
        )

    async def run(self) -> None:
        """Sample the history until cancelled, and drop rows when no browser reads the page."""
        loop = asyncio.get_running_loop()
        while True:
            if self._reading is not None and loop.time() > self._reading[0] + _FORGOTTEN:
                self._reading = None
                self._reader.forget()
            self.history.sample({
                name: sum(len(informer.store) for informer in cluster.caches.upper.values())
                if cluster.caches is not None else 0
                for name, cluster in self.clusters.items()
            })  # fmt: skip
            await asyncio.sleep(history.INTERVAL)

    async def parts(self, view: View, *, in_full: bool = True) -> Parts:
        """Return the page's data for one view.

        Args:
            view: the browser's view.
            in_full: whether specs of pods, lower nodes, expiry times and inspections may be shown.
        """
        reading = await self._read()
        groups, slicer = Groups(), Slicer()
        counts: Counter[str] = Counter()
        for row in reading.rows:
            await slicer.tick()
            if view.has(row):
                counts[row.state] += 1
                if not view.state or row.state == view.state:
                    groups.add(row)
        found = {"health": self._verdict(), "clusters": self._cards(reading)}
        keys = groups.first(view.groups)
        found["pods"] = {
            "counts": dict(counts),
            "all": len(reading.rows),
            "found": sum(groups.counts.values()),
            "groups": keys,
            "more": len(groups) - len(keys),
            "namespaces": sorted(reading.namespaces)[:_MOST_NAMESPACES],
        }
        if view.pod:
            found["pod"] = pod_view(
                self.clusters, self.waiting(), view.pod, in_full=in_full, events=self.pod_events
            )
        if view.detail:
            found["detail"] = await self._detail(view.detail, reading, in_full=in_full)
        for key in keys:
            await slicer.tick()
            found[f"group {key}"] = groups.describe(key)
            if key in view.open:
                rows = groups.rows(key)
                found[f"open {key}"] = {"pods": [row.uid for row in rows[: view.pods]], "all": len(rows)}
                found |= {f"row {row.uid}": dict(row.shown) for row in rows[: view.pods]}
        if swarms := self.swarms():
            found["swarms"] = swarm_table(swarms)
        if in_full and (inspection := self.inspection()):
            found["inspection"] = inspection_table(inspection)
        found["events"] = shown_events(self.clusters)
        return {key: msgspec.json.encode(part) for key, part in found.items()}

    async def _read(self) -> Reading:
        """Return all pods, read at most a few seconds ago; concurrent callers share one read."""
        loop = asyncio.get_running_loop()
        async with self._lock:
            if self._reading is None or loop.time() >= self._reading[0]:
                begun = loop.time()
                reading = await self._reader.read()
                taken = loop.time() - begun
                self._reading = loop.time() + min(_LONGEST, max(_SHARED_SECONDS, _SHARE * taken)), reading
            return self._reading[1]

    def _verdict(self) -> dict[str, Any]:
        leader, elsewhere = self.leader(), dict(self.elsewhere())
        others = {"elsewhere": elsewhere} if elsewhere else {}
        reach = self.reach if leader or elsewhere else {}
        return {"leader": leader, **others, **reach, **self.health().data()}

    def _cards(self, reading: Reading) -> list[dict[str, Any]]:
        cards = [
            stopped_card(name, why) for name, why in self.failures().items() if name not in self.clusters
        ]
        cards += [
            cluster_card(name, cluster, reading, lag=self.history.lag(name))
            for name, cluster in self.clusters.items()
        ]
        return sorted(cards, key=lambda card: str(card["name"]))

    async def _detail(self, name: str, reading: Reading, *, in_full: bool) -> dict[str, Any]:
        cluster = self.clusters.get(name)
        if cluster is None:
            return {"name": name, "missing": True}
        shown = {"name": name, "history": self.history.of(name)}
        if in_full:
            read = partial(asyncio.to_thread, clusters.credentials_of, cluster.config)
            shown |= cluster_detail(name, cluster, reading, await self._expiries.get(name, read))
        return shown


def inspection_table(inspection: Inspection) -> dict[str, Any]:
    """Return the last run, its first findings (by severity, then new ones first) and the number of all findings."""
    order = (NEW, PERSISTING, UNKNOWN, FIXED)
    found = sorted(inspection.findings, key=lambda one: (one.severity, order.index(one.state), one.identity))
    return {
        "run": msgspec.to_builtins(inspection.runs[-1]) if inspection.runs else None,
        "rows": msgspec.to_builtins(found[:_MOST_FINDINGS]),
        "all": len(found),
    }
