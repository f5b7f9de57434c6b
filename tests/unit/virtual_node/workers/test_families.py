"""The metrics of several processes on one page."""

from __future__ import annotations

import math

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, PlatformCollector, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from virtual_node.workers import encoded, merged


def _registry(count: int) -> CollectorRegistry:
    registry = CollectorRegistry()
    Counter("pods_total", "Pods.", ["cluster"], registry=registry).labels("a").inc(count)
    Gauge("expiry", "A time.", registry=registry).set(math.inf)
    Histogram("seconds", "Times.", buckets=(1,), registry=registry).observe(count)
    PlatformCollector(registry=registry)
    return registry


def test_samples_of_workers_have_their_number_and_one_family_each():
    own = _registry(0)
    pages = {1: encoded(_registry(1)), 2: encoded(_registry(2))}
    for _ in range(2):  # a second scrape shows the same
        text = generate_latest(merged(own, pages)).decode()
        for line in (
            'pods_total{cluster="a"} 0.0',
            'pods_total{cluster="a",worker="1"} 1.0',
            'pods_total{cluster="a",worker="2"} 2.0',
            'expiry{worker="2"} +Inf',
            'seconds_bucket{le="1.0",worker="1"} 1.0',
            'seconds_bucket{le="1.0",worker="2"} 0.0',
            "# TYPE pods_total counter",
            "# TYPE seconds histogram",
        ):
            assert text.splitlines().count(line) == 1, (line, text)
        assert text.count("\npython_info{") == 3
    assert generate_openmetrics(merged(own, pages)).decode().count("# TYPE pods counter") == 1


def test_a_worker_that_does_not_answer_is_left_out():
    own = _registry(0)
    assert generate_latest(merged(own, {})) == generate_latest(own)
