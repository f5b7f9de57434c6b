"""The stock kube-scheduler's configuration with our extender: two profiles, and only one feels us. Pure.

An extender works for all profiles of a scheduler; real nodes always pass it. ``ignorable`` is false: a scheduler that
cannot ask must not promise what it has not looked at. ``managedResources`` is left out: every pod is asked about.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from multi_scheduler.safe_scheduler.scheduler import PRIORITIES_ONLY

PLAIN_PROFILE = "plain-scheduler"


def scheduler_configuration(
    url: str,
    *,
    kubeconfig: str = "",
    weight: int = 5,
    bind: bool = False,
    leader_elect: bool = False,
    ca_file: str = "",
    cert_file: str = "",
    key_file: str = "",
    timeout: str = "10s",
    agents: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """A KubeSchedulerConfiguration (kubescheduler.config.k8s.io/v1).

    Args:
        url: where the extender is, such as ``http://127.0.0.1:8888``.
        kubeconfig: of the scheduler; empty: in-cluster.
        weight: of our scores among the scheduler's own.
        bind: have the extender bind pods; it has to be started with ``--bind``.
        leader_elect: several scheduler replicas.
        ca_file: CA of an https extender.
        cert_file: the scheduler's client certificate, for an extender that asks for one.
        key_file: its key.
        timeout: how long a call may take; a filter call may wait two seconds for other pods' promises.
        agents: weights by agent, for an extender with ``--safe-scheduler-routes``: the scheduler has an entry for each,
            and ``weight`` is not used. None: one entry for all agents together.
    """
    extender: dict[str, Any] = {
        "urlPrefix": url,
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "preemptVerb": "preempt",
        "weight": weight,
        "enableHTTPS": url.startswith("https://"),
        "nodeCacheCapable": True,
        "ignorable": False,
        "httpTimeout": timeout,
    }
    tls = {"certFile": cert_file, "keyFile": key_file, "caFile": ca_file}
    if ca_file:
        extender["tlsConfig"] = {name: file for name, file in tls.items() if file}
    extenders = [extender]
    if agents:
        extenders = [_entry(extender, name, share) for name, share in agents.items()]
    if bind:
        # One extender at most may bind.
        extenders[0]["bindVerb"] = "bind"
    configuration: dict[str, Any] = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": leader_elect},
        "profiles": [{"schedulerName": "default-scheduler"}, {"schedulerName": PLAIN_PROFILE}],
        "extenders": extenders,
    }
    if kubeconfig:
        configuration["clientConnection"] = {"kubeconfig": kubeconfig, "qps": 500, "burst": 1000}
    return configuration


def _entry(extender: Mapping[str, Any], name: str, weight: int) -> dict[str, Any]:
    """Return the entry of one agent."""
    entry = {**extender, "urlPrefix": f"{extender['urlPrefix']}/scheduler", "weight": weight}
    entry |= {"prioritizeVerb": f"priorities/{name}", "filterVerb": f"predicates/{name}"}
    if name in PRIORITIES_ONLY:
        del entry["filterVerb"]
    if name != "fit":
        del entry["preemptVerb"]
    else:
        entry["preemptVerb"] = "preemption"
    return entry
