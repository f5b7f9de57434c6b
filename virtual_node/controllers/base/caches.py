"""The informers of one lower cluster, which hold what its controllers know about both clusters.

Volumes have informers of their own (``controllers/volumes/caches.py``), because not every installation
mirrors them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from clusterset.model import names
from clusterset.model.pod import pod_resources
from clusterset.model.pod.conditions import CONTAINER_KINDS, is_finished
from controller_runtime import resources
from controller_runtime.cache.informer import BoundedInformer, BudgetKey, Informer
from controller_runtime.objects import Object, ObjectMeta
from controller_runtime.store import NamespaceBudget
from virtual_node.controllers.base.context import (
    INDEX_CLAIM,
    INDEX_LOWER_KEY,
    INDEX_PLACE,
    INDEX_UID,
    INDEX_UPPER_UID,
    ClusterContext,
    PodCaches,
)
from virtual_node.translate import kinds
from virtual_node.translate.base import ownership
from virtual_node.translate.base.fields import is_name
from virtual_node.translate.kinds import Kind

_NORMAL_POD = 16 * 1024
"""Bytes of each upper pod that do not count for its namespace's limit, because quotas limit the number of pods."""
_LARGE_SPEC = 32 * 1024
"""Bytes of a lower pod's spec above which only the fields of its containers that are read are kept."""
_KEPT_OF_CONTAINERS = frozenset(
    {"name", "image", "resources", "restartPolicy", "resizePolicy", "securityContext"}
)
_LONGEST_MARK = 256
"""Characters of the annotation with the lower uid that a stub keeps; users can write longer texts, which are not valid."""
_SOME_FINALIZER = ("virtual-node.io/not-read",)
"""The finalizers of a stub that has some. Their names are not needed."""
INDEX_NAMESPACE = "namespace"
INDEX_UPPER = "upper"
"""Index of copies by the key of the upper object that they were created for."""


class ClusterCaches:
    """The informers of one lower cluster's controllers, except those of volumes."""

    def __init__(self, context: ClusterContext) -> None:
        """Create the informers of one lower cluster, without any IO."""
        lower = context.lower
        ours = f"{names.LABEL_UPPER_CLUSTER}={context.cluster_id}"
        self.lower_namespaces = Informer(lower, resources.NAMESPACES, label_selector=ours)
        """Lower namespaces with our ownership label."""
        self.lower_namespaces.on_change(context.places.note)
        budget: NamespaceBudget[BudgetKey] = NamespaceBudget(
            context.settings.limits.cache_bytes_per_namespace, free=_NORMAL_POD, shrink=pod_stub
        )
        upper_pods = {name: _upper_pods(context, name, budget) for name in context.nodes}
        context.proving = [self.lower_namespaces, *upper_pods.values()]
        self.pods = _pod_caches(context, upper_pods)
        context.proving = [*context.proving, self.pods.lower]
        context.places.is_used = self.pods.are_in
        self.pods_of_others = _pods_of_others(context)
        """Lower pods for this upper cluster that other processes run, reduced to what endpoints need."""
        self.config_maps = copy_informer(context, kinds.CONFIG_MAPS)
        """Our lower ConfigMaps; ``secrets`` and ``lower_services`` are selected in the same way."""
        self.secrets = copy_informer(context, kinds.SECRETS)
        self.upper_namespaces = context.upper_informer(resources.NAMESPACES)
        self.upper_namespaces.on_change(
            lambda namespace: context.upper_namespaces.upsert(namespace.name, namespace.labels),
            lambda namespace: context.upper_namespaces.remove(namespace.name),
        )
        self.upper_services = context.upper_informer(
            resources.SERVICES, indexers={INDEX_NAMESPACE: _namespace}
        )
        self.lower_services = copy_informer(context, kinds.SERVICES)
        self.lower_nodes = Informer(lower, resources.NODES, transform=_without_images)
        self.foreign_pods = Informer(
            lower,
            resources.PODS,
            label_selector=f"{names.LABEL_UPPER_CLUSTER}!={context.cluster_id}",
            transform=shrink_foreign,
            name="foreign-pods",
        )
        """Lower pods that are not ours, reduced to what capacity needs."""
        self.claims = {
            kind.kind: copy_informer(context, kind)
            for kind in kinds.CLAIMS
            if context.config.resource_claims.enabled
        }
        """Our copies of ResourceClaims and ResourceClaimTemplates by kind; empty unless ``resourceClaims.enabled``.
        ``deciding`` omits them, because the lower cluster may not serve these kinds."""
        settings = context.settings
        self.accounts = (
            context.upper_informer(resources.SERVICE_ACCOUNTS, transform=_only_metadata)
            if settings.enable_serviceaccount and settings.identities.tokens == "node"
            else None
        )
        """Upper ServiceAccounts, metadata only; None unless pods share tokens."""

    def deciding(self) -> Iterator[Informer]:
        """Yield the informers that decide what is created and deleted; not those for capacity and ResourceClaims."""
        yield from self.pods.upper.values()
        yield from (
            self.pods.lower,
            self.pods_of_others,
            self.config_maps,
            self.secrets,
            self.upper_namespaces,
            self.lower_namespaces,
            self.upper_services,
            self.lower_services,
        )
        if self.accounts is not None:
            yield self.accounts

    def all(self) -> Iterator[Informer]:
        """Yield every informer."""
        yield from self.deciding()
        yield from (self.lower_nodes, self.foreign_pods, *self.claims.values())


