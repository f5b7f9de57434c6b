"""Rules about containers that do not run: missing dependencies, images, crashes and probes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from clusterset.model.pod.conditions import condition, is_sidecar, is_true
from controller_runtime.apimachinery.readable import count
from virtual_node.config import program
from virtual_node.examine import messages
from virtual_node.examine.codes import Code
from virtual_node.examine.engine import detail
from virtual_node.examine.finding import Finding, Findings
from virtual_node.examine.objects import ended, statuses, waiting
from virtual_node.examine.pod_view import PodView, Stage
from virtual_node.translate.pods.containers import FINISHES_AFTER

_VOLUMES = frozenset({"FailedMount", "FailedAttachVolume", "ProvisioningFailed"})
"""Event reasons about volumes that a pod waits for."""
_IMAGES = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
_NOT_CREATED = frozenset({"CreateContainerError", "RunContainerError", "StartError", "ContainerCannotRun"})
"""Reasons of waiting or terminated containers whose process the runtime could not start."""
_MISSING = re.compile(r"not found|couldn't find key|non-existent")
_OBJECT = re.compile(r"(?:configmap|secret) \S{1,255} not found|references non-existent")
_NO_FILE = re.compile(r"executable file not found|no such file or directory")
_IMAGE_STEPS = {
    Code.IMAGE_NOT_FOUND: "correct the name or tag of the image, or push it",
    Code.IMAGE_AUTH: "is the pull secret in the upper namespace and valid for this registry? Registries also refuse names "
    "that do not exist",
    Code.IMAGE_NETWORK: "can lower nodes reach the registry, and do they trust its certificate?",
    Code.IMAGE_NAME: "correct the name of the image",
    Code.IMAGE_PULL: "is the name right, can lower nodes reach the registry, is the pull secret in the upper namespace?",
}
_EXITS = {
    0: (
        Code.EXITED,
        "it ends without an error, but its pod restarts it: it must not end, or run it as a Job",
    ),
    126: (Code.COMMAND_NOT_EXECUTABLE, "the command is not executable"),
    127: (Code.COMMAND_NOT_FOUND, "the command was not found"),
    134: (Code.EXIT_CODE, "SIGABRT: the program aborted"),
    137: (
        Code.KILLED,
        "SIGKILL, but not for its memory limit: it did not end in its grace period, or the node killed it",
    ),
    139: (Code.SEGMENTATION_FAULT, "SIGSEGV: a segmentation fault"),
    143: (Code.SIGTERM, "SIGTERM: it was asked to end"),
}
"""Code and meaning of exit codes: those of a shell, and 128 plus the signal."""
_NAMED = re.compile(r"^containers with [a-z ]{1,40}: \[([^]]{1,2000})\]")
"""A kubelet's message about containers that are not ready or not complete."""
_PROBES = {"liveness": Code.LIVENESS, "startup": Code.STARTUP, "readiness": Code.READINESS}


_STARTED = (Stage.ALIVE, Stage.FAILED)


@detail(Code.OBJECT_MISSING, Code.CONTAINER_CONFIG, Code.VOLUME, Code.SANDBOX, stages=_STARTED)
def dependencies(view: PodView) -> Findings:
    """Yield what a container, or the pod's sandbox, needs and does not get."""
    for container in statuses(view.pod):
        if waiting(container).get("reason") != "CreateContainerConfigError":
            continue
        message = str(waiting(container).get("message") or "")
        if _MISSING.search(message):
            title = f"An object that the pod references is missing: {message}."
            step = f"create it in namespace {view.namespace} of the upper cluster; the pod starts by itself"
            yield view.finding(Code.OBJECT_MISSING, title, next_steps=[step])
        else:
            title = f"The lower node refuses the configuration of container {container['name']}."
            step = "correct the container in the pod's template"
            yield view.finding(Code.CONTAINER_CONFIG, title, [message], [step])
        return
    if (view.pod.get("status") or {}).get("phase") not in {None, "Pending"}:
        return
    reason, message = view.newest(*_VOLUMES, "FailedCreatePodSandBox")
    if reason in _VOLUMES:
        code = Code.OBJECT_MISSING if _OBJECT.search(message) else Code.VOLUME
        steps = messages.missing_steps(message, namespace=view.namespace)
        yield view.finding(code, "A volume of the pod is not there yet.", [message], steps, rank=1)
    elif reason:
        title = "The lower node cannot create the pod's sandbox and network."
        step = "check the network plugin (CNI) and the container runtime of the lower node"
        yield view.finding(Code.SANDBOX, title, [message], [step], rank=1)


