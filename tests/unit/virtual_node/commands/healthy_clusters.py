"""A healthy pair of clusters, and changes that make it unhealthy."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from clusterset.model import names
from controller_runtime.apimachinery import timestamps
from tests.unit.virtual_node.translate.copying import lower_copy as referenced_copy
from tests.unit.virtual_node.translate.copying import view_of
from virtual_node.commands import inspect as command
from virtual_node.examine import reading
from virtual_node.examine.clusters import (
    CLOCK_SKEW,
    FOREIGN_PODS,
    IDENTITY,
    SETTINGS,
    VERSION,
    LowerSettings,
    VirtualNode,
)
from virtual_node.examine.codes import CHECKED
from virtual_node.examine.engine import Examination, examine
from virtual_node.examine.facts import LEASES
from virtual_node.examine.inspections import Row
from virtual_node.examine.snapshot import Fact, Snapshot, View, objects
from virtual_node.translate.base.ownership import Owner, ownership_labels
from virtual_node.translate.base.view import PodOptions
from virtual_node.translate.pods.lower_pod import lower_pod as translate_pod
from virtual_node.translate.pods.status import upper_status
from virtual_node.translate.storage import pv, pvc

NOW = datetime(2026, 1, 1, tzinfo=UTC)
OWNER = Owner("me", "vn")
OPTIONS = PodOptions(owner=OWNER, service_accounts=False)
Change = Callable[[Snapshot], object]


def ago(**length: float) -> str:
    """Return a time before now, as objects have it."""
    return timestamps.rfc3339(NOW - timedelta(**length))


def meta(name: str, uid: str, **more: Any) -> dict[str, Any]:
    """Metadata of an object that is a day old."""
    return {"name": name, "namespace": "shop", "uid": uid, "creationTimestamp": ago(days=1), **more}


def ready(status: str = "True") -> dict[str, Any]:
    """A Ready condition that has not changed for a day."""
    return {"type": "Ready", "status": status, "lastTransitionTime": ago(days=1)}


def node(name: str, *, cpu: str = "4", **labels: str) -> dict[str, Any]:
    """Return a healthy node."""
    allocatable = {"cpu": cpu, "memory": "8Gi", "pods": "10"}
    return {
        "kind": "Node",
        "metadata": {"name": name, "uid": name, "labels": labels},
        "spec": {},
        "status": {"conditions": [ready()], "allocatable": allocatable, "nodeInfo": {"kubeletVersion": "v1.34.1"}},
    }  # fmt: skip


def healthy() -> Snapshot:
    """Return an upper and a lower cluster: one pod with one ConfigMap, mirrored completely."""
    upper_pod = {
        "kind": "Pod",
        "metadata": meta("web", "u-web", labels={"app": "web"}),
        "spec": {
            "nodeName": "vn",
            "containers": [{"name": "c", "image": "web:1", "resources": {"requests": {"cpu": "1"}}}],
        },
        "status": {},
    }
    settings = {"kind": "ConfigMap", "metadata": meta("settings", "u-settings"), "data": {"a": "1"}}
    lower_pod = copy.deepcopy(translate_pod(upper_pod, OPTIONS))
    lower_pod["metadata"] |= {"uid": "l-web", "creationTimestamp": ago(days=1)}
    lower_pod["spec"]["nodeName"] = "n1"
    lower_pod["status"] = {"phase": "Running", "conditions": [ready()]}
    upper_pod["status"] = upper_status(lower_pod, upper_pod)
    lower_copy = referenced_copy("ConfigMap", settings, view_of(cluster_id=OPTIONS.owner.cluster_id))
    lower_copy["metadata"]["creationTimestamp"] = ago(days=1)
    virtual = node("vn", cpu="8", type="virtual-kubelet")
    virtual["status"]["allocatable"] |= {"memory": "16Gi", "pods": "20"}
    lease = {"metadata": {"name": "vn"}, "spec": {"renewTime": ago(seconds=5), "leaseDurationSeconds": 40}}
    empty: dict[str, list[dict[str, Any]]] = {
        kind: [] for kind in ("Secret", "Service", "EndpointSlice", "PersistentVolumeClaim", "PersistentVolume")
    }  # fmt: skip
    space = {"kind": "Namespace", "metadata": {"name": "shop", "uid": "u-shop"}}
    below = {
        "kind": "Namespace",
        "metadata": {
            "name": "shop",
            "uid": "l-shop",
            "creationTimestamp": ago(days=1),
            "labels": {"virtual-node.io/upper-cluster": "me"},
        },
    }
    above, beside = View("upper"), View("paris")
    for view, skew in ((above, 0.4), (beside, -0.4)):
        view.put(VERSION, "v1.34.1")
        view.put(CLOCK_SKEW, skew)
        for kind, found in copy.deepcopy(empty).items():
            view.put(objects(kind), found)
    for kind, one in (("Pod", upper_pod), ("ConfigMap", settings), ("Namespace", space), ("Node", virtual)):
        above.put(objects(kind), [one])
    above.put(LEASES, {"vn": lease})
    above.put(IDENTITY, "me")
    for kind, one in (("Pod", lower_pod), ("ConfigMap", lower_copy), ("Namespace", below)):
        beside.put(objects(kind), [one])
    beside.put(objects("Node"), [node("n1"), node("n2")])
    beside.put(FOREIGN_PODS, [])
    beside.put(SETTINGS, LowerSettings(nodes={"vn": VirtualNode(options=OPTIONS)}))
    return Snapshot(NOW, upper=above, lowers=[beside])


def copied(view: View, name: str) -> View:
    """Return a copy of a cluster with another name; a change of one does not change the other."""
    twin = View(name)
    twin.error, twin.unread = view.error, dict(view.unread)
    twin._known = {fact: copy.deepcopy(value) for fact, value in view._known.items()}
    return twin


def set_up(view: View, **changes: Any) -> None:
    """Change the configuration of a lower cluster."""
    view.put(SETTINGS, replace(view[SETTINGS], **changes))


def bodies(view: View, listed: str | Fact[Any]) -> Any:
    """Return the objects of a list, which a test may change."""
    return view.of(listed)


def forget(view: View, listed: str | Fact[Any]) -> None:
    """Make a list unknown, without an error."""
    view._known.pop(objects(listed) if isinstance(listed, str) else listed)


def examined(facts: Snapshot) -> Examination:
    """Return the result of all rules, as ``inspect`` applies them."""
    reading.add_installation(facts)
    return examine(facts, levels=command.LEVELS, codes=CHECKED)


def inspect(facts: Snapshot) -> list[Row]:
    """Return the rows of ``inspect``."""
    return command.rows(examined(facts).findings)


def upper(facts: Snapshot, kind: str = "Pod") -> Any:
    """The upper object of a kind."""
    if kind == "Lease":
        return facts.upper[LEASES]["vn"]
    return bodies(facts.upper, kind)[0]


def lower(facts: Snapshot, kind: str = "Pod") -> Any:
    """The lower object of a kind."""
    return bodies(facts.lowers[0], kind)[0]


def worries(change: Change | None = None, facts: Snapshot | None = None) -> list[tuple[str, str, str, str]]:
    """Return severity, check, kind and object of findings above information after a change of the healthy clusters."""
    facts = facts or healthy()
    if change is not None:
        change(facts)
    found = inspect(facts)
    return [(one.severity, one.check, one.kind, one.object) for one in found if one.severity != "info"]


def leaking(kind: str | Fact[Any], **more: Any) -> Change:
    """Return a lower object, a day old, with an unknown upper uid."""

    def change(facts: Snapshot) -> None:
        metadata = meta("old", "l-old", **{"labels": ownership_labels(OWNER, "gone"), **more})
        bodies(facts.lowers[0], kind).append(
            {"metadata": metadata, "spec": {}, "status": {"phase": "Running"}}
        )

    return change


def following(kind: str) -> Change:
    """List the objects of a kind that follows pods in both clusters."""

    def change(facts: Snapshot) -> None:
        for cluster in (facts.upper, *facts.lowers):
            cluster.put(objects(kind), [])

    return change


def gone(kind: str) -> Change:
    """Delete the upper object."""
    return lambda facts: cast(
        "Any", facts.upper[LEASES] if kind == "Lease" else bodies(facts.upper, kind)
    ).clear()


def sets(where: Callable[[Snapshot], Any], *path: Any) -> Change:
    """Set a field: the path's last part is the value."""

    def change(facts: Snapshot) -> None:
        *way, last, value = path
        target = where(facts)
        for part in way:
            target = target[part]
        target[last] = value

    return change


