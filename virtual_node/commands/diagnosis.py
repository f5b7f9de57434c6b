"""Why is a pod not running? Facts in, findings out: pure functions, the first finding is the verdict.

Each rule looks at the facts and says what it sees, how sure it is, and what to do next. Rules know nothing of each
other; the ranking puts what stops the pod before what follows from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from controller_runtime.api import cluster_selector, names, timestamps
from virtual_node.web.rows import status_word

_STALE_SECONDS = 60.0
_LONG = 120.0


@dataclass(frozen=True, slots=True)
class Facts:
    """What was gathered about one pod."""

    pod: Mapping[str, Any]
    node: Mapping[str, Any] | None
    """The virtual node that it is bound to."""
    heartbeat_seconds: float | None
    lower: Mapping[str, Any] | None
    """Its lower pod, as far as the lower cluster was asked."""
    events: Sequence[Mapping[str, Any]]
    virtual_nodes: Sequence[Mapping[str, Any]]
    now: datetime
    asked_below: bool = False
    """Whether the lower cluster was asked at all."""
    logs: Sequence[str] = field(default_factory=tuple)
    """The last lines of the container that fails."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, or the one thing that is right."""

    rank: int
    """0: this alone stops the pod; higher: follows from something, or may be transient."""
    title: str
    evidence: Sequence[str] = ()
    next_steps: Sequence[str] = ()


Rule = Callable[[Facts], Iterator[Finding]]


def diagnose(facts: Facts) -> list[Finding]:
    """Everything that is found, the verdict first; never empty."""
    found = sorted((finding for rule in _RULES for finding in rule(facts)), key=lambda one: one.rank)
    if found:
        return found
    word, why = status_word(facts.pod)
    if word == "Running":
        return [Finding(9, "The pod is running; nothing is wrong that can be seen from here.")]
    return [
        Finding(
            9,
            f"The pod is {word}; nothing explains it yet.",
            [why] if why else [],
            [f"kubectl -n {_namespace(facts)} describe pod {_name(facts)}"],
        )
    ]


def _unscheduled(facts: Facts) -> Iterator[Finding]:
    if facts.pod["spec"].get("nodeName"):
        return
    if gates := [gate["name"] for gate in facts.pod["spec"].get("schedulingGates") or ()]:
        yield Finding(
            0, f"Scheduling gates hold the pod back: {', '.join(gates)}.", [], ["find out who lifts them"]
        )
        return
    said = _condition(facts.pod, "PodScheduled").get("message", "")
    evidence = [f"kube-scheduler: {said}"] if said else []
    if not facts.virtual_nodes:
        yield Finding(0, "There is no virtual node in this cluster.", evidence, ["virtual-node doctor"])
        return
    labels = facts.pod["metadata"].get("labels") or {}
    selector = facts.pod["spec"].get("nodeSelector") or {}
    known = [node["metadata"].get("labels") or {} for node in facts.virtual_nodes]
    lost = {key: value for key, value in selector.items() if not any(one.get(key) == value for one in known)}
    if lost and labels.get(names.LABEL_VIRTUAL_POD) != "true":
        yield Finding(
            0,
            f"No virtual node has {_pairs(lost)}, and the pod is not labelled {names.LABEL_VIRTUAL_POD}=true: "
            "the webhook leaves its selector in the upper cluster.",
            evidence,
            [f"label the pod's template {names.LABEL_VIRTUAL_POD}=true"],
        )
    elif lost:
        yield Finding(
            0,
            f"No virtual node has {_pairs(lost)}: the webhook has not moved the selector. Was it down, or are these "
            "keys in its --ignore-selector-keys?",
            evidence,
            ["kubectl get mutatingwebhookconfigurations", "virtual-node doctor"],
        )
    elif "lower cluster" in said:
        yield Finding(0, "No lower cluster has a node for the pod.", evidence, ["virtual-node status"])
    elif "untolerated taint" in said:
        yield Finding(
            0,
            "The pod does not tolerate the virtual nodes' taint.",
            evidence,
            [
                f"tolerate {names.TAINT_PROVIDER}, or label the pod {names.LABEL_VIRTUAL_POD}=true (the webhook does it)"
            ],
        )
    elif "Insufficient" in said:
        yield Finding(0, "No virtual node has enough left.", evidence, ["virtual-node status"])
    elif said:
        yield Finding(1, "The upper scheduler finds no node.", evidence)


