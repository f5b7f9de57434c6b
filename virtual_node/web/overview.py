"""Builds the page's data from the caches of the running lower clusters, in parts that a browser keeps.

The data about a lower cluster are its credentials, virtual nodes and lower nodes.

Swarms are read only while a browser shows the page.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import msgspec
import prometheus_client
import structlog

from clusterset.config import Cluster
from clusterset.model.names import SWARMS
from clusterset.model.pod.conditions import condition
from controller_runtime.apimachinery import quantity, timestamps
from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError, ConfigError, Forbidden, NotFound
from controller_runtime.objects import Object
from controller_runtime.util import event_loop
from controller_runtime.util.event_loop import Slicer
from controller_runtime.util.keyed import SharedAnswers
from virtual_node import metrics
from virtual_node.cluster.lower_cluster import LowerCluster
from virtual_node.examine.codes import Severity
from virtual_node.examine.expiries import of_kubeconfig
from virtual_node.examine.expiry import Expiry, ExpiryLimits, certificate, severity_of
from virtual_node.examine.health import Health
from virtual_node.examine.inspections import FIXED, NEW, PERSISTING, UNKNOWN, Inspection
from virtual_node.examine.objects import Json, key
from virtual_node.examine.rules.pods import swarm_state
from virtual_node.translate.nodes.capacity import node_counts
from virtual_node.web.groups import Groups, View
from virtual_node.web.pod_detail import pod_view, shown_events
from virtual_node.web.reading import Reader, Reading

_AGE = 10.0
"""Seconds after which Swarms are read again."""
_ABSENT = 300.0
"""Seconds until the next read if the API server does not know Swarms or forbids the read."""
_STALE = 60.0
"""Seconds without a browser after which the Swarms of the last read are not used."""
_COUNTS = {"workerCount": "workers", "jobCount": "jobs", "runningCount": "running"}
"""Fields of the status, and their names on the page."""
_MOST = 100
"""Maximum number of Swarms that are sent."""


class Swarms:
    """Reads Swarms in the background; never waits for the API server.

    Args:
        client: client of the upper cluster.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: Sequence[Json] | None = None
        self._due = float("-inf")
        self._reading: asyncio.Task[None] | None = None
        self._log = structlog.get_logger(component="page")

    def known(self) -> Sequence[Json] | None:
        """Return the Swarms of the last read, and start a read if it is due; None: no recent read."""
        now = asyncio.get_running_loop().time()
        if now >= self._due and (self._reading is None or self._reading.done()):
            if now > self._due + _STALE:
                self._known = None
            self._due = now + _AGE
            self._reading = asyncio.create_task(self._read(), name="page swarms")
        return self._known

    async def _read(self) -> None:
        try:
            listed = await self._client.list(SWARMS, transform=_shrink)
        except (Forbidden, NotFound):
            self._known, self._due = (), asyncio.get_running_loop().time() + _ABSENT
        except (ApiError, ConfigError) as error:
            self._log.debug("swarms not read", error=str(error))
        else:
            self._known = [one.to_dict() for one in listed.items]


def _shrink(swarm: Object) -> Object:
    """Reduce a Swarm to the fields that the page shows; others, such as ``status.record``, can have a megabyte."""
    status = swarm.status or {}
    return swarm.without("spec").with_fields(
        status={name: status[name] for name in (*_COUNTS, "conditions") if name in status}
    )


def swarm_table(swarms: Sequence[Json]) -> dict[str, Any]:
    """Return the page's table of Swarms: the first ``_MOST`` rows, problems first, and the total number of Swarms."""
    rows = [_row(swarm) for swarm in swarms]
    rows.sort(key=lambda row: (row["state"] == "converged", row["name"]))
    return {"rows": rows[:_MOST], "all": len(rows)}


def _row(swarm: Json) -> dict[str, Any]:
    status = swarm.get("status") or {}
    counts = {name: status.get(field) or 0 for field, name in _COUNTS.items()}
    return {"name": key(swarm), **counts, "state": swarm_state(swarm)}


INTERVAL = 30.0
"""Seconds between two samples."""
_SAMPLES = 120
"""Number of samples of one hour."""
_HISTORY_SHARE = 0.99

