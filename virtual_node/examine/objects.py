"""Reads fields of objects for the examination and the commands: which pods are for virtual nodes, and what a pod waits for."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from clusterset.model import names
from clusterset.model.pod import pod_resources
from clusterset.model.pod.conditions import condition, is_finished
from controller_runtime.apimachinery import matching, quantity, readable, timestamps

Json = Mapping[str, Any]
LIFECYCLE = "node.kubernetes.io/"
"""Prefix of the taints that Kubernetes sets on cordoned, unreachable and not Ready nodes."""


def is_virtual(node: Json) -> bool:
    """Report whether a Node is a virtual node."""
    return labels_of(node).get(names.LABEL_NODE_TYPE) == names.NODE_TYPE_VIRTUAL


def cluster_of(node: Json) -> str:
    """Return the lower cluster's name from a virtual node's label; without this label the node's name."""
    return str(labels_of(node).get(names.LABEL_LOWER_CLUSTER) or node["metadata"]["name"])


def labels_of(one: Json) -> Mapping[str, str]:
    """Return an object's labels."""
    found: Mapping[str, str] = one["metadata"].get("labels") or {}
    return found


def annotations_of(one: Json) -> Mapping[str, str]:
    """Return an object's annotations."""
    found: Mapping[str, str] = one["metadata"].get("annotations") or {}
    return found


def is_deleting(one: Json) -> bool:
    """Report whether an object is being deleted."""
    return bool(one["metadata"].get("deletionTimestamp"))


def selects(pod: Json, node: Json) -> bool:
    """Report whether a pod's node selector and required node affinity admit a Node; taints do not count."""
    name = node["metadata"]["name"]
    return matching.admits(pod["spec"], name=name, labels=labels_of(node), taints=())


def repelling(pod: Json, node: Json) -> list[Json]:
    """Return the taints that keep a pod away from a Node."""
    tolerations = pod["spec"].get("tolerations") or ()
    return [
        taint
        for taint in taints(node)
        if taint.get("effect") != "PreferNoSchedule"
        and not any(matching.tolerates(toleration, taint) for toleration in tolerations)
    ]


def untolerated(pod: Json, node: Json) -> list[str]:
    """Return the taints that keep a pod away from a Node, also when the node is healthy and not cordoned."""
    return [taint_text(taint) for taint in repelling(pod, node) if not is_passing(taint)]


def is_passing(taint: Json) -> bool:
    """Return whether a taint is removed when its node is healthy and not cordoned."""
    return bool(taint["key"].startswith(LIFECYCLE)) or taint["key"] == names.TAINT_STALE_CLUSTER


def taint_text(taint: Json) -> str:
    """Return ``key=value:effect``, or ``key:effect``."""
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint['key']}{value}:{taint.get('effect', '')}"


def taints(node: Json) -> Iterator[Json]:
    """Yield a Node's taints."""
    yield from (node.get("spec") or {}).get("taints") or ()


def key(one: Json) -> str:
    """Return ``namespace/name``, or ``name`` of a cluster-scoped object."""
    metadata = one["metadata"]
    return f"{metadata['namespace']}/{metadata['name']}" if metadata.get("namespace") else metadata["name"]


def statuses(pod: Json) -> Iterator[Json]:
    """Yield the statuses of a pod's init containers, then of its containers, both in the order of the spec."""
    for kind, specs in (("initContainerStatuses", "initContainers"), ("containerStatuses", "containers")):
        found = (pod.get("status") or {}).get(kind) or ()
        if len(found) > 1:
            places = {each.get("name"): place for place, each in enumerate(pod["spec"].get(specs) or ())}
            found = sorted(found, key=lambda one: (places.get(one["name"], len(places)), one["name"]))
        yield from found


def waiting(status: Json) -> Json:
    """Return the state Waiting of a container's status; empty: it does not wait."""
    return (status.get("state") or {}).get("waiting") or {}


def ended(status: Json) -> Json:
    """Return a container's state Terminated, else that of its previous run; empty: it has not ended."""
    state, last = status.get("state") or {}, status.get("lastState") or {}
    return state.get("terminated") or last.get("terminated") or {}


def last_seen(event: Json) -> str:
    """Return the time of an Event, which two APIs store in different fields; empty: unknown."""
    return str(event.get("lastTimestamp") or event.get("eventTime") or "")


def involved(event: Json) -> str:
    """Return ``namespace/name`` of the object that an Event is about."""
    about = event.get("involvedObject") or {}
    return f"{about.get('namespace')}/{about.get('name')}"


def ready_endpoints(slices: Iterable[Json]) -> int:
    """Return the number of ready endpoints of EndpointSlices; a missing condition means ready, see the API reference."""
    return sum(
        (endpoint.get("conditions") or {}).get("ready") is not False
        for each in slices
        for endpoint in each.get("endpoints") or ()
    )


