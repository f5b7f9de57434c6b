"""The kinds of objects that can follow pods, and how each is translated."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from controller_runtime import resources
from controller_runtime.objects import Object
from controller_runtime.resources import Resource
from virtual_node.translate.follow import disruption_budgets, gateways, ingresses, network_policies
from virtual_node.translate.follow.addresses import AddressField
from virtual_node.translate.follow.view import Selector, Translation, View

_LONGEST = 253


def _own_name(name: str, node: str) -> str:
    """Return a lower name that differs for each process, because a copied budget counts the pods of one process."""
    suffix = hashlib.sha256(node.encode()).hexdigest()[:8]
    return f"{name[: _LONGEST - 9]}-{suffix}"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of objects that can follow pods, and how it is translated."""

    setting: str
    """Its name in ``follow``."""
    resource: Resource
    translate: Callable[[Mapping[str, Any], View], Translation]
    lower_name: Callable[[str, str], str] = lambda name, _node: name
    """Returns the name of a copy, given the upper name and the first virtual node of the lower cluster."""
    is_looser: Callable[[Mapping[str, Any], Mapping[str, Any]], bool] = lambda _current, _desired: False
    """Reports whether the second ``spec`` allows more than the first. Such a change is delayed."""
    depends_on_pods: bool = False
    depends_on_services: bool = False
    is_restriction: bool = False
    """Whether an outdated copy allows what users no longer want to allow. So it is kept current also while the namespace is
    too large to be read; its translation reads no other objects of the namespace."""
    addresses: AddressField | None = None
    """The status field of copies whose addresses are written to the upper status; None: there is none."""
    is_optional: bool = False
    """Whether a cluster may lack the API, because it is a CustomResourceDefinition."""
    selects_namespaces: Callable[[Mapping[str, Any]], bool] | None = None
    """Reports whether a copy depends on the labels of other upper namespaces; None: no copy does."""
    namespace_selectors: Callable[[Mapping[str, Any]], list[Selector]] = lambda _upper: []
    """Returns the selectors of an object that are compared with all upper namespaces."""

    def selecting(self, found: Object) -> tuple[str, ...]:
        """Return an index value if the copy of an object depends on other namespaces, otherwise nothing."""
        # An error here would stop the informer, so a malformed object counts as one that selects namespaces.
        with contextlib.suppress(AttributeError, TypeError):
            selects = self.selects_namespaces
            return ("yes",) if selects is not None and selects(found.to_dict()) else ()
        return ("yes",)


NETWORK_POLICIES = Kind(
    "networkPolicies",
    resources.NETWORK_POLICIES,
    network_policies.lower_policy,
    is_restriction=True,
    selects_namespaces=network_policies.selects_namespaces,
    namespace_selectors=network_policies.namespace_selectors,
)
KINDS = (
    NETWORK_POLICIES,
    Kind(
        "podDisruptionBudgets",
        resources.POD_DISRUPTION_BUDGETS,
        disruption_budgets.lower_budget,
        lower_name=_own_name,
        is_looser=disruption_budgets.allows_more,
        depends_on_pods=True,
    ),
    Kind(
        "ingresses",
        resources.INGRESSES,
        ingresses.lower_ingress,
        depends_on_services=True,
        addresses=ingresses.ADDRESSES,
    ),
    Kind(
        "gateways",
        resources.GATEWAYS,
        gateways.lower_gateway,
        addresses=gateways.ADDRESSES,
        selects_namespaces=gateways.selects_namespaces,
        namespace_selectors=gateways.namespace_selectors,
        is_optional=True,
    ),
    Kind(
        "gateways",
        resources.HTTP_ROUTES,
        gateways.lower_route,
        depends_on_services=True,
        is_optional=True,
    ),
)
