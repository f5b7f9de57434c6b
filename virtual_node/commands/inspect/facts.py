"""Types shared by reading, rules and printing of ``virtual-node inspect``: facts and findings."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, NamedTuple, TypedDict, overload

import msgspec

from clusterset.model import names
from clusterset.model.autoscaling import Autoscaling
from clusterset.model.namespace_map import NamespaceMap
from controller_runtime.apimachinery import timestamps
from controller_runtime.apimachinery.decoding import decode, decoder
from controller_runtime.client.client import encode
from controller_runtime.objects import Object, from_dict
from virtual_node.certificates.expiry import Expiry, ExpiryLimits
from virtual_node.examine.objects import annotations_of, labels_of
from virtual_node.translate.base import ownership
from virtual_node.translate.base.options import PodOptions
from virtual_node.translate.objects.namespaces import Places

FOREIGN_POD = "ForeignPod"
"""Key of ``ClusterFacts.objects`` for a lower cluster's pods that are not ours, reduced to what capacity needs."""
COMPONENT_POD = "ComponentPod"
"""Key of ``ClusterFacts.objects`` for the upper cluster's pods that run our own components."""
WAITING_POD = "WaitingPod"
"""Key of ``ClusterFacts.objects`` for the upper cluster's pods without a node."""
SERVICE_BACKEND = "ServiceBackend"
"""Key of ``ClusterFacts.objects`` for a lower cluster's EndpointSlices of its DNS Service and its webhooks."""
FOREIGN_SLICE = "ForeignSlice"
"""Key of ``ClusterFacts.objects`` for a lower cluster's EndpointSlices that others may have added to copied Services."""
DNS_SERVICE = "DnsService"
"""Key of ``ClusterFacts.objects`` for a lower cluster's DNS Services."""
WEBHOOKS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
OPTIONAL = {
    "Deployment": "list deployments.apps",
    "StatefulSet": "list statefulsets.apps",
    "PodDisruptionBudget": "list poddisruptionbudgets.policy",
    **{kind: f"list {kind.lower()}s.admissionregistration.k8s.io" for kind in WEBHOOKS},
}
"""Kinds that a virtual node's account has no right to list, with the right that their checks need."""
ERROR, WARNING, INFO = "error", "warning", "info"
SEVERITIES = (ERROR, WARNING, INFO)


@dataclass(frozen=True, slots=True)
class InspectFinding:
    """One reported problem or remark, and the next step."""

    severity: str
    """``error``, ``warning``, or ``info``, which never changes the exit code."""
    subject: Subject
    message: str
    next_step: str = ""
    transient: bool = False
    """Whether the finding also occurs briefly in healthy systems, so that it counts only if two reads have it."""


class Subject(NamedTuple):
    """What a finding is about; equal for the same finding of two reads."""

    check: str
    """Name of the check, such as leaked, missing or drift; stable, for programs."""
    cluster: str
    kind: str
    object: str
    """``namespace/name``, or ``name``."""

    def finding(
        self, severity: str, message: str, next_step: str = "", *, transient: bool = False
    ) -> InspectFinding:
        """Return a finding about this subject."""
        return InspectFinding(severity, self, message, next_step, transient)

    def error(self, message: str, next_step: str = "", *, transient: bool = False) -> InspectFinding:
        """Return an error about this subject."""
        return self.finding(ERROR, message, next_step, transient=transient)

    def warning(self, message: str, next_step: str = "", *, transient: bool = False) -> InspectFinding:
        """Return a warning about this subject."""
        return self.finding(WARNING, message, next_step, transient=transient)

    def info(self, message: str, next_step: str = "") -> InspectFinding:
        """Return information about this subject."""
        return self.finding(INFO, message, next_step)


Findings = Iterator[InspectFinding]


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualNode:
    """One virtual node of the configuration."""

    options: PodOptions
    """Options for the translation of the node's pods."""
    selector: Mapping[str, str] = field(default_factory=dict)
    reserve: Mapping[str, str] = field(default_factory=dict)
    autoscaling: Autoscaling | None = None


