"""Reads the expiry times of the credentials in lower clusters' kubeconfigs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from clusterset.config import Cluster
from controller_runtime.apimachinery import timestamps
from controller_runtime.errors import ConfigError
from virtual_node.certificates.expiries import of_kubeconfig
from virtual_node.certificates.expiry import LEGACY_TOKEN, Expiry, ExpiryLimits, limits_of

FRESH = 60.0
"""Seconds after which the files are read again."""


def expiry_row(name: str, one: Expiry, now: datetime) -> dict[str, str]:
    """Return name, end (RFC 3339; empty: never) and state of an expiry, by the limits of ``inspect``."""
    if one.kind == LEGACY_TOKEN:
        return {"name": name, "ends": "", "state": "wait"}
    warning, error = limits_of(ExpiryLimits(), one)
    left = one.ends - now
    state = "bad" if left < max(error, timedelta(0)) else "wait" if left < warning else "good"
    return {"name": name, "ends": timestamps.rfc3339(one.ends), "state": state}


def of_cluster(cluster: Cluster) -> list[dict[str, str]]:
    """Read the kubeconfig of a lower cluster; return a row (see ``expiry_row``) for each credential in it."""
    try:
        found = of_kubeconfig(cluster.name, cluster.kubeconfig, context=cluster.context, in_cluster=False)
    except ConfigError:
        return []  # The health model reports kubeconfigs that cannot be used.
    now = datetime.now(UTC)
    names = {"ClientCertificate": "client certificate"}
    return [expiry_row(names.get(one.kind, "token"), one, now) for one in found]
