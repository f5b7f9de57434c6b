"""Finds pods of our own components that fail, and why: also why no virtual node is registered, or why none is renewed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from clusterset.model.pod.conditions import condition, is_true
from controller_runtime.apimachinery import timestamps
from virtual_node.config import program
from virtual_node.examine.facts import INSTALLED, Installation
from virtual_node.examine.objects import (
    Json,
    ended,
    is_deleting,
    key,
    labels_of,
    last_seen,
    one_line,
    statuses,
    waiting,
)
from virtual_node.examine.snapshot import Snapshot
from virtual_node.translate.pods.summary import status_word

LABEL_NAME = "app.kubernetes.io/name"
INSTALLED_AS = "virtual-node"
LABEL_PART_OF = "app.kubernetes.io/part-of"
"""Label that does not change with the chart's nameOverride, unlike the name label."""
SELECTOR = f"{LABEL_PART_OF}={INSTALLED_AS}"
"""Label selector of the pods of our components, as the chart labels them."""
SELECTORS = (f"{LABEL_NAME}={INSTALLED_AS}", f"{SELECTOR},{LABEL_NAME}!={INSTALLED_AS}")
"""Label selectors of all our components: those by hand, or of earlier charts, may have only the label with the name."""
REJECTED = "ConfigurationRejected"
"""Reason of the Warning event on a replica's pod while its configuration file is not applied."""
APPLIED = "ConfigurationApplied"
"""Reason of the Normal event that follows when the file is applied."""
_PROBE_FAILED = "Unhealthy"
_PATIENCE = 60.0
"""Seconds that a replica may be starting or not Ready, as during an upgrade."""
_STARTING = frozenset({"ContainerCreating", "PodInitializing"})


def replica_trouble(
    pod: Json, words: str, now: datetime, *, patience: float = _PATIENCE
) -> tuple[str, str] | None:
    """Return cause and next step of a failing component's pod; None: it is Ready, is starting, or has finished.

    Pods that are being deleted, or whose ``restartPolicy`` is not Always, are never reported.

    Args:
        pod: the pod.
        words: the pod's last log line, or its last warning event; empty: unknown.
        now: current time by the API server's clock.
        patience: seconds that a pod may be starting or not Ready.
    """
    status = pod.get("status") or {}
    if is_deleting(pod) or (pod["spec"].get("restartPolicy") or "Always") != "Always":
        return None
    if status.get("phase") == "Succeeded" or is_true(status, "Ready"):
        return None
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    describe = f"kubectl -n {namespace} describe pod {name}"
    for container in statuses(pod):
        state = container.get("state") or {}
        reason = waiting(container).get("reason") or ""
        end = ended(container)
        if reason == "CrashLoopBackOff" or (end.get("exitCode") and not container.get("ready")):
            message = end.get("message") or words or end.get("reason") or "no log"
            cause = f"is in {reason or 'Error'} (exit code {end.get('exitCode', '?')}): {message}"
            previous = " --previous" if not state.get("terminated") else ""
            return one_line(cause), f"kubectl -n {namespace} logs {name} -c {container['name']}{previous}"
        if reason and reason not in _STARTING:
            message = waiting(container).get("message") or words
            if "Image" in reason:
                step = f"correct the image {container.get('image', '')}, its pull secret or the registry"
                return one_line(f"is in {reason}: {message}"), step
            return one_line(f"is in {reason}: {message}"), describe
    if (now - _since(pod)).total_seconds() <= patience:
        return None
    if not pod["spec"].get("nodeName"):
        message = condition(status, "PodScheduled").get("message") or "no scheduler has looked at it"
        return one_line(f"has no node: {message}"), describe
    word, why = status_word(pod)
    why = why or words or condition(status, "Ready").get("message") or ""
    if word == "Running":
        return one_line(f"is not Ready: {why}".rstrip(": ")), f"kubectl -n {namespace} logs {name}"
    return one_line(f"is {word}: {why}".rstrip(": ")), describe