@dataclass(slots=True, kw_only=True)
class ClusterFacts:
    """What was read of one cluster."""

    name: str
    objects: dict[str, Any] = field(default_factory=dict)
    """Objects by kind: lists of dicts, or ``PackedObjects``. A kind is missing if it could not be listed."""
    unread: dict[str, str] = field(default_factory=dict)
    """Kinds that could not be listed, with the error."""
    error: str = ""
    """Why the cluster could not be read; empty: it was read."""
    version: str = ""
    """``v1.34.1``; empty: unknown."""
    clock_skew: float | None = None
    """Seconds by which the cluster's clock is ahead of this machine's, negative if behind; None: unknown."""
    nodes: Mapping[str, VirtualNode] = field(default_factory=dict)
    """For a lower cluster: its virtual nodes, by name."""
    removes_namespaces: bool = True
    """For a lower cluster: whether namespaces that we created are deleted after their upper namespaces."""

    adopt: bool | Sequence[str] = False
    """For a lower cluster: which namespaces that we did not create may be used (``namespaces.adopt``)."""
    namespace_map: NamespaceMap = field(default_factory=NamespaceMap)
    """For a lower cluster: the lower namespaces of upper ones."""

    def places(self) -> Places | None:
        """Return where objects of a lower cluster are ours; None: unknown."""
        node = next(iter(self.nodes.values()), None)
        if node is None or not self.knows("Namespace"):
            return None
        found = Places(node.options.owner.cluster_id, self.namespace_map, self.adopt)
        for namespace in self.of("Namespace"):
            found.note(from_dict(namespace))
        return found

    def knows(self, *kinds: str) -> bool:
        """Report whether all these kinds could be listed."""
        return not self.error and all(kind in self.objects for kind in kinds)

    def of(self, kind: str) -> Sequence[dict[str, Any]]:
        """Return the objects of a kind; empty if they could not be listed."""
        found: Sequence[dict[str, Any]] = self.objects.get(kind, ())
        return found

    def heads(self, kind: str) -> Iterable[dict[str, Any]]:
        """Return the objects of a kind with at least metadata, node and phase, in less time than ``of``."""
        found = self.of(kind)
        return found.heads() if isinstance(found, PackedObjects) else found

    def mark_malformed(self, error: Exception) -> None:
        """Record that the cluster sent a malformed object, and drop all its objects, because rules may fail on them."""
        self.objects.clear()
        self.error = self.error or f"it sent a malformed object: {type(error).__name__}: {error}"


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectFacts:
    """Everything that one read of all clusters returned."""

    upper: ClusterFacts
    lowers: Sequence[ClusterFacts]
    cluster_id: str
    """The upper cluster's identity in ownership labels; empty: unknown, so lower objects cannot be judged."""
    now: datetime
    release: str = ""
    """Release of this command; empty: unknown."""
    expiries: Sequence[Expiry] = ()
    weaknesses: Sequence[tuple[str, str, str]] = ()
    """Weak connections to API servers: cluster, weakness, next step."""
    limits: ExpiryLimits = field(default_factory=ExpiryLimits)

    def virtual_nodes(self) -> dict[str, ClusterFacts]:
        """Return the lower cluster of each configured virtual node, by node name."""
        return {name: lower for lower in self.lowers for name in lower.nodes}

    def replica(self, lower: ClusterFacts) -> str:
        """Return the host name of the replica that runs a lower cluster; empty: unknown."""
        found = (
            annotations_of(lease).get(names.ANNOTATION_REPLICA, "")
            for lease in self.upper.of("Lease")
            if lease["metadata"]["name"] in lower.nodes
        )
        return next(filter(None, found), "")

    def owned(self, lower: ClusterFacts, kind: str) -> Iterator[dict[str, Any]]:
        """Yield the lower cluster's objects of a kind that were created for this upper cluster."""
        return filter(self.judge(lower, kind), lower.of(kind))

    def owned_heads(self, lower: ClusterFacts, kind: str) -> Iterator[dict[str, Any]]:
        """Yield the same as ``owned`` with the fields of ``heads``."""
        return filter(self.judge(lower, kind), lower.heads(kind))

    def misplaced(self, lower: ClusterFacts, kind: str) -> Iterator[dict[str, Any]]:
        """Yield the lower cluster's objects of a kind that have our label in a namespace that is not ours."""
        is_in_place = self.judge(lower, kind)
        return (one for one in lower.heads(kind) if self.is_ours(one) and not is_in_place(one))

    def judge(self, lower: ClusterFacts, kind: str) -> Callable[[Mapping[str, Any]], bool]:
        """Return a function that reports whether an object is ours: it has our label where we put it, see ``Places``.

        Without a list of namespaces, the label suffices.
        """
        places = lower.places() if kind != "Namespace" else None
        if places is None:
            return self.is_ours
        confirmed = functools.cache(functools.partial(self._confirmed, lower))  # slow, and rarely needed

        def is_in_place(one: Mapping[str, Any]) -> bool:
            if not self.is_ours(one):
                return False
            namespace = one["metadata"].get("namespace") or ""
            place = namespace, annotations_of(one).get(names.ANNOTATION_UPPER_NAMESPACE, namespace)
            if places.stands_for(*place):
                return True
            return one["metadata"]["uid"] in confirmed() if kind == "Pod" else place in confirmed().values()

        return is_in_place

    def _confirmed(self, lower: ClusterFacts) -> dict[str, tuple[str, str]]:
        """Return lower and upper namespace of the lower pods that are named by their upper pods, by uid."""
        marks = {
            (pod["metadata"]["uid"], ownership.mirrored_as(mark, pod["metadata"]["uid"])): pod["metadata"]
            for pod in self.upper.heads("Pod")
            if (mark := annotations_of(pod).get(names.ANNOTATION_LOWER_UID))
        }
        found = {}
        for pod in filter(self.is_ours, lower.heads("Pod")):
            metadata = pod["metadata"]
            upper = marks.get((labels_of(pod).get(names.LABEL_UPPER_UID, ""), metadata["uid"]))
            if upper is not None and upper["name"] == metadata["name"]:
                found[metadata["uid"]] = (metadata["namespace"], upper["namespace"])
        return found

    def is_ours(self, one: Mapping[str, Any]) -> bool:
        """Report whether a lower object was created for this upper cluster."""
        return bool(self.cluster_id) and labels_of(one).get(names.LABEL_UPPER_CLUSTER) == self.cluster_id

    def age(self, moment: str | None) -> timedelta:
        """Return the time since a timestamp; zero for None."""
        return self.now - timestamps.parse(moment) if moment else timedelta()


