"""The kinds of objects that are copied to the lower cluster for pods: one table, which all programs iterate.

A kind has a row in ``KINDS`` and a function that translates an object. The engine (``controllers/copies``), the tables of
rights, ``cleanup`` and ``inspect`` read everything else about the kind from its row.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clusterset.model import names
from controller_runtime import resources
from controller_runtime.objects import Object
from controller_runtime.resources import Resource
from virtual_node.translate import endpoints, services
from virtual_node.translate.base import ownership
from virtual_node.translate.base.fields import LONGEST_NAME
from virtual_node.translate.base.metadata import copy_metadata, copy_metadata_patch, merge_patch
from virtual_node.translate.base.view import Selector, Translation, View, selected_nodes
from virtual_node.translate.follow import disruption_budgets, gateways, ingresses, network_policies
from virtual_node.translate.follow.addresses import AddressField
from virtual_node.translate.objects import references
from virtual_node.translate.pods import api_server, pod_certificates, service_account

Body = Mapping[str, Any]


class Demand(enum.Enum):
    """Why a process needs the copy of an object."""

    REFERENCES = enum.auto()
    """Its pods reference the object."""
    NAMESPACE = enum.auto()
    """It has pods in the object's namespace, or the configuration always wants the object."""
    SERVICE = enum.auto()
    """It needs the copy of the Service that the object belongs to. Without that copy, this one is deleted."""