Buckets = dict[float, float]
"""Maps upper bounds in seconds to the number of observations up to them since the process started."""

Sample = tuple[int, float | None]
"""Number of pods, and lag in seconds; None: nothing was mirrored."""


class History:
    """Keeps the samples of every lower cluster for an hour."""

    def __init__(self) -> None:
        self._samples: dict[str, deque[Sample]] = {}
        self._before: dict[tuple[str, str], Buckets] = {}

    def sample(self, pods: Mapping[str, int]) -> None:
        """Add a sample of each lower cluster, and drop the samples of clusters that are not in ``pods``.

        Args:
            pods: number of pods by lower cluster.
        """
        now = mirror_buckets()
        self._samples = {name: samples for name, samples in self._samples.items() if name in pods}
        for name, count in pods.items():
            late = [
                seconds
                for key, buckets in now.items()
                if key[0] == name and (seconds := late_since(self._before.get(key, {}), buckets)) is not None
            ]
            self._samples.setdefault(name, deque(maxlen=_SAMPLES)).append((count, max(late, default=None)))
        self._before = now

    def remember(self, cluster: str, samples: Iterable[Sample]) -> None:
        """Insert earlier samples before the known samples of a lower cluster."""
        known = self._samples.get(cluster, ())
        self._samples[cluster] = deque([*samples, *known], maxlen=_SAMPLES)

    def of(self, cluster: str) -> dict[str, Any]:
        """Return a lower cluster's samples, the oldest first; a lag of None means that nothing was mirrored."""
        samples = self._samples.get(cluster, ())
        return {
            "interval": INTERVAL,
            "pods": [count for count, _ in samples],
            "lag": [late for _, late in samples],
        }

    def lag(self, cluster: str) -> float | None:
        """Return the newest known lag in seconds; None: unknown."""
        return next((late for _, late in reversed(self._samples.get(cluster, ())) if late is not None), None)


def mirror_buckets() -> dict[tuple[str, str], Buckets]:
    """Return the histogram of ``virtual_node_mirror_seconds`` by cluster and direction."""
    found: dict[tuple[str, str], Buckets] = {}
    for sample in (sample for family in metrics.MIRROR_SECONDS.collect() for sample in family.samples):
        if sample.name.endswith("_bucket"):
            labels = sample.labels
            found.setdefault((labels["cluster"], labels["direction"]), {})[float(labels["le"])] = sample.value
    return found


def late_since(before: Buckets, now: Buckets) -> float | None:
    """Return the 99th percentile of the observations from ``before`` to ``now``, as its bucket's upper bound.

    Returns:
        Seconds; the largest finite bound stands for the infinite bucket. None: nothing was observed.
    """
    counts = {bound: count - before.get(bound, 0.0) for bound, count in sorted(now.items())}
    total = max(counts.values(), default=0.0)
    finite = [bound for bound in counts if bound != float("inf")]
    if total <= 0 or not finite:
        return None
    return next((bound for bound in finite if counts[bound] >= _HISTORY_SHARE * total), finite[-1])


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
    history: History = field(default_factory=History, init=False)

    def __post_init__(self) -> None:
        """Begin without rows."""
        self._reader = Reader(self.clusters, waiting=self.waiting)
        self._reading: tuple[float, Reading] | None = None
        self._lock = asyncio.Lock()
        self._expiries: SharedAnswers[str, list[dict[str, str]]] = SharedAnswers(fresh=EXPIRIES_FRESH)

    async def run(self) -> None:
        """Sample the history until cancelled, and drop rows when no browser reads the page."""
        while True:
            if self._reading is not None and event_loop.now() > self._reading[0] + _FORGOTTEN:
                self._reading = None
                self._reader.forget()
            self.history.sample({
                name: sum(len(informer.store) for informer in cluster.caches.upper.values())
                if cluster.caches is not None else 0
                for name, cluster in self.clusters.items()
            })  # fmt: skip
            await asyncio.sleep(INTERVAL)

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
        for group in keys:
            await slicer.tick()
            found[f"group {group}"] = groups.describe(group)
            if group in view.open:
                rows = groups.rows(group)
                found[f"open {group}"] = {"pods": [row.uid for row in rows[: view.pods]], "all": len(rows)}
                found |= {f"row {row.uid}": dict(row.shown) for row in rows[: view.pods]}
        if swarms := self.swarms():
            found["swarms"] = swarm_table(swarms)
        if in_full and (inspection := self.inspection()):
            found["inspection"] = inspection_table(inspection)
        found["events"] = shown_events(self.clusters)
        return {key: msgspec.json.encode(part) for key, part in found.items()}

    async def _read(self) -> Reading:
        """Return all pods, read at most a few seconds ago; concurrent callers share one read."""
        async with self._lock:
            if self._reading is None or event_loop.now() >= self._reading[0]:
                begun = event_loop.now()
                reading = await self._reader.read()
                taken = event_loop.now() - begun
                self._reading = (
                    event_loop.now() + min(_LONGEST, max(_SHARED_SECONDS, _SHARE * taken)),
                    reading,
                )
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
            read = partial(asyncio.to_thread, credentials_of, cluster.config)
            shown |= cluster_detail(name, cluster, reading, await self._expiries.get(name, read))
        return shown


