"""Creates the source of a lower cluster's usage."""

from __future__ import annotations

from clusterset.usage import UsageConfig
from controller_runtime.client.client import Client
from multi_scheduler.usage import kubelets
from multi_scheduler.usage.feed import Source
from multi_scheduler.usage.metrics_api import MetricsApi
from multi_scheduler.usage.prometheus import Prometheus


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