@detail(*_IMAGE_STEPS, stages=_STARTED)
def images(view: PodView) -> Findings:
    """Yield why an image cannot be pulled."""
    for container in statuses(view.pod):
        reason = waiting(container).get("reason")
        if reason not in _IMAGES:
            continue
        image, evidence = container.get("image"), [str(waiting(container).get("message") or "")]
        # Before Kubernetes 1.31 the message of ImagePullBackOff has no cause.
        pulled = [str(event.get("message")) for event in view.events if event.get("reason") == "Failed"]
        evidence += [text for text in pulled if "pull image" in text and str(image) in text][-1:]
        code = Code.IMAGE_NAME if reason == "InvalidImageName" else messages.image("\n".join(evidence))
        yield view.finding(code, f"The lower node cannot pull {image}.", evidence, [_IMAGE_STEPS[code]])
        return


@detail(*(Code.CANNOT_START, Code.COMMAND_NOT_FOUND, Code.COMMAND_NOT_EXECUTABLE), stages=_STARTED)
def not_created(view: PodView) -> Findings:
    """Yield a container whose process the runtime could not start."""
    for container in statuses(view.pod):
        state = container.get("state") or {}
        for each in (waiting(container), ended(container) if "running" not in state else {}):
            message = str(each.get("message") or "")
            if each.get("reason") in _NOT_CREATED:
                code = Code.CANNOT_START
                if _NO_FILE.search(message):
                    code = Code.COMMAND_NOT_FOUND
                elif "permission denied" in message:
                    code = Code.COMMAND_NOT_EXECUTABLE
                title = f"The command of container {container['name']} cannot be started."
                steps = ["correct command, args or mounts in the pod's template, or the image"]
                yield view.finding(code, title, [message], steps)
                return


@detail(Code.OOM_KILLED, Code.LIVENESS, Code.STARTUP, *(code for code, _ in _EXITS.values()), stages=_STARTED)
def crashes(view: PodView) -> Findings:
    """Yield the first container that crashes repeatedly or has failed."""
    for container in statuses(view.pod):
        end, is_over = ended(container), "terminated" in (container.get("state") or {})
        looping = waiting(container).get("reason") == "CrashLoopBackOff"
        has_failed = end.get("exitCode") and (is_over or not view.is_running)
        if not end or not (looping or has_failed) or _runs_again(view.pod, container):
            continue
        name, code, meaning = container["name"], *_cause(view, container, end)
        evidence = [
            f"exit code {end.get('exitCode')}, {end.get('reason')}, "
            + count(container.get("restartCount") or 0, "restart"),
            *([meaning] if meaning else []),
            *view.logs[-5:],
        ]
        title = f"Container {name} {'crashes repeatedly' if looping else _ending(container)}."
        if code is Code.OOM_KILLED:
            title = f"Container {name} needs more memory than its limit."
        previous = " --previous" if looping else ""
        steps = [f"kubectl -n {view.namespace} logs {view.name} -c {name}{previous}"]
        yield view.finding(code, title, evidence, steps)
        return


def _runs_again(pod: Mapping[str, Any], container: Mapping[str, Any]) -> bool:
    """Report whether a container runs; False for an init container, which holds the pod back while it runs."""
    initial = {each["name"] for each in pod["spec"].get("initContainers") or () if not is_sidecar(each)}
    return "running" in (container.get("state") or {}) and container["name"] not in initial


def _cause(view: PodView, container: Mapping[str, Any], end: Mapping[str, Any]) -> tuple[Code, str]:
    """Return why a container ended, and what that means; empty: OOMKilled, or an exit code of the program's own."""
    if end.get("reason") == "OOMKilled":
        return Code.OOM_KILLED, ""
    for event in reversed(view.events):
        message = str(event.get("message") or "")
        for probe in ("liveness", "startup") if event.get("reason") == "Killing" else ():
            if f"Container {container['name']} failed {probe}" in message:
                return _PROBES[probe], f"the kubelet restarts it because its {probe} probe fails"
    return _EXITS.get(end.get("exitCode", -1), (Code.EXIT_CODE, ""))