def inspection_table(inspection: Inspection) -> dict[str, Any]:
    """Return the last run, its first findings (by severity, then new ones first) and the number of all findings."""
    order = (NEW, PERSISTING, UNKNOWN, FIXED)
    found = sorted(
        inspection.findings,
        key=lambda finding: (finding.severity, order.index(finding.state), finding.identity),
    )
    return {
        "run": msgspec.to_builtins(inspection.runs[-1]) if inspection.runs else None,
        "rows": msgspec.to_builtins(found[:_MOST_FINDINGS]),
        "all": len(found),
    }


_RESOURCES = ("cpu", "memory", "pods")
_EXPIRATION = "virtual_node_certificate_expiration_timestamp_seconds"
_MOST_NODES = 200
"""Maximum number of lower nodes that are sent to a browser."""


def cluster_card(name: str, cluster: LowerCluster, reading: Reading, *, lag: float | None) -> dict[str, Any]:
    """Return the data of a running cluster for the list of clusters.

    Args:
        name: name of the cluster.
        cluster: the running cluster.
        reading: all pods.
        lag: delay of mirroring in seconds; None: nothing was mirrored in the last hour.
    """
    health, caches = cluster.health, cluster.caches
    is_lost = health is not None and health.reachable is False
    answer = (
        {"reachable": health.reachable, "error": health.error, "version": health.context.lower_version}
        if health is not None
        else {}
    )
    return {
        **stopped_card(name, ""),
        **answer,
        "heard": _ago(caches.lower.age) if is_lost and caches is not None else "",
        "lag": lag,
        "nodes": [
            {
                "name": node,
                "ready": controller.ready,
                "lowerNodes": {
                    "ready": controller.capacity.ready_nodes,
                    "all": controller.capacity.selected_nodes,
                },
                "pods": dict(reading.nodes.get(node, {})),
                "resources": _resources(
                    controller.capacity.totals()[1], reading.used.get(node, Counter()), is_known=not is_lost
                ),
            }
            for node, controller in sorted(cluster.nodes.items())
        ],
    }


def stopped_card(name: str, why: str) -> dict[str, Any]:
    """Return the data of a configured cluster that does not run, for the list of clusters."""
    return {
        "name": name, "reachable": None, "error": why, "version": "", "heard": "", "lag": None, "nodes": []
    }  # fmt: skip