def both(*changes: Change) -> Change:
    """Apply both changes."""

    def change(facts: Snapshot) -> None:
        for one in changes:
            one(facts)

    return change


def claim(**more: Any) -> Change:
    """Return an upper claim with our finalizer, on a deleted node."""
    annotations = {names.ANNOTATION_SELECTED_NODE: "vn-gone"}
    metadata = meta("data", "u-data", finalizers=[pvc.FINALIZER], annotations=annotations, **more)
    return lambda facts: bodies(facts.upper, "PersistentVolumeClaim").append(
        {"metadata": metadata, "spec": {}}
    )


def bound_claim(facts: Snapshot) -> None:
    """Return the same, known by the mirror of its volume."""
    expression = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["vn-gone"]}
    affinity = {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}
    spec = {"csi": {"driver": pv.DRIVER}, "nodeAffinity": affinity}
    bodies(facts.upper, "PersistentVolume").append({"metadata": {"name": "pv"}, "spec": spec})
    metadata = meta("data", "u-data", finalizers=[pvc.FINALIZER])
    bodies(facts.upper, "PersistentVolumeClaim").append({"metadata": metadata, "spec": {"volumeName": "pv"}})


def waiting_for(cpu: str) -> Change:
    """Return a lower pod without a node and with these requests."""

    def change(facts: Snapshot) -> None:
        pod = lower(facts)
        del pod["spec"]["nodeName"]
        for one in (pod, upper(facts)):
            one["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu}}

    return change