def _selector(facts: Facts) -> Iterator[Finding]:
    text = (facts.pod["metadata"].get("annotations") or {}).get(names.ANNOTATION_CLUSTER_SELECTOR)
    if text:
        try:
            cluster_selector.parse(text)
        except ValueError as error:
            yield Finding(
                0, "The clusterSelector annotation cannot be read, and is not applied.", [str(error)]
            )


def _node(facts: Facts) -> Iterator[Finding]:
    name = facts.pod["spec"].get("nodeName")
    if not name:
        return
    if facts.node is None:
        yield Finding(0, f"The pod is bound to {name}, which does not exist.", [], ["virtual-node status"])
        return
    ready = _condition(facts.node, "Ready")
    if ready.get("status") != "True":
        evidence = [f"{ready.get('reason', '?')}: {ready.get('message', '')}"]
        yield Finding(0, f"The virtual node {name} is not Ready.", evidence, ["virtual-node status -o wide"])
    elif facts.heartbeat_seconds is not None and facts.heartbeat_seconds > _STALE_SECONDS:
        yield Finding(
            0,
            f"The virtual node {name} has not been heard of for {facts.heartbeat_seconds:.0f} s: is its process running?",
        )


def _admission(facts: Facts) -> Iterator[Finding]:
    refused = _condition(facts.pod, names.CONDITION_ADMITTED)
    if refused.get("status") != "False":
        return
    titles = {
        "ExceededQuota": "A ResourceQuota of the lower cluster is used up.",
        "PodSecurity": "Pod Security in the lower cluster does not admit the pod.",
        "NotAllowed": "This lower cluster's policy keeps the pod out.",
    }
    title = titles.get(refused.get("reason", ""), "The lower cluster refuses the pod.")
    yield Finding(0, title, [refused.get("message", "")])


def _conflict(facts: Facts) -> Iterator[Finding]:
    for event in facts.events:
        if event.get("reason") == "NameConflict" and facts.lower is None:
            yield Finding(
                0, "The lower cluster has a pod of that name that is not ours.", [event.get("message", "")]
            )
            return


def _dependencies(facts: Facts) -> Iterator[Finding]:
    for container in _statuses(facts.pod):
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") == "CreateContainerConfigError":
            yield Finding(
                0,
                f"Something that the pod names is missing: {waiting.get('message')}.",
                [],
                [
                    f"create it in namespace {_namespace(facts)} of the upper cluster; the pod starts by itself"
                ],
            )
            return
    for event in reversed(facts.events):
        if event.get("reason") in {"FailedMount", "FailedAttachVolume"} and not _is_running(facts.pod):
            yield Finding(1, "A volume of the pod is not there yet.", [event.get("message", "")])
            return


def _scheduled_below(facts: Facts) -> Iterator[Finding]:
    if not facts.pod["spec"].get("nodeName"):
        return
    scheduled = _condition(facts.pod, "PodScheduled")
    if scheduled.get("status") == "False":
        yield Finding(
            0,
            "The lower scheduler finds no node for the pod.",
            [f"{scheduled.get('reason')}: {scheduled.get('message', '')}"],
            [
                "run the descheduler (it moves the pod), or the multi-scheduler (it looks before the pod is bound)"
            ],
        )


def _images(facts: Facts) -> Iterator[Finding]:
    for container in _statuses(facts.pod):
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in {
            "ErrImagePull",
            "ImagePullBackOff",
            "InvalidImageName",
            "ErrImageNeverPull",
        }:
            yield Finding(
                0,
                f"The lower node cannot pull {container.get('image')}.",
                [waiting.get("message", "")],
                [
                    "is the name right, can lower nodes reach the registry, is the pull secret in the upper namespace?"
                ],
            )
            return


