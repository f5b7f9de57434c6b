"""Keeps the last hour of each lower cluster in memory: its number of pods and its mirroring lag."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from virtual_node import metrics

INTERVAL = 30.0
"""Seconds between two samples."""
_SAMPLES = 120
"""Number of samples of one hour."""
_SHARE = 0.99

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
    return next((bound for bound in finite if counts[bound] >= _SHARE * total), finite[-1])