@dataclass(frozen=True, slots=True)
class Creation:
    """How copies are created if the lower cluster may refuse a part of what is requested."""

    bodies: Callable[[Body, Body, View], list[dict[str, Any]]]
    """Returns the bodies to try in this order, for an upper object and its copy."""
    refusal: Callable[[str], str]
    """Returns the cause in an error message because of which the next body is tried; empty: none is."""
    event: Callable[[Body, Body, str, View], tuple[str, str]]
    """Returns reason and text of an event, for an upper object, what was created, and the cause; empty: no event."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of objects that are copied, and how."""

    resource: Resource
    translate: Callable[[Body, View], Translation]
    demand: Demand
    setting: str = ""
    """The name in ``follow`` that enables it; empty: it does not need to be enabled there."""
    purpose: str = ""
    """Why a virtual node needs rights for it; empty: for copies of the resource."""
    lower_name: Callable[[str, Body | None, View], str] = lambda name, _upper, _view: name
    """Returns the name of a copy, given the upper name and the upper object, if it exists; empty: unknown."""
    labels: Callable[[Body], dict[str, str]] = lambda _upper: {}
    """Returns further labels of a copy."""
    annotations: Callable[[str, View], dict[str, str | None]] = lambda _key, _view: {}
    """Returns further annotations of the copy of an upper key; None: the copy must not have the annotation."""
    translated: Callable[[Body, View], dict[str, str]] = lambda _upper, _view: {}
    """Returns annotations of an upper object that its copy has with another value, such as the name of a lower namespace."""
    creation: Creation | None = None
    """None: there is only one body to create."""
    changes: Callable[[Body, Body], dict[str, Any]] | None = None
    """Returns a merge patch of a copy's content, from its current to its desired state; None: ``merge_patch`` of ``spec``."""
    must_replace: Callable[[Body, Body], bool] = lambda _current, _desired: False
    """Reports whether a copy must be deleted and created again to become the desired one."""
    is_looser: Callable[[Body, Body], bool] = lambda _current, _desired: False
    """Reports whether the second ``spec`` allows more than the first. Such a change is delayed."""
    is_obsolete: Callable[[Object, View], bool] = lambda _copy, _view: False
    """Reports whether a copy with another name than the current one is to be deleted."""
    is_kept_for_others: Callable[[Object, View], bool] = lambda _copy, _view: False
    """Reports whether a copy shows that another installation always needs it."""
    shrink: Callable[[Object], Object] | None = None
    """Returns a cached copy without what is not needed to compare it; None: it is cached as it is."""
    depends_on_pods: bool = False
    depends_on_services: bool = False
    service_of: Callable[[str, Mapping[str, str]], str] | None = None
    """Returns the name of the Service that an object with that name and labels belongs to; for ``Demand.SERVICE``."""
    pods_of: Callable[[Object], Iterable[str]] | None = None
    """Returns the uids of upper pods whose lower pods decide what the copy of an object contains; None: no pods do."""
    is_restriction: bool = False
    """Whether an outdated copy allows what users no longer want to allow. So it is kept current also while the namespace is
    too large to be read, and new pods wait for it; its translation reads no other objects of the namespace."""
    reports_foreign_slices: bool = False
    """Whether the upper object gets an event if others add EndpointSlices to its copy."""
    addresses: AddressField | None = None
    """The status field of copies whose addresses are written to the upper status; None: there is none."""
    is_optional: bool = False
    """Whether a cluster may lack the API, because it is a CustomResourceDefinition."""
    is_quiet: bool = False
    """Whether failures write no event, because a controller and not a user made the upper object."""
    selects_namespaces: Callable[[Body], bool] | None = None
    """Reports whether a copy depends on the labels of other upper namespaces; None: no copy does."""
    namespace_selectors: Callable[[Body], list[Selector]] = lambda _upper: []
    """Returns the selectors of an object that are compared with all upper namespaces."""
    taken_advice: str = "Rename one of the two, or set namespaces.prefix for this lower cluster"
    """What to do, or what follows, if an unmanaged object has the name of a copy."""
    is_marked: Callable[[Mapping[str, str]], bool] = lambda _labels: True
    """Reports by its labels whether an object with our ownership label is a copy, and not made by a controller of the lower
    cluster from one."""
    kept_spec: Sequence[str] | None = ()
    """Fields of ``spec`` that rules of ``inspect`` read; None: the whole object."""

    @property
    def kind(self) -> str:
        """Return the name of the kind."""
        return self.resource.kind

    def selecting(self, found: Object) -> tuple[str, ...]:
        """Return an index value if the copy of an object depends on other namespaces, otherwise nothing."""
        # An error here would stop the informer, so a malformed object counts as one that selects namespaces.
        with contextlib.suppress(AttributeError, TypeError):
            selects = self.selects_namespaces
            return ("yes",) if selects is not None and selects(found.to_dict()) else ()
        return ("yes",)

    def service_key(self, found: Object) -> tuple[str, ...]:
        """Return the key of the upper Service that an upper object belongs to, for an index."""
        name = self.service_of(found.name, found.labels) if self.service_of is not None else ""
        return (f"{found.namespace}/{name}",) if name else ()

    def upper_key(self, copy: Object) -> tuple[str, ...]:
        """Return the key of the upper object that a copy was created for, for an index; none for other objects of ours."""
        if _is_no_copy(copy):
            return ()
        name = copy.annotations.get(names.ANNOTATION_SOURCE, copy.name)
        return (f"{ownership.upper_namespace(copy)}/{name}",)

    def is_copy_of(self, copy: Object, key: str, cluster_id: str, *, uid: str = "") -> bool:
        """Report whether a lower object is our copy of that upper object.

        Args:
            copy: the lower object.
            key: the key of the upper object.
            cluster_id: identity of the upper cluster.
            uid: uid of the upper object; empty: it does not exist.
        """
        if _is_no_copy(copy):
            return False
        namespace, _, name = key.partition("/")
        is_source = copy.annotations.get(names.ANNOTATION_SOURCE, name) == name
        is_made_for = bool(uid) and copy.labels.get(names.LABEL_UPPER_UID) == uid
        is_owned = ownership.is_owned_by(copy, cluster_id, namespace, upper_uid=uid)
        return is_owned and (is_source or is_made_for)

    def copy(self, key: str, upper: Body | None, content: Body, view: View) -> dict[str, Any]:
        """Return the lower object to create.

        Args:
            key: the key of the upper object.
            upper: the upper object; None: it does not exist, and the copy is a placeholder that reserves its name.
            content: the fields of the copy besides its metadata.
            view: the lower cluster.
        """
        namespace, _, name = key.partition("/")
        labels = {names.LABEL_UPPER_CLUSTER: view.cluster_id, **(self.labels(upper) if upper else {})}
        if upper is not None:
            labels[names.LABEL_UPPER_UID] = upper["metadata"]["uid"]
        if self.demand is Demand.REFERENCES:
            labels[names.LABEL_NODE] = view.nodes[0]
        annotations = self.annotations(key, view)
        if upper is None:
            annotations[names.ANNOTATION_PLACEHOLDER] = "true"
        above: Body = {"name": name, "namespace": namespace} if upper is None else upper["metadata"]
        if upper is not None and (translated := self.translated(upper, view)):
            above = {**above, "annotations": {**above["annotations"], **translated}}
        metadata = copy_metadata(
            self.kind,
            above,
            name=self.lower_name(name, upper, view),
            namespace=view.lower_namespace(namespace),
            labels=labels,
            annotations=annotations,
            rules=view.rules_of(namespace),
        )
        version = (upper or {}).get("apiVersion", self.resource.api_version)
        return {"apiVersion": version, "kind": self.kind, "metadata": metadata, **content}

    def copy_of(self, upper: Body, view: View) -> dict[str, Any] | None:
        """Return the whole copy of an upper object; None: the lower cluster does not need the object.

        Raises:
            UntranslatableError: it cannot be copied.
        """
        content = self.translate(upper, view).content
        key = f"{upper['metadata']['namespace']}/{upper['metadata']['name']}"
        return None if content is None else self.copy(key, upper, content, view)

    def patch(self, current: Body, desired: Body, upper: Body | None = None) -> dict[str, Any] | None:
        """Return a merge patch that makes a copy equal to the desired one; None: they are equal."""
        if self.changes is not None:
            patch = self.changes(current, desired)
        else:
            spec = merge_patch(current.get("spec") or {}, desired.get("spec") or {})
            patch = {"spec": spec} if spec else {}
        above = upper["metadata"] if upper is not None else {}
        if metadata := copy_metadata_patch(self.kind, current["metadata"], desired["metadata"], above):
            patch["metadata"] = metadata
        return patch or None


