"""Creates the stock kube-scheduler's configuration with the extender. No IO.

A scheduler calls its extenders for all profiles; real nodes pass unless an agent bars the pod from them. ``ignorable`` is false, because without the
extender's answer a pod could get a virtual node without room. ``managedResources`` is unset, so that every pod is checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from multi_scheduler.safe_scheduler import PRIORITIES_ONLY


def scheduler_configuration(
    url: str,
    *,
    kubeconfig: str = "",
    weight: int = 5,
    bind: bool = True,
    leader_elect: bool = False,
    ca_file: str = "",
    cert_file: str = "",
    key_file: str = "",
    timeout: str = "10s",
    agents: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Return a KubeSchedulerConfiguration (kubescheduler.config.k8s.io/v1).

    Args:
        url: URL of the extender, such as ``http://127.0.0.1:8888``.
        kubeconfig: path of the scheduler's kubeconfig; empty: in-cluster configuration.
        weight: weight of the extender's scores among the scheduler's own.
        bind: whether the extender binds pods, so that no pod is bound without reserved room; the extender needs ``--bind``.
        leader_elect: whether schedulers elect a leader, for several replicas.
        ca_file: CA of an https extender.
        cert_file: the scheduler's client certificate, for an extender that requires one.
        key_file: key of that certificate.
        timeout: limit of a call to the extender; a filter call may wait two seconds for other pods' reservations.
        agents: weights by agent, for an extender with ``--safe-scheduler-routes``: each agent gets its own entry, and
            ``weight`` is ignored. None: one entry for all agents together.
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
        # At most one extender may bind.
        extenders[0]["bindVerb"] = "bind"
    configuration: dict[str, Any] = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": leader_elect},
        "profiles": [{"schedulerName": "default-scheduler"}],
        "extenders": extenders,
    }
    if kubeconfig:
        configuration["clientConnection"] = {"kubeconfig": kubeconfig, "qps": 500, "burst": 1000}
    return configuration


def _entry(extender: Mapping[str, Any], name: str, weight: int) -> dict[str, Any]:
    entry = {**extender, "urlPrefix": f"{extender['urlPrefix']}/scheduler", "weight": weight}
    entry |= {"prioritizeVerb": f"priorities/{name}", "filterVerb": f"predicates/{name}"}
    if name in PRIORITIES_ONLY:
        del entry["filterVerb"]
    if name != "fit":
        del entry["preemptVerb"]
    else:
        entry["preemptVerb"] = "preemption"
    return entry