def explanation(events: Iterable[Json]) -> str:
    """Return the message of the newest warning that explains why a replica is not Ready; empty: there is none.

    A failed probe is only an effect, so it counts only without other warnings. A rejected configuration does
    not count if a later one was applied.
    """
    found = sorted(events, key=last_seen)
    applied = max((last_seen(event) for event in found if event.get("reason") == APPLIED), default="")
    warnings = [
        event
        for event in found
        if event.get("type") == "Warning"
        and not (event.get("reason") == REJECTED and last_seen(event) <= applied)
    ]
    causes = [event for event in warnings if event.get("reason") != _PROBE_FAILED] or warnings
    return str(causes[-1].get("message") or "") if causes else ""


def failing(pods: Sequence[Json], now: datetime) -> list[Json]:
    """Return the pods that fail, so that a caller can read the logs of these alone."""
    return [pod for pod in pods if replica_trouble(pod, "", now)]


def _since(pod: Json) -> datetime:
    """Return when a pod's readiness last changed."""
    moment = condition(pod.get("status"), "Ready").get("lastTransitionTime") or pod["metadata"].get(
        "creationTimestamp"
    )
    return timestamps.parse(moment) if moment else datetime.min.replace(tzinfo=UTC)


LABEL_COMPONENT = "app.kubernetes.io/component"
_UNLABELLED = f"none is labelled {LABEL_NAME}={INSTALLED_AS}"


def explained(snapshot: Snapshot) -> tuple[str, str] | None:
    """Return why no process registers or renews virtual nodes, and the next step; None: this was not read."""
    if why := snapshot.upper.unread.get(INSTALLED):
        return f"whether its process runs cannot be seen ({why})", "look where the process runs"
    installation = snapshot.upper.get(INSTALLED)
    return None if installation is None else process_trouble(installation, snapshot.now)


def process_trouble(installation: Installation, now: datetime) -> tuple[str, str]:
    """Return why no virtual node is registered or renewed, as far as this cluster shows, and the next step."""
    processes = list(filter(_runs_virtual_nodes, installation.pods))
    for pod in processes:
        logs = installation.logs.get(key(pod)) or ("",)
        if found := replica_trouble(pod, logs[-1], now, patience=0):
            return f"its pod {key(pod)} {found[0]}", found[1]
    for deployment in filter(_runs_virtual_nodes, installation.deployments):
        wanted = (deployment.get("spec") or {}).get("replicas", 1)
        namespace, name = deployment["metadata"]["namespace"], deployment["metadata"]["name"]
        if wanted == 0:
            return (
                f"Deployment {namespace}/{name} is scaled to 0",
                f"kubectl -n {namespace} scale deployment {name} --replicas=1",
            )
        failed = condition(deployment.get("status"), "ReplicaFailure")
        if failed.get("status") == "True" or not processes:
            return (
                f"Deployment {namespace}/{name} has no pods: {failed.get('message') or _UNLABELLED}",
                f"kubectl -n {namespace} describe deployment {name}",
            )
    if not processes:
        return (
            f"nothing here is labelled {LABEL_NAME}={INSTALLED_AS}",
            f"start it ({program.name('run')} --help), or look where it runs: it need not be in this cluster",
        )
    pod = processes[0]
    logs = f"kubectl -n {pod['metadata']['namespace']} logs {pod['metadata']['name']}"
    return (
        f"its pod {key(pod)} runs, so it has no lower cluster, or cannot register it",
        f"{program.name('lower-cluster')} join NAME --client-kubeconfig FILE; else {logs}",
    )


def _runs_virtual_nodes(one: Json) -> bool:
    """Report whether a pod or Deployment runs virtual nodes; false for the webhook or a `helm test`."""
    component = labels_of(one).get(LABEL_COMPONENT)
    return component in {None, INSTALLED_AS}
