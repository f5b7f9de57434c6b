"""Why the virtual node's process does not run, as far as the upper cluster knows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from virtual_node import program
from virtual_node.commands.doctoring.facts import (
    INSTALLED_AS,
    LABEL_NAME,
    Installation,
    Json,
    condition,
    key,
)
from virtual_node.web.rows import status_word

_UNLABELLED = f"none is labelled {LABEL_NAME}={INSTALLED_AS}"
_STARTING = frozenset({"ContainerCreating", "PodInitializing"})
_STUCK = _STARTING | {"Pending", "Failed", "Evicted", "Unknown"}


def installation_trouble(installation: Installation) -> tuple[str, str]:
    """Why the process does not run, as far as this cluster knows, and what to do."""
    for pod in installation.pods:
        for found in _pod_trouble(pod, installation.logs.get(key(pod)) or ()):
            return found
    for deployment in installation.deployments:
        wanted = (deployment.get("spec") or {}).get("replicas", 1)
        namespace, name = deployment["metadata"]["namespace"], deployment["metadata"]["name"]
        if wanted == 0:
            return (
                f"Deployment {namespace}/{name} is scaled to 0",
                f"kubectl -n {namespace} scale deployment {name} --replicas=1",
            )
        failed = condition(deployment, "ReplicaFailure")
        if failed.get("status") == "True" or not installation.pods:
            return (
                f"Deployment {namespace}/{name} has no pods: {failed.get('message') or _UNLABELLED}",
                f"kubectl -n {namespace} describe deployment {name}",
            )
    if not installation.pods:
        return (
            f"nothing here is labelled {LABEL_NAME}={INSTALLED_AS}",
            f"start it ({program.name('run')} --help), or look where it runs: it need not be in this cluster",
        )
    pod = installation.pods[0]
    return (
        f"its pod {key(pod)} runs all the same",
        f"kubectl -n {pod['metadata']['namespace']} logs {pod['metadata']['name']}",
    )


def _pod_trouble(pod: Json, logs: Sequence[str]) -> Iterator[tuple[str, str]]:
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    status = pod.get("status") or {}
    if status.get("phase") == "Pending" and not pod["spec"].get("nodeName"):
        said = condition(pod, "PodScheduled").get("message") or "no scheduler has looked at it"
        yield f"its pod {namespace}/{name} has no node: {said}", f"kubectl -n {namespace} describe pod {name}"
        return
    word, why = status_word(pod)
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        state = container.get("state") or {}
        reason = (state.get("waiting") or {}).get("reason") or ""
        ended = state.get("terminated") or (container.get("lastState") or {}).get("terminated") or {}
        if reason == "CrashLoopBackOff" or (ended.get("exitCode") and not container.get("ready")):
            last = logs[-1] if logs else ""
            said = " ".join(
                str(ended.get("message") or last or ended.get("reason") or "no last words").split()
            )
            code = ended.get("exitCode", "?")
            yield (
                f"its pod {namespace}/{name} is in {reason or word} (exit code {code}): {said}",
                f"kubectl -n {namespace} logs {name} -c {container['name']} --previous",
            )
        elif reason and reason not in _STARTING:
            said = (state.get("waiting") or {}).get("message") or why
            yield (
                f"its pod {namespace}/{name} is in {reason}: {said}",
                f"correct the image {container.get('image', '')}, its pull secret or the registry"
                if "Image" in reason
                else f"kubectl -n {namespace} describe pod {name}",
            )
    if word in _STUCK:
        yield (
            f"its pod {namespace}/{name} is {word} {why}".rstrip(),
            f"kubectl -n {namespace} describe pod {name}",
        )
