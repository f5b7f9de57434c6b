"""The stock kube-scheduler's configuration with our extender: two profiles, and only one feels us. Pure.

An extender works for all profiles of a scheduler; real nodes always pass it. ``ignorable`` is false: a scheduler that
cannot ask must not promise what it has not looked at. ``managedResources`` is left out: every pod is asked about.
"""

from __future__ import annotations

from typing import Any

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
    if bind:
        extender["bindVerb"] = "bind"
    tls = {"certFile": cert_file, "keyFile": key_file, "caFile": ca_file}
    if ca_file:
        extender["tlsConfig"] = {name: file for name, file in tls.items() if file}
    configuration: dict[str, Any] = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": leader_elect},
        "profiles": [{"schedulerName": "default-scheduler"}, {"schedulerName": PLAIN_PROFILE}],
        "extenders": [extender],
    }
    if kubeconfig:
        configuration["clientConnection"] = {"kubeconfig": kubeconfig, "qps": 500, "burst": 1000}
    return configuration