def _crashes(facts: Facts) -> Iterator[Finding]:
    for container in _statuses(facts.pod):
        state = container.get("state") or {}
        ended = state.get("terminated") or (container.get("lastState") or {}).get("terminated")
        looping = (state.get("waiting") or {}).get("reason") == "CrashLoopBackOff"
        if ended and (looping or ended.get("exitCode")) and (looping or not _is_running(facts.pod)):
            name = container["name"]
            evidence = [
                f"exit code {ended.get('exitCode')}, {ended.get('reason')}, {container.get('restartCount', 0)} restarts",
                *facts.logs[-5:],
            ]
            title = f"Container {name} {'crashes again and again' if looping else 'has failed'}."
            if ended.get("reason") == "OOMKilled":
                title = f"Container {name} needs more memory than its limit."
            previous = " --previous" if looping else ""
            yield Finding(
                0,
                title,
                evidence,
                [f"kubectl -n {_namespace(facts)} logs {_name(facts)} -c {name}{previous}"],
            )
            return


def _probes(facts: Facts) -> Iterator[Finding]:
    if not _is_running(facts.pod) or _condition(facts.pod, "Ready").get("status") == "True":
        return
    for event in reversed(facts.events):
        if event.get("reason") == "Unhealthy":
            yield Finding(1, "A probe fails.", [event.get("message", "")])
            return
    gates = _condition(facts.pod, "Ready").get("message", "")
    if "readiness gate" in gates:
        yield Finding(1, "A readiness gate is not open.", [gates])


def _terminating(facts: Facts) -> Iterator[Finding]:
    since = facts.pod["metadata"].get("deletionTimestamp")
    if not since:
        return
    waited = (facts.now - timestamps.parse(since)).total_seconds()
    if waited < _LONG:
        return
    if finalizers := facts.pod["metadata"].get("finalizers"):
        yield Finding(
            0, f"The pod is held by finalizers: {', '.join(finalizers)}.", [], ["who was to remove them?"]
        )
    elif facts.lower is not None and (held := facts.lower["metadata"].get("finalizers")):
        yield Finding(0, f"The lower pod is held by finalizers: {', '.join(held)}.")
    else:
        yield Finding(
            1, f"The pod should have ended {waited:.0f} s ago; its lower cluster has not said that it has."
        )


def _lost(facts: Facts) -> Iterator[Finding]:
    status = facts.pod.get("status") or {}
    if status.get("phase") == "Failed" and status.get("reason") == "LowerPodDeleted":
        yield Finding(0, "Somebody deleted the pod in the lower cluster.", [status.get("message", "")])
    elif (
        facts.asked_below
        and facts.lower is None
        and facts.pod["spec"].get("nodeName")
        and not status.get("reason")
    ):
        yield Finding(2, "There is no lower pod yet.", [], ["look at the virtual node's log"])


_RULES: Sequence[Rule] = (
    _unscheduled, _selector, _node, _admission, _conflict, _dependencies, _scheduled_below, _images, _crashes,
    _probes, _terminating, _lost,
)  # fmt: skip


def _condition(thing: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    conditions = (thing.get("status") or {}).get("conditions") or ()
    return next((one for one in conditions if one["type"] == kind), {})


def _statuses(pod: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for kind in ("initContainerStatuses", "containerStatuses"):
        yield from (pod.get("status") or {}).get(kind) or ()


def _is_running(pod: Mapping[str, Any]) -> bool:
    return bool((pod.get("status") or {}).get("phase") == "Running")


def _namespace(facts: Facts) -> str:
    return str(facts.pod["metadata"]["namespace"])


def _name(facts: Facts) -> str:
    return str(facts.pod["metadata"]["name"])


def _pairs(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in labels.items())