def one_line(text: str, limit: int = 300) -> str:
    """Return the text in one line of at most ``limit`` characters, without control characters for terminals."""
    line = " ".join(readable.printable(text, instead=" ").split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def requested(pods: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """Return the total requests of unfinished pods by resource; resource ``pods`` counts these pods."""
    used: Counter[str] = Counter()
    for pod in pods:
        if not is_finished(status := pod.get("status") or {}):
            used.update({**pod_resources.placed_requests(pod["spec"], status), "pods": 1})
    return used


def add_requests(used: Counter[str], pod: Mapping[str, Any]) -> None:
    """Add the requests of a pod to ``used`` unless it is finished."""
    if not is_finished(pod.get("status")):
        for name, amount in pod_resources.pod_requests(pod["spec"]).items():
            used[name] += amount  # faster than ``Counter.update``
        used["pods"] += 1


def allocatable(node: Mapping[str, Any]) -> dict[str, int]:
    """Return a Node's allocatable by resource."""
    found = (node.get("status") or {}).get("allocatable") or {}
    return {name: quantity.of(name, value) for name, value in found.items()}


def fits(requests: Mapping[str, int], room: Mapping[str, int]) -> bool:
    """Report whether there is room for all requests."""
    return all(count <= room.get(name, 0) for name, count in requests.items() if count)


WITHOUT_NODE = "spec.nodeName=,status.phase=Pending"
"""Field selector of pods without a node."""
SCHEDULING = 30.0
"""Seconds after which a pod that the scheduler has not placed is a fault."""
STARTING = 120.0
"""Seconds that a pod may take to start without an explanation, because its image may be large."""
EXPLAINED = 30.0
"""Seconds that an explained failure, such as a failed image pull, may last, because it may be transient."""
LONG_AGO = datetime.min.replace(tzinfo=UTC)
"""Moment of objects without a time."""
_AVAILABLE = re.compile(r"0/\d+ nodes are available: (?P<reasons>.*?)\.(?: |$)")
_TAINT = re.compile(r"\d+ node\(s\) had untolerated taint(?:\(s\)|s)? \{")


def is_labelled(pod: Json) -> bool:
    """Report whether a pod has the label with which the webhook changes it."""
    return labels_of(pod).get(names.LABEL_VIRTUAL_POD) == "true"


def is_for_virtual_nodes(pod: Json, virtual_nodes: Collection[str] = ()) -> bool:
    """Report whether a pod is for virtual nodes, by its label, node selector, affinity or toleration.

    All tools must agree, so only the pod and the names of the virtual nodes count. A toleration of every
    taint, as many DaemonSets have, does not count. A pod also counts if its scheduler reports only taints as
    obstacles, and one of them is the taint of virtual nodes.
    """
    spec = pod["spec"]
    if is_labelled(pod):
        return True
    if any(toleration.get("key") == names.TAINT_PROVIDER for toleration in spec.get("tolerations") or ()):
        return True
    if _only_taints(condition(pod.get("status"), "PodScheduled").get("message") or ""):
        return True
    wanted = {names.LABEL_NODE_TYPE: {names.NODE_TYPE_VIRTUAL}, names.LABEL_HOSTNAME: set(virtual_nodes)}
    selector = spec.get("nodeSelector") or {}
    if any(selector.get(label) in values for label, values in wanted.items()):
        return True
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get(matching.REQUIRED) or {}
    return any(
        expression.get("operator") == "In"
        and wanted.get(expression.get("key"), set()) & set(expression.get("values") or ())
        for term in required.get("nodeSelectorTerms") or ()
        for expression in term.get("matchExpressions") or ()
    )


def silent_lower_scheduler(pod: Json) -> str:
    """Return the lower scheduler that has not tried a pending mirrored pod; empty: there is none.

    PodScheduled=False of a mirrored pod is set by the lower scheduler. PodScheduled=True may still be that of the upper one, so the
    annotation with the lower node decides.
    """
    annotations, status = annotations_of(pod), pod.get("status") or {}
    is_pending = status.get("phase") == "Pending" and not any(True for _ in statuses(pod))
    if (
        not is_pending
        or names.ANNOTATION_LOWER_UID not in annotations
        or names.ANNOTATION_LOWER_NODE in annotations
        or condition(status, "PodScheduled").get("status") == "False"
    ):
        return ""
    return str(annotations.get(names.ANNOTATION_SCHEDULER_NAME) or "default-scheduler")


def last_change(pod: Json) -> datetime:
    """Return when a condition of a pod last changed; without conditions, the pod's creation."""
    moments = [pod["metadata"].get("creationTimestamp")]
    moments += [each.get("lastTransitionTime") for each in (pod.get("status") or {}).get("conditions") or ()]
    return max((timestamps.parse(moment) for moment in moments if moment), default=LONG_AGO)


def _only_taints(message: str) -> bool:
    """Report whether a scheduler's message has only taints as reasons, including the taint of virtual nodes."""
    found = _AVAILABLE.search(message)
    parts = found["reasons"].split(", ") if found else []
    return any(names.TAINT_PROVIDER in part for part in parts) and all(_TAINT.match(part) for part in parts)
