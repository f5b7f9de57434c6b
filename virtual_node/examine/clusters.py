"""Facts of single clusters in depth, and which objects of a lower cluster are ours."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from clusterset.model import names
from clusterset.model.autoscaling import Autoscaling
from clusterset.model.namespace_map import NamespaceMap
from controller_runtime.objects import from_dict
from virtual_node.examine.expiry import Expiry, ExpiryLimits
from virtual_node.examine.facts import LEASES
from virtual_node.examine.objects import Json, annotations_of, labels_of
from virtual_node.examine.snapshot import Fact, Snapshot, View
from virtual_node.translate.base import ownership
from virtual_node.translate.base.view import PodOptions
from virtual_node.translate.objects.namespaces import Places


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualNode:
    """One virtual node of the configuration."""

    options: PodOptions
    """Options for the translation of the node's pods."""
    selector: Mapping[str, str] = field(default_factory=dict)
    reserve: Mapping[str, str] = field(default_factory=dict)
    autoscaling: Autoscaling | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LowerSettings:
    """What is configured for a lower cluster."""

    nodes: Mapping[str, VirtualNode] = field(default_factory=dict)
    """Its virtual nodes, by name."""
    removes_namespaces: bool = True
    """Whether namespaces that we created are deleted after their upper namespaces."""
    adopt: bool | Sequence[str] = False
    """Which namespaces that we did not create may be used (``namespaces.adopt``)."""
    namespace_map: NamespaceMap = field(default_factory=NamespaceMap)
    """The lower namespaces of upper ones."""


SETTINGS = Fact[LowerSettings]("settings")
"""The configuration of a lower cluster."""
IDENTITY = Fact[str]("identity")
"""The upper cluster's identity in ownership labels; empty: unknown, so lower objects cannot be judged."""
LIMITS = Fact[ExpiryLimits]("limits")
"""Thresholds that the user chose; a fact of the upper cluster."""
RELEASE = Fact[str]("release")
"""Release of this program; empty: unknown; a fact of the upper cluster."""
VERSION = Fact[str]("version")
"""Version of a cluster: ``v1.34.1``; empty: unknown."""
CLOCK_SKEW = Fact[float]("clock")
"""Seconds by which a cluster's clock is ahead of this machine's, negative if behind."""
EXPIRIES = Fact[Sequence[Expiry]]("expiries")
"""Credentials and certificates of a cluster."""
WEAKNESSES = Fact[Sequence[tuple[str, str]]]("weaknesses")
"""Weaknesses of the connection to a cluster, each with the next step."""
FOREIGN_PODS = Fact[Sequence[Json]]("foreign pods", kind="Pod")
"""A lower cluster's pods that are not ours, reduced to what capacity needs."""
SERVICE_BACKENDS = Fact[Sequence[Json]]("service backends", kind="EndpointSlice")
"""A lower cluster's EndpointSlices of its DNS Service and its webhooks."""
FOREIGN_SLICES = Fact[Sequence[Json]]("foreign endpoints", kind="EndpointSlice")
"""A lower cluster's EndpointSlices that others may have added to copied Services."""
DNS_SERVICES = Fact[Sequence[Json]]("DNS services", kind="Service")
"""A lower cluster's DNS Services."""
WEBHOOKS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
OPTIONAL = {
    "Deployment": "list deployments.apps",
    "StatefulSet": "list statefulsets.apps",
    "PodDisruptionBudget": "list poddisruptionbudgets.policy",
    **{kind: f"list {kind.lower()}s.admissionregistration.k8s.io" for kind in WEBHOOKS},
}
"""Kinds that a virtual node's account has no right to list, with the right that their rules need."""


def virtual_nodes(snapshot: Snapshot) -> dict[str, View]:
    """Return the lower cluster of each configured virtual node, by node name."""
    return {name: lower for lower in snapshot.lowers for name in lower[SETTINGS].nodes}


def limits(snapshot: Snapshot) -> ExpiryLimits:
    """Return the thresholds that the user chose, or the usual ones."""
    return snapshot.upper.get(LIMITS) or ExpiryLimits()