def cluster_detail(
    name: str, cluster: LowerCluster, reading: Reading, expiries: list[dict[str, str]]
) -> dict[str, Any]:
    """Return the lower nodes of a cluster, and expiry times of credentials and certificates.

    Args:
        name: name of the cluster.
        cluster: the running cluster.
        reading: all pods.
        expiries: rows for the credentials in the cluster's kubeconfig, see ``expiry_row``.
    """
    is_lost = cluster.health is not None and cluster.health.reachable is False
    lower_nodes = cluster.lower_nodes.store.list() if cluster.lower_nodes is not None else []
    selected = {
        lower: (node, requests)
        for node, controller in cluster.nodes.items()
        for lower, requests in controller.capacity.foreign().items()
    }
    shown = []
    for node in sorted(lower_nodes, key=lambda node: node.name)[:_MOST_NODES]:
        whole = node.to_dict()
        virtual_node, others = selected.get(node.name, ("", {}))
        used = reading.below.get((name, node.name), Counter()) + Counter(others)
        status = whole.get("status") or {}
        ready = condition(whole.get("status"), "Ready")
        is_ready = ready.get("status") == "True"
        shown.append(
            {
                "name": node.name,
                "ready": is_ready,
                "why": "" if is_ready else str(ready.get("message") or "no condition Ready"),
                "schedulable": node_counts(whole),
                "virtualNode": virtual_node,
                "version": (status.get("nodeInfo") or {}).get("kubeletVersion", ""),
                "resources": _resources(status.get("allocatable") or {}, used, is_known=not is_lost),
            }
        )
    return {
        "lowerNodes": shown,
        "allNodes": len(lower_nodes),
        "expiries": [*expiries, *_served(name, cluster)],
    }


def _served(name: str, cluster: LowerCluster) -> Iterator[dict[str, str]]:
    """Yield a row for the API server's serving certificate, and for that of each virtual node's kubelet API."""
    now = datetime.now(UTC)
    found = certificate(cluster.health.served_certificate if cluster.health is not None else None)
    if found is not None:
        what = "serving certificate of the API server"
        starts, ends = found.not_valid_before_utc, found.not_valid_after_utc
        yield expiry_row(what, Expiry(name, "ServingCertificate", what, ends=ends, starts=starts), now)
    for node in sorted(cluster.nodes):
        labels = {"name": f"kubelet-{node}"}
        if value := prometheus_client.REGISTRY.get_sample_value(_EXPIRATION, labels):
            what, ends = f"kubelet API of {node}", datetime.fromtimestamp(value, UTC)
            yield expiry_row(what, Expiry(name, "ServingCertificate", what, ends=ends, renewed=True), now)


def _ago(seconds: float) -> str:
    """Return the time that many seconds ago (RFC 3339); empty for infinity, which means never."""
    if seconds == float("inf"):
        return ""
    return timestamps.rfc3339(datetime.now(UTC) - timedelta(seconds=seconds))


def _resources(
    allocatable: Mapping[str, str], used: Mapping[str, int], *, is_known: bool
) -> list[dict[str, Any]]:
    shown = [*_RESOURCES, *(name for name in sorted(allocatable) if "/" in name)]
    found = []
    for name in shown:
        total = quantity.of(name, allocatable.get(name, "0"))
        found.append(
            {
                "name": name,
                "used": quantity.readable(name, used.get(name, 0)),
                "total": quantity.readable(name, total),
                "share": round(used.get(name, 0) / total, 4) if total and is_known else None,
            }
        )
    return found


EXPIRIES_FRESH = 60.0
"""Seconds after which the files are read again."""


def expiry_row(name: str, expiry: Expiry, now: datetime) -> dict[str, str]:
    """Return name, end (RFC 3339; empty: never) and state of an expiry, by the limits of ``inspect``."""
    states = {Severity.ERROR: "bad", Severity.WARNING: "wait", Severity.INFO: "wait", None: "good"}
    severity = severity_of(ExpiryLimits(), expiry, now)
    ends = "" if severity is Severity.INFO else timestamps.rfc3339(expiry.ends)
    return {"name": name, "ends": ends, "state": states[severity]}


def credentials_of(cluster: Cluster) -> list[dict[str, str]]:
    """Read the kubeconfig of a lower cluster; return a row (see ``expiry_row``) for each credential in it."""
    try:
        found = of_kubeconfig(cluster.name, cluster.kubeconfig, context=cluster.context, in_cluster=False)
    except ConfigError:
        return []  # The health model reports kubeconfigs that cannot be used.
    now = datetime.now(UTC)
    names = {"ClientCertificate": "client certificate"}
    return [expiry_row(names.get(one.kind, "token"), one, now) for one in found]
