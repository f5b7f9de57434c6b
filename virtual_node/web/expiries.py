"""When the credentials of a lower cluster's kubeconfig end; read again now and then, for the files change."""

from __future__ import annotations

import asyncio

from controller_runtime.api import timestamps
from controller_runtime.errors import ConfigError
from virtual_node.commands.inspect_expiries import of_kubeconfig
from virtual_node.commands.inspection_facts import LEGACY_TOKEN
from virtual_node.config import ClusterConfig

_AGE = 60.0
"""Seconds for which the files are not read again."""


class Expiries:
    """Remembers what kubeconfigs say about their credentials."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, list[dict[str, str]]]] = {}

    async def of(self, cluster: ClusterConfig) -> list[dict[str, str]]:
        """Return name and end (RFC 3339; empty: never) of each credential of a lower cluster."""
        now = asyncio.get_running_loop().time()
        known = self._known.get(cluster.name)
        if known is None or now - known[0] > _AGE:
            self._known[cluster.name] = known = now, await asyncio.to_thread(_read, cluster)
        return known[1]


def _read(cluster: ClusterConfig) -> list[dict[str, str]]:
    try:
        found = of_kubeconfig(cluster.name, cluster.kubeconfig, context=cluster.context, in_cluster=False)
    except ConfigError:
        return []  # the health model reports a kubeconfig that cannot be used
    return [
        {
            "name": "client certificate" if one.kind == "ClientCertificate" else "token",
            "ends": "" if one.kind == LEGACY_TOKEN else timestamps.rfc3339(one.ends),
        }
        for one in found
    ]