def copy_informer(context: ClusterContext, kind: Kind) -> Informer:
    """Return an informer of the copies of a kind, indexed by the keys of their upper objects."""
    return context.lower_informer(
        kind.resource, transform=kind.shrink, indexers={INDEX_UPPER: kind.upper_key}
    )


def shrink_foreign(pod: Object) -> Object:
    """Reduce a pod that is not ours to the sum of its requests, because there may be many thousands.

    A lower user can request thousands of resources, so few are kept (``pod_resources.rendered``).
    Nothing is kept of a pod that uses no lower node, and requests that cannot be read count as missing.
    """
    spec, status = pod.spec or {}, pod.status or {}
    kept: dict[str, Any] = {}
    if spec.get("nodeName") and not is_finished(status):
        try:
            requests = pod_resources.placed_requests(spec, status)
        except (ValueError, TypeError, AttributeError):
            requests = {}
        needed = {"requests": pod_resources.rendered(requests)}
        kept = {"nodeName": spec["nodeName"], "containers": [{"resources": needed}]}
    shrunk = Object(pod.metadata, pod.api_version, pod.kind).with_fields(
        spec=kept, status={"phase": status.get("phase", "")}
    )
    return shrunk.without_metadata("labels", "annotations", "finalizers", "raw_owner_references")


def shrink_other(pod: Object) -> Object:
    """Reduce a lower pod of another process to what an endpoint needs, and to its marks."""
    spec, status = pod.spec or {}, pod.status or {}
    kept: dict[str, Any] = {"phase": status.get("phase", "")}
    kept["podIPs"] = status.get("podIPs") or []
    kept["conditions"] = [
        condition for condition in status.get("conditions") or () if condition.get("type") == "Ready"
    ]
    shrunk = Object(pod.metadata, pod.api_version, pod.kind).with_fields(
        spec={"nodeName": spec.get("nodeName", "")}, status=kept
    )
    return shrunk.with_only(
        labels=frozenset({names.LABEL_UPPER_CLUSTER, names.LABEL_UPPER_UID}).__contains__,
        annotations=frozenset(
            {names.ANNOTATION_UPPER_NAMESPACE, names.ANNOTATION_READINESS_GATES}
        ).__contains__,
    )


def shrink_large(pod: Object) -> Object:
    """Return a lower pod of ours; if it is large, without the fields of its containers that are never read.

    The upper pod, which has them, is cached, too.
    """
    if pod.field_size("spec") < _LARGE_SPEC:
        return pod
    spec = pod.spec
    for kind in CONTAINER_KINDS:
        if kind in spec:
            spec[kind] = [
                {field: value for field, value in container.items() if field in _KEPT_OF_CONTAINERS}
                for container in spec[kind]
            ]
    return pod.with_fields(spec=spec)