def _ending(container: Mapping[str, Any]) -> str:
    restarts = container.get("restartCount") or 0
    return f"has failed, after {count(restarts, 'restart')}" if restarts else "has failed"


@detail(
    *(Code.READINESS_GATE, Code.LOWER_NODE_NOT_READY, Code.NODE_WAS_NOT_READY, Code.NOT_READY),
    *_PROBES.values(),
    stages=_STARTED,
)
def probes(view: PodView) -> Findings:
    """Yield why a running pod is not ready."""
    status = view.pod.get("status") or {}
    if not view.is_running or is_true(status, "Ready") or has_completed_partly(view.pod):
        return
    failed, probe = view.newest("Unhealthy")
    ready = condition(status, "Ready")
    message = ready.get("message", "")
    if failed:
        code = _PROBES.get(probe.partition(" ")[0].lower(), Code.READINESS)
        yield view.finding(code, "A probe fails.", [probe], rank=1)
    elif "readiness gate" in message:
        yield view.finding(Code.READINESS_GATE, "A readiness gate is not open.", [message], rank=1)
    elif ready.get("status") == "False" and is_true(status, "ContainersReady"):
        yield _marked_not_ready(view)
    elif ready.get("status") == "False":
        title = "The pod runs, and is not ready."
        yield view.finding(Code.NOT_READY, title, [message] if message else [], rank=1)


@detail(Code.ADDED_CONTAINER, stages=_STARTED)
def added(view: PodView) -> Findings:
    """Yield what containers that the lower cluster added do to the pod; its conditions and its message name them."""
    status = view.pod.get("status") or {}
    message, title = str(status.get("message") or ""), ""
    if message.startswith(FINISHES_AFTER):
        title = "A container that the lower cluster added keeps the pod from finishing."
    for kind in ("Initialized", "Ready"):
        why = condition(status, kind)
        named = _NAMED.search(str(why.get("message") or "")) if why.get("status") == "False" else None
        added = [name for name in named[1].split() if name not in _names(view.pod)] if named else []
        if added and not title:
            title = f"Container {added[0]}, which the lower cluster added, is not ready."
            message = why["message"]
    if title:
        step = "see the events of the container; exclude the pod from the injection, or repair it in the lower cluster"
        yield view.finding(Code.ADDED_CONTAINER, title, [message], [step])


def _names(pod: Mapping[str, Any]) -> set[str]:
    return {each["name"] for kind in ("initContainers", "containers") for each in pod["spec"].get(kind) or ()}


def _marked_not_ready(view: PodView) -> Finding:
    """Return why a pod with ready containers is not ready.

    kube-controller-manager of each cluster sets Ready to False without a message (pkg/controller/util/node,
    MarkPodsNotReady).
    """
    lower = view.lower or {}
    if condition(lower.get("status"), "Ready").get("status") == "False":
        node = lower["spec"].get("nodeName")
        title = f"The pod runs, but is marked not ready because lower node {node} is not Ready."
        evidence = "all its containers are ready in their last report"
        step = f"kubectl --kubeconfig LOWER describe node {node}"
        return view.finding(Code.LOWER_NODE_NOT_READY, title, [evidence], [step], rank=1)
    title = "The pod runs, but is marked not ready because its virtual node was not Ready."
    evidence = (
        condition(view.pod.get("status"), "Ready").get("message")
        or "all its containers are ready; the virtual node corrects this when its heartbeats return"
    )
    step = program.name(f"diagnose node {view.pod['spec'].get('nodeName')}")
    return view.finding(Code.NODE_WAS_NOT_READY, title, [evidence], [step], rank=1)


def has_completed_partly(pod: Mapping[str, Any]) -> bool:
    """Report whether a pod is not ready only because some of its containers have completed, as in a Job."""
    if (pod["spec"].get("restartPolicy") or "Always") == "Always":
        return False
    waiting = [
        container
        for container in (pod.get("status") or {}).get("containerStatuses") or ()
        if not container.get("ready")
    ]
    ends = [(each.get("state") or {}).get("terminated") for each in waiting]
    return bool(ends) and all(end is not None and end.get("exitCode") == 0 for end in ends)