def _is_no_copy(found: Object) -> bool:
    """Report whether an object of ours has no upper object: a Secret with tokens or certificates, or the Service of the API server."""
    return bool(
        service_account.token_owner(found.name, found.labels)
        or pod_certificates.secret_owner(found.name, found.labels)
        or api_server.is_api_service(found.name, found.labels)
    )


def _root_ca_name(name: str, _upper: Body | None, view: View) -> str:
    """Return the name of the copy of a ConfigMap. That of the root CA is renamed: each cluster has a root CA."""
    return service_account.root_ca_name(view.cluster_id) if name == service_account.ROOT_CA else name


def _own_name(name: str, _upper: Body | None, view: View) -> str:
    """Return a lower name that differs for each process, because a copied budget counts the pods of one process."""
    suffix = hashlib.sha256(min(view.nodes).encode()).hexdigest()[:8]
    return f"{name[: LONGEST_NAME - 9]}-{suffix}"


def _selects_our_pods(copy: Object, view: View) -> bool:
    """Report whether a copied budget selects pods of our virtual nodes.

    If it has another name, that was derived when another virtual node was the first one. The lower cluster refuses to
    evict pods with two PodDisruptionBudgets.
    """
    return bool(selected_nodes(copy.spec) & {*view.nodes})


CONFIG_MAPS = Kind(
    resources.CONFIG_MAPS,
    references.lower_data,
    Demand.REFERENCES,
    lower_name=_root_ca_name,
    changes=references.data_changes,
    shrink=references.without_values,
    kept_spec=None,
)
SECRETS = Kind(
    resources.SECRETS,
    references.lower_data,
    Demand.REFERENCES,
    purpose="copies of secrets; in lower clusters also pod tokens",
    changes=references.data_changes,
    shrink=references.without_values,
    kept_spec=None,
)
CLAIMS = tuple(
    Kind(
        resource,
        references.lower_claim,
        Demand.REFERENCES,
        purpose="copies of claims of devices (resourceClaims.enabled)",
        changes=lambda _current, _desired: {},  # the spec of a claim is immutable
        must_replace=references.was_made_for_another,
        is_optional=True,
    )
    for resource in (resources.RESOURCE_CLAIMS, resources.RESOURCE_CLAIM_TEMPLATES)
)
SERVICES = Kind(
    resources.SERVICES,
    services.lower_service,
    Demand.NAMESPACE,
    purpose="copies of services; service variables",
    annotations=services.marks,
    creation=Creation(services.bodies, services.refusal, services.other_addresses),
    changes=services.changes,
    must_replace=services.must_replace,
    is_kept_for_others=services.is_kept_for_others,
    reports_foreign_slices=True,
    is_marked=lambda labels: names.LABEL_API_SERVER not in labels,
    taken_advice="Pods there use it instead of this one",
    kept_spec=("selector",),
)
ENDPOINT_SLICES = Kind(
    resources.ENDPOINT_SLICES,
    endpoints.lower_slice,
    Demand.SERVICE,
    purpose="endpoints of services",
    lower_name=endpoints.lower_name,
    labels=endpoints.labels_of,
    changes=endpoints.changes,
    is_obsolete=lambda _copy, _view: True,
    service_of=endpoints.service_of,
    pods_of=endpoints.pods_of,
    is_quiet=True,
    # Slices that Kubernetes creates for a copied Service have our labels, too.
    is_marked=lambda labels: (
        labels.get(endpoints.LABEL_MANAGED_BY) == endpoints.MANAGED_BY
        and names.LABEL_API_SERVER not in labels
    ),
)
NETWORK_POLICIES = Kind(
    resources.NETWORK_POLICIES,
    network_policies.lower_policy,
    Demand.NAMESPACE,
    "networkPolicies",
    is_restriction=True,
    selects_namespaces=network_policies.selects_namespaces,
    namespace_selectors=network_policies.namespace_selectors,
)
KINDS = (
    SERVICES,
    ENDPOINT_SLICES,
    CONFIG_MAPS,
    SECRETS,
    *CLAIMS,
    Kind(
        resources.SERVICE_EXPORTS,
        services.lower_export,
        Demand.SERVICE,
        "serviceExports",
        service_of=services.service_of,
        is_optional=True,
    ),
    Kind(
        resources.HTTP_ROUTES,
        gateways.lower_route,
        Demand.NAMESPACE,
        "gateways",
        creation=Creation(gateways.route_bodies, gateways.route_refusal, gateways.route_event),
        depends_on_services=True,
        is_optional=True,
    ),
    Kind(
        resources.GATEWAYS,
        gateways.lower_gateway,
        Demand.NAMESPACE,
        "gateways",
        addresses=gateways.ADDRESSES,
        selects_namespaces=gateways.selects_namespaces,
        namespace_selectors=gateways.namespace_selectors,
        is_optional=True,
    ),
    Kind(
        resources.INGRESSES,
        ingresses.lower_ingress,
        Demand.NAMESPACE,
        "ingresses",
        translated=ingresses.lower_annotations,
        depends_on_services=True,
        addresses=ingresses.ADDRESSES,
    ),
    Kind(
        resources.POD_DISRUPTION_BUDGETS,
        disruption_budgets.lower_budget,
        Demand.NAMESPACE,
        "podDisruptionBudgets",
        lower_name=_own_name,
        is_looser=disruption_budgets.allows_more,
        is_obsolete=_selects_our_pods,
        depends_on_pods=True,
        kept_spec=("selector",),
    ),
    NETWORK_POLICIES,
)
"""In the order in which ``cleanup`` deletes copies."""
REFERENCED = {kind.kind: kind for kind in KINDS if kind.demand is Demand.REFERENCES}
"""Kinds that pods reference, by name."""
FOLLOWED = tuple(kind for kind in KINDS if kind.setting)
"""Kinds that ``follow`` of a lower cluster enables."""


def enabled(follow: Collection[str]) -> tuple[Kind, ...]:
    """Return the kinds that are copied to a lower cluster with this ``follow``, without ResourceClaims."""
    return tuple(kind for kind in KINDS if (kind.setting in follow if kind.setting else kind not in CLAIMS))