def _without_images(node: Object) -> Object:
    """Return a node without its list of images, which is its largest part and not used."""
    status = node.status or {}
    status.pop("images", None)
    return node.with_fields(status=status)


def pod_stub(pod: Object) -> Object:
    """Return a pod without its version and without what users can add to a running pod.

    These are labels, annotations, finalizers, tolerations and images. A pod that has not started has no containers, either.
    """
    metadata, spec, status = pod.metadata, pod.spec or {}, pod.status or {}
    mark = metadata.annotations.get(names.ANNOTATION_LOWER_UID, "")
    node = metadata.annotations.get(names.ANNOTATION_LOWER_NODE, "")
    annotations = {names.ANNOTATION_LOWER_UID: mark} if 0 < len(mark) <= _LONGEST_MARK else {}
    if is_name(node):
        annotations[names.ANNOTATION_LOWER_NODE] = node
    kept = ObjectMeta(
        name=metadata.name,
        namespace=metadata.namespace,
        uid=metadata.uid,
        creation_timestamp=metadata.creation_timestamp,
        deletion_timestamp=metadata.deletion_timestamp,
        deletion_grace_period_seconds=metadata.deletion_grace_period_seconds,
        finalizers=_SOME_FINALIZER if metadata.finalizers else (),
        annotations=annotations,
    )
    if status.get("startTime"):
        spec.pop("tolerations", None)
        for container in (*spec.get("containers", ()), *(spec.get("initContainers") or ())):
            container.pop("image", None)
    else:
        spec = {"nodeName": spec.get("nodeName", ""), "containers": []}
    return Object(kept, pod.api_version, pod.kind).with_fields(spec=spec, status=status)


def _upper_pods(context: ClusterContext, node_name: str, budget: NamespaceBudget[BudgetKey]) -> Informer:
    return BoundedInformer(
        context.upper,
        resources.PODS,
        budget=budget,
        field_selector=f"spec.nodeName={node_name}",
        indexers={
            INDEX_UID: lambda pod: (pod.uid,),
            INDEX_CLAIM: PodCaches.claims_of,
            INDEX_LOWER_KEY: lambda pod: (context.lower_key(pod.key),),
        },
        name=f"pods-{node_name}",
    )


def _pod_caches(context: ClusterContext, upper: dict[str, Informer]) -> PodCaches:
    selector = (
        f"{names.LABEL_UPPER_CLUSTER}={context.cluster_id},{names.LABEL_NODE} in ({','.join(context.nodes)})"
    )

    def place(pod: Object) -> Iterable[str]:
        upper_namespace = ownership.upper_namespace(pod)
        is_mapped = context.lower_namespace(upper_namespace) == pod.namespace
        return (pod.namespace, f"{pod.namespace}/{upper_namespace}") if is_mapped else (pod.namespace,)

    lower = context.lower_informer(
        resources.PODS,
        selector=selector,
        keep=lambda pod: caches.is_ours(pod),  # noqa: PLW0108 - ``caches`` comes after
        transform=shrink_large,
        indexers={INDEX_UPPER_UID: _upper_uid, INDEX_PLACE: place},
        name="mirrored-pods",
    )
    caches = PodCaches(upper=upper, lower=lower, places=context.places)
    return caches


def _pods_of_others(context: ClusterContext) -> Informer:
    """Return an informer of the pods that virtual nodes of other processes run in the lower cluster; mostly there are none."""
    nodes = ",".join(context.nodes)
    return context.lower_informer(
        resources.PODS,
        selector=f"{names.LABEL_UPPER_CLUSTER}={context.cluster_id},{names.LABEL_NODE} notin ({nodes})",
        transform=shrink_other,
        name="pods-of-others",
    )


def _upper_uid(pod: Object) -> Iterable[str]:
    uid = pod.labels.get(names.LABEL_UPPER_UID)
    return (uid,) if uid else ()


def _namespace(found: Object) -> Iterable[str]:
    return (found.namespace,)


def _only_metadata(account: Object) -> Object:
    whole = Object(account.metadata, account.api_version, account.kind, None, None, None)
    return whole.without_metadata("labels", "annotations")