def replica(snapshot: Snapshot, lower: View) -> str:
    """Return the host name of the replica that runs a lower cluster; empty: unknown, or the upper cluster."""
    nodes = (lower.get(SETTINGS) or LowerSettings()).nodes
    leases = snapshot.upper.get(LEASES) or {}
    known = (
        annotations_of(leases[name]).get(names.ANNOTATION_REPLICA, "") for name in nodes if name in leases
    )
    return next(filter(None, known), "")


def webhook_services(cluster: View) -> Iterator[tuple[str, Json, Json, str]]:
    """Yield a cluster's webhooks that are reached by a Service: kind, configuration, webhook, and the Service's key."""
    for kind in WEBHOOKS:
        for configuration in cluster.of(kind):
            for webhook in configuration.get("webhooks") or ():
                if service := webhook["clientConfig"].get("service"):
                    yield kind, configuration, webhook, f"{service['namespace']}/{service['name']}"


def owned(snapshot: Snapshot, lower: View, kind: str) -> Iterator[Json]:
    """Yield the lower cluster's objects of a kind that were created for this upper cluster."""
    return filter(is_ours_in(snapshot, lower, kind), lower.of(kind))


def owned_heads(snapshot: Snapshot, lower: View, kind: str) -> Iterator[Json]:
    """Yield the same as ``owned`` with the fields of ``View.heads``."""
    return filter(is_ours_in(snapshot, lower, kind), lower.heads(kind))


def misplaced(snapshot: Snapshot, lower: View, kind: str) -> Iterator[Json]:
    """Yield the lower cluster's objects of a kind that have our label in a namespace that is not ours."""
    is_in_place, identity = is_ours_in(snapshot, lower, kind), snapshot.upper.get(IDENTITY)
    return (each for each in lower.heads(kind) if _is_labelled(identity, each) and not is_in_place(each))


def is_ours_in(snapshot: Snapshot, lower: View, kind: str) -> Callable[[Json], bool]:
    """Return a function that reports whether an object is ours: it has our label where we put it, see ``Places``.

    Without a list of namespaces, the label suffices.
    """
    identity = snapshot.upper.get(IDENTITY)
    places = _places(lower) if kind != "Namespace" else None
    if places is None:
        return functools.partial(_is_labelled, identity)
    confirmed = functools.cache(functools.partial(_confirmed, snapshot, lower))  # slow, and rarely needed

    def is_in_place(one: Json) -> bool:
        if not _is_labelled(identity, one):
            return False
        namespace = one["metadata"].get("namespace") or ""
        place = namespace, annotations_of(one).get(names.ANNOTATION_UPPER_NAMESPACE, namespace)
        if places.stands_for(*place):
            return True
        return one["metadata"]["uid"] in confirmed() if kind == "Pod" else place in confirmed().values()

    return is_in_place


def _places(lower: View) -> Places | None:
    """Return where objects of a lower cluster are ours; None: unknown."""
    settings = lower[SETTINGS]
    node = next(iter(settings.nodes.values()), None)
    if node is None or not lower.knows("Namespace"):
        return None
    places = Places(node.options.owner.cluster_id, settings.namespace_map, settings.adopt)
    for namespace in lower.of("Namespace"):
        places.note(from_dict(dict(namespace)))
    return places


def _confirmed(snapshot: Snapshot, lower: View) -> dict[str, tuple[str, str]]:
    """Return lower and upper namespace of the lower pods that are named by their upper pods, by uid."""
    marks = {
        (pod["metadata"]["uid"], ownership.mirrored_as(mark, pod["metadata"]["uid"])): pod["metadata"]
        for pod in snapshot.upper.heads("Pod")
        if (mark := annotations_of(pod).get(names.ANNOTATION_LOWER_UID))
    }
    confirmed, identity = {}, snapshot.upper.get(IDENTITY)
    for pod in lower.heads("Pod"):
        metadata = pod["metadata"]
        upper = marks.get((labels_of(pod).get(names.LABEL_UPPER_UID, ""), metadata["uid"]))
        if _is_labelled(identity, pod) and upper is not None and upper["name"] == metadata["name"]:
            confirmed[metadata["uid"]] = (metadata["namespace"], upper["namespace"])
    return confirmed


def _is_labelled(identity: str | None, one: Json) -> bool:
    """Report whether a lower object has the label of the upper cluster with this identity."""
    return bool(identity) and labels_of(one).get(names.LABEL_UPPER_CLUSTER) == identity
