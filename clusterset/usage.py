"""Settings of measured usage, which the multi-scheduler and the annotator read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from controller_runtime.apimachinery.decoding import ConfigStruct

Kind = Literal["None", "MetricsAPI", "Summary", "Resource", "Prometheus", "Annotations"]
_SERVICE = re.compile(r"[a-z0-9-]+/(https?:)?[a-z0-9-]+(:[a-z0-9-]+)?", re.ASCII)
_RATE = 'sum by (node) (rate({metric}{{id="/"}}[1m]))'


def _share(metric: str) -> str:
    return f"100 * {_RATE.format(metric=metric)}"


_Percent = Annotated[float, Meta(gt=0, le=100)]


class Thresholds(ConfigStruct):
    """Thresholds from which a node is under pressure, for the averages over 10 and 60 seconds."""

    cpu: _Percent = 50.0
    """Percent of time in which some tasks wait for a CPU. Counts only while more than 70 % of the CPUs are in use."""
    memory: _Percent = 10.0
    """Percent of time in which all tasks wait for memory."""
    io: _Percent = 40.0
    """Percent of time in which all tasks wait for IO."""


class PrometheusConfig(ConfigStruct):
    """Address of Prometheus, and the queries. A query returns one value per node."""

    service: str = ""
    """A Service of the lower cluster, reached through its API server: ``namespace/name:port``."""
    url: str = ""
    """URL that the multi-scheduler reaches directly, instead of ``service``."""
    token_file: str = ""
    """A file with a bearer token for ``url``."""
    node_label: str = "node"
    """Label of the query's results that has the node's name."""
    cpu: str = _RATE.format(metric="container_cpu_usage_seconds_total")
    """CPUs in use."""
    memory: str = 'sum by (node) (container_memory_working_set_bytes{id="/"})'
    """Bytes in use."""
    cpu_pressure: str = _share("container_pressure_cpu_waiting_seconds_total")
    """Percent of the last minute in which some tasks waited for a CPU; empty: not queried."""
    memory_pressure: str = _share("container_pressure_memory_stalled_seconds_total")
    """Percent of the last minute in which all tasks waited for memory; empty: not queried."""
    io_pressure: str = _share("container_pressure_io_stalled_seconds_total")
    """Percent of the last minute in which all tasks waited for IO; empty: not queried."""


class UsageConfig(ConfigStruct):
    """Source of the usage of lower nodes, and how long a value is valid."""

    source: Kind = "None"
    """MetricsAPI: ``metrics.k8s.io``, as served by metrics-server. Summary: the kubelets' Summary API, with pressure (PSI).
    Resource: the kubelets' ``/metrics/resource``. Prometheus: queries. Annotations: those of lower nodes. None: usage is
    unknown, and scores are neutral."""
    interval_seconds: Annotated[int, Meta(ge=1)] = 15
    """Time between two reads of the same node."""
    window: Annotated[int, Meta(ge=1, le=1000)] = 60
    """Number of samples over which mean and deviation are computed."""
    max_age_seconds: Annotated[int, Meta(ge=1)] = 120
    """Age from which a node's usage counts as unknown."""
    prometheus: PrometheusConfig = msgspec.field(default_factory=PrometheusConfig)
    """Settings for source Prometheus."""
    pressure: Thresholds = msgspec.field(default_factory=Thresholds)
    """When a node is under pressure."""


def problems(where: str, config: UsageConfig) -> Iterator[str]:
    """Yield what is wrong with a setting beyond its types, each as ``field: problem``."""
    prometheus = config.prometheus
    if config.source != "Prometheus":
        return
    if bool(prometheus.service) == bool(prometheus.url):
        yield f"{where}.prometheus: give either service or url"
    elif prometheus.service and not _SERVICE.fullmatch(prometheus.service):
        yield f"{where}.prometheus.service: {prometheus.service!r} is not namespace/name:port"