def webhook_services(configuration: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield a configuration's webhooks that are reached by a Service, with ``namespace/name`` of the Service."""
    for webhook in configuration.get("webhooks") or ():
        if service := webhook["clientConfig"].get("service"):
            yield webhook, f"{service['namespace']}/{service['name']}"


_LEVEL, _WINDOW, _MEMORY = 1, -14, 6
"""Parameters of zlib, chosen for speed: a raw stream, and a window of 16 KiB, which two usual pods fit into."""
_WELL = 6
"""If the dictionary makes an object smaller by less than this factor, the object becomes the new dictionary."""
_PATIENCE = 32
"""Minimum number of objects for which a dictionary is kept, because dictionaries are stored, too."""


_TOGETHER = 64
"""Number of heads that are compressed together, because they are only read in order."""


class _Place(TypedDict, total=False):
    nodeName: Any
    phase: Any


class _Head(TypedDict, total=False):
    metadata: Any
    spec: _Place | None
    status: _Place | None
    isServing: Any


_decode_head = decoder(_Head)


class PackedObject(msgspec.Struct, frozen=True, gc=False):
    """One object as compressed JSON."""

    data: bytes
    dictionary: bytes
    """JSON of a similar object, from which ``data`` contains the differences; shared by many objects."""

    def json(self) -> bytes:
        """Return the object's JSON."""
        return zlib.decompressobj(_WINDOW, self.dictionary).decompress(self.data)


class Packer:
    """Packs the objects of one list. Neighbours in a list are usually similar."""

    def __init__(self, to_json: Callable[[Object], bytes]) -> None:
        """Create a packer; ``to_json`` returns the fields to keep."""
        self._to_json = to_json
        self._dictionary = b""
        self._used = _PATIENCE

    def __call__(self, one: Object) -> PackedObject:
        """Return the packed object."""
        whole = self._to_json(one)
        packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW, _MEMORY, zdict=self._dictionary)
        packed = PackedObject(packer.compress(whole) + packer.flush(), self._dictionary)
        self._used += 1
        if len(packed.data) * _WELL > len(whole) and self._used > _PATIENCE:
            self._dictionary, self._used = whole, 0
        return packed


class PackedObjects(Sequence[dict[str, Any]]):
    """A sequence of objects that are decoded at each access, so changes of them are lost."""

    def __init__(self) -> None:
        self._packed: list[PackedObject] = []
        self._heads: list[bytes] | None = None

    def extend(self, more: Iterable[PackedObject]) -> None:
        """Append packed objects."""
        self._packed.extend(more)
        self._heads = None

    def heads(self) -> Iterator[dict[str, Any]]:
        """Yield the objects with only metadata, node, phase and ``isServing``, in a quarter of the time."""
        if self._heads is None:
            heads = (_decode_head(one.json()) for one in self._packed)
            parts = iter(lambda: [*islice(heads, _TOGETHER)], [])
            self._heads = [zlib.compress(encode(part), _LEVEL) for part in parts]
        for part in self._heads:
            yield from decode(zlib.decompress(part))

    def __len__(self) -> int:
        """Return the number of objects."""
        return len(self._packed)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the objects."""
        for one in self._packed:
            yield decode(one.json())

    @overload
    def __getitem__(self, position: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, position: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, position: int | slice) -> Any:
        """Return an object by its position."""
        if isinstance(position, slice):
            return [decode(one.json()) for one in self._packed[position]]
        return decode(self._packed[position].json())
