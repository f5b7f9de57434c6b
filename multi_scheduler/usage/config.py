"""Settings of measured usage, and the source that they select."""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from controller_runtime.client.client import Client
from controller_runtime.errors import ConfigError
from multi_scheduler.formulas.pressure import Thresholds
from multi_scheduler.usage import kubelets
from multi_scheduler.usage.feed import Source
from multi_scheduler.usage.metrics_api import MetricsApi
from multi_scheduler.usage.prometheus import Prometheus, PrometheusConfig

Kind = Literal["None", "MetricsAPI", "Summary", "Resource", "Prometheus", "Annotations"]
_SERVICE = re.compile(r"[a-z0-9-]+/(https?:)?[a-z0-9-]+(:[a-z0-9-]+)?", re.ASCII)


class UsageConfig(
    msgspec.Struct, rename="camel", forbid_unknown_fields=True, omit_defaults=True, kw_only=True
):
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


def make_source(config: UsageConfig, client: Client) -> Source | None:
    """Return the source of a lower cluster's usage; None: usage is not read.

    Raises:
        ConfigError: the address of Prometheus is missing or wrong.
    """
    match config.source:
        case "MetricsAPI":
            return MetricsApi(client)
        case "Summary":
            return kubelets.Summary(client)
        case "Resource":
            return kubelets.Resource(client)
        case "Prometheus":
            return Prometheus(config.prometheus, client)
        case _:
            return None


def check(config: UsageConfig, where: str) -> None:
    """Validate the rules that the types do not express.

    Raises:
        ConfigError: a setting is wrong; the message names it.
    """
    found = config.prometheus
    if config.source != "Prometheus":
        return
    if bool(found.service) == bool(found.url):
        raise ConfigError(f"{where}.prometheus: give either service or url")
    if found.service and not _SERVICE.fullmatch(found.service):
        raise ConfigError(f"{where}.prometheus.service: {found.service!r} is not namespace/name:port")
