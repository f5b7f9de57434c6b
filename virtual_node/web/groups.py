"""Groups the pods of a workload into one entry with a line for each cause; parses which pods a browser selects.

Does no IO.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

TROUBLE, UNPLACED, STALE, FAILED, STARTING, ENDING, RUNNING, FINISHED = STATES = (
    "trouble",
    "unplaced",
    "stale",
    "failed",
    "starting",
    "ending",
    "running",
    "finished",
)
"""States of a pod, the most urgent first. ``unplaced``: no node yet. ``stale``: the status is from before its
lower cluster stopped answering. ``failed``: phase Failed."""
_RANK = {state: rank for rank, state in enumerate(STATES)}
_MOST_CAUSES = 4
"""Maximum number of causes shown per group; further causes are only counted."""
_WHY_LENGTH = 400
"""Maximum characters of a cause in a list; a pod's own view is not cut."""


@dataclass(slots=True, eq=False)
class Row:
    """One pod in the list.

    Attributes:
        uid: UID of the upper pod.
        shown: data for a browser: ``pod_row`` with uid, cluster and state.
        text: lower-case text that a search matches.
        owner: kind and name of the pod's workload.
        requests: the pod's requests by resource, in the units of ``quantity``; empty: the pod has finished.
    """

    uid: str
    shown: Mapping[str, Any]
    text: str
    owner: tuple[str, str]
    requests: Mapping[str, int] = field(default_factory=dict)

    state: str = field(init=False)
    """One of ``STATES``."""
    group: str = field(init=False)
    """Key of the pod's group: ``namespace/kind/name`` of the workload."""

    def __post_init__(self) -> None:
        """Compute, once per row, the fields that are read for every pod at every request."""
        self.state = str(self.shown["state"])
        self.group = f"{self.shown['namespace']}/{self.owner[0]}/{self.owner[1]}"


def state_of(row: Mapping[str, Any], phase: str) -> str:
    """Return the state of a pod whose cluster answers, from its ``pod_row`` and phase."""
    if phase == "Failed":
        return FAILED
    if row["trouble"]:
        return TROUBLE
    if row["status"] == "Terminating":
        return ENDING
    if row["status"] in {"Completed", "Succeeded"}:
        return FINISHED
    return RUNNING if row["status"] == "Running" else STARTING


class Groups:
    """Collects rows into groups.

    Attributes:
        counts: number of pods by state.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._rows: dict[str, list[Row]] = {}
        self._ranks: dict[str, int] = {}

    def add(self, row: Row) -> None:
        """Add a pod to the group of its workload."""
        key, rank = row.group, _RANK[row.state]
        self.counts[row.state] += 1
        self._rows.setdefault(key, []).append(row)
        self._ranks[key] = min(rank, self._ranks.get(key, rank))

    def __len__(self) -> int:
        return len(self._rows)

    def first(self, limit: int) -> list[str]:
        """Return the keys of at most ``limit`` groups, ordered by worst state, then by key."""
        return sorted(self._rows, key=lambda key: (self._ranks[key], key))[:limit]

    def rows(self, key: str) -> list[Row]:
        """Return the pods of a group, the worst state first."""
        rows = self._rows.get(key, [])
        return sorted(rows, key=lambda row: (_RANK[row.state], str(row.shown["name"])))

    def describe(self, key: str) -> dict[str, Any]:
        """Return a group's data for a browser: workload, counts, causes, and the pod's name if there is one pod."""
        rows = self._rows[key]
        first = rows[0]
        causes = causes_of(rows)
        return {
            "namespace": first.shown["namespace"],
            "kind": first.owner[0],
            "name": first.owner[1],
            "total": len(rows),
            "counts": dict(sorted(Counter(row.state for row in rows).items(), key=lambda one: _RANK[one[0]])),
            "clusters": sorted({str(row.shown["cluster"]) for row in rows} - {""}),
            "restarts": sum(int(row.shown["restarts"]) for row in rows),
            "causes": causes[:_MOST_CAUSES],
            "moreCauses": max(0, len(causes) - _MOST_CAUSES),
            "only": first.shown["name"] if len(rows) == 1 else "",
            "created": min(str(row.shown["created"]) for row in rows),
        }


def causes_of(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return why pods do not run, the most severe cause first, then the most frequent.

    Returns:
        For each cause: state, status (the STATUS column), why, count, and the name of one such pod.
    """
    found: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        # A pod that ran when its cluster last answered needs no line.
        is_explained = row.state == STALE and row.shown["status"] == "Running"
        if row.state not in {RUNNING, FINISHED, ENDING} and not is_explained:
            name = str(row.shown["name"])
            why = _general(str(row.shown["why"]), (row.uid, name))
            found.setdefault((row.state, str(row.shown["status"]), why), []).append(name)
    ordered = sorted(found.items(), key=lambda one: (_RANK[one[0][0]], -len(one[1]), one[0]))
    return [
        {"state": state, "status": status, "why": why[:_WHY_LENGTH], "count": len(names), "pod": min(names)}
        for (state, status, why), names in ordered
    ]


def _general(why: str, own: Iterable[str]) -> str:
    """Replace a pod's UID and name by "…", so that a cause has the same text for all pods of a workload."""
    for name in own:
        if name:
            why = why.replace(name, "…")
    return why


_LONGEST_VALUE = 320
"""Maximum characters of a value; ``namespace/name`` has at most 63 + 1 + 253."""
_GROUPS = 40
"""Default number of groups that are sent."""
_MOST_GROUPS = 400
_PODS = 50
"""Default number of pods of an open group that are sent."""
_MOST_PODS = 500
_MOST_OPEN = 8


@dataclass(frozen=True, slots=True)
class View:
    """A browser's selection of pods, and what is open in it. Empty fields select all pods and open nothing.

    Attributes:
        search: only pods with this lower-case text in the name of the pod, its namespaces, nodes, cluster or owner, or
            in its status or cause.
        cluster: only pods of this lower cluster.
        namespace: only pods of this upper namespace.
        state: only pods of this state.
        groups: number of groups to send.
        pods: number of pods to send of each open group.
        open: keys of the groups whose pods are sent.
        pod: ``namespace/name`` of the pod whose details are sent.
        detail: name of the lower cluster whose details are sent.
    """

    search: str = ""
    cluster: str = ""
    namespace: str = ""
    state: str = ""
    groups: int = _GROUPS
    pods: int = _PODS
    open: tuple[str, ...] = ()
    pod: str = ""
    detail: str = ""

    def has(self, row: Row) -> bool:
        """Report whether all filters except ``state`` select a row."""
        return (
            (not self.namespace or row.shown["namespace"] == self.namespace)
            and (not self.cluster or row.shown["cluster"] == self.cluster)
            and self.search in row.text
        )


def of_query(query: Mapping[str, str]) -> View:
    """Return the view of a URL's query; invalid values are ignored."""

    def text(name: str) -> str:
        return query.get(name, "").strip()[:_LONGEST_VALUE]

    def number(name: str, least: int, most: int) -> int:
        value = query.get(name, "")
        return min(most, max(least, int(value[:9]))) if value.isascii() and value.isdigit() else least

    return View(
        search=text("search").lower(),
        cluster=text("cluster"),
        namespace=text("namespace"),
        state=text("status") if text("status") in STATES else "",
        groups=number("groups", _GROUPS, _MOST_GROUPS),
        pods=number("pods", _PODS, _MOST_PODS),
        open=tuple(key[:_LONGEST_VALUE] for key in query.get("open", "").split(",")[:_MOST_OPEN] if key),
        pod=text("pod"),
        detail=text("detail"),
    )
