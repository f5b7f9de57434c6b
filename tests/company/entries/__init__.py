"""The software of the suite: one module for each."""

from __future__ import annotations

from tests.company.entries import (
    airflow,
    argo_workflows,
    cert_manager,
    client_go,
    dask,
    descheduler,
    external_dns,
    gitops_engine,
    helm,
    istio,
    java_client,
    jobset,
    k9s,
    kube_state_metrics,
    kuberay,
    kubespawner,
    kueue,
    leaderworkerset,
    metrics_server,
    multikueue,
    prometheus,
    prometheus_operator,
    python_clients,
    spark,
    stern,
    vertical_pod_autoscaler,
)
from tests.company.software import Software

_MODULES = (
    kueue,
    multikueue,
    prometheus,
    prometheus_operator,
    jobset,
    leaderworkerset,
    python_clients,
    dask,
    airflow,
    kubespawner,
    istio,
    metrics_server,
    kube_state_metrics,
    stern,
    descheduler,
    kuberay,
    client_go,
    java_client,
    spark,
    helm,
    cert_manager,
    vertical_pod_autoscaler,
    external_dns,
    k9s,
    argo_workflows,
    gitops_engine,
)
ENTRIES: dict[str, Software] = {one.SOFTWARE.name: one.SOFTWARE for one in _MODULES}
"""All software by name, in the order in which it runs."""
