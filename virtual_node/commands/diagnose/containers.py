"""Rules about containers that do not run: missing dependencies, images, crashes and probes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from controller_runtime.api.pod.conditions import condition, is_true
from controller_runtime.api.readable import count
from virtual_node.commands.diagnose import advice
from virtual_node.commands.diagnose.facts import (
    DiagnoseFinding,
    PodFacts,
    Rule,
    is_running,
    pod_name,
    pod_namespace,
)
from virtual_node.config import program
from virtual_node.health.objects import statuses

_VOLUMES = frozenset({"FailedMount", "FailedAttachVolume", "ProvisioningFailed"})
"""Event reasons about volumes that a pod waits for."""


def _dependencies(facts: PodFacts) -> Iterator[DiagnoseFinding]:
    for container in statuses(facts.pod):
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") == "CreateContainerConfigError":
            yield DiagnoseFinding(
                0,
                f"An object that the pod references is missing: {waiting.get('message')}.",
                [],
                [
                    f"create it in namespace {pod_namespace(facts)} of the upper cluster; the pod starts by itself"
                ],
            )
            return
    for event in reversed(facts.events):
        if event.get("reason") in _VOLUMES and not is_running(facts.pod):
            message = str(event.get("message") or "")
            steps = advice.missing(message, namespace=pod_namespace(facts))
            yield DiagnoseFinding(1, "A volume of the pod is not there yet.", [message], steps)
            return


def _images(facts: PodFacts) -> Iterator[DiagnoseFinding]:
    for container in statuses(facts.pod):
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in {
            "ErrImagePull",
            "ImagePullBackOff",
            "InvalidImageName",
            "ErrImageNeverPull",
        }:
            yield DiagnoseFinding(
                0,
                f"The lower node cannot pull {container.get('image')}.",
                [waiting.get("message", "")],
                [
                    "is the name right, can lower nodes reach the registry, is the pull secret in the upper namespace?"
                ],
            )
            return


def _crashes(facts: PodFacts) -> Iterator[DiagnoseFinding]:
    for container in statuses(facts.pod):
        state = container.get("state") or {}
        ended = state.get("terminated") or (container.get("lastState") or {}).get("terminated")
        looping = (state.get("waiting") or {}).get("reason") == "CrashLoopBackOff"
        has_ended = "terminated" in state
        if (
            ended
            and (looping or ended.get("exitCode"))
            and (looping or has_ended or not is_running(facts.pod))
        ):
            name = container["name"]
            evidence = [
                f"exit code {ended.get('exitCode')}, {ended.get('reason')}, "
                + count(container.get("restartCount") or 0, "restart"),
                *facts.logs[-5:],
            ]
            title = f"Container {name} {'crashes repeatedly' if looping else _ending(container)}."
            if ended.get("reason") == "OOMKilled":
                title = f"Container {name} needs more memory than its limit."
            previous = " --previous" if looping else ""
            yield DiagnoseFinding(
                0,
                title,
                evidence,
                [f"kubectl -n {pod_namespace(facts)} logs {pod_name(facts)} -c {name}{previous}"],
            )
            return


def _ending(container: Mapping[str, Any]) -> str:
    restarts = container.get("restartCount") or 0
    return f"has failed, after {count(restarts, 'restart')}" if restarts else "has failed"


def _probes(facts: PodFacts) -> Iterator[DiagnoseFinding]:
    if not is_running(facts.pod) or is_true(facts.pod.get("status"), "Ready"):
        return
    for event in reversed(facts.events):
        if event.get("reason") == "Unhealthy":
            yield DiagnoseFinding(1, "A probe fails.", [event.get("message", "")])
            return
    ready = condition(facts.pod.get("status"), "Ready")
    message = ready.get("message", "")
    if "readiness gate" in message:
        yield DiagnoseFinding(1, "A readiness gate is not open.", [message])
    elif ready.get("status") == "False" and is_true(facts.pod.get("status"), "ContainersReady"):
        # kube-controller-manager sets Ready to False without a message (pkg/controller/util/node,
        # MarkPodsNotReady).
        yield DiagnoseFinding(
            1,
            "The pod runs, but is marked not ready because its virtual node was not Ready.",
            ["all its containers are ready; the virtual node corrects this when its heartbeats return"],
            [program.name(f"diagnose node {facts.pod['spec'].get('nodeName')}")],
        )
    elif ready.get("status") == "False":
        yield DiagnoseFinding(1, "The pod runs, and is not ready.", [message] if message else [])


RULES: Sequence[Rule] = (
    _dependencies,
    _images,
    _crashes,
    _probes,
)
