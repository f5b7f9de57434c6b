"""What translations know about a lower cluster, and what they return; the options of pod translation."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from clusterset.admission import ClusterRules
from clusterset.config import Cluster, NodeConfig
from clusterset.model import names
from clusterset.model.overrides import OverrideSet
from clusterset.model.pod.affinity_terms import Reach
from clusterset.model.policy.config import MetadataRules
from clusterset.model.policy.copied_keys import KeyPatterns
from clusterset.model.policy.rules import PolicySet
from controller_runtime.apimachinery.matching import Matcher, compile_selector
from virtual_node.config.types import Config
from virtual_node.translate.base.metadata import DEFAULT_RULES
from virtual_node.translate.base.ownership import Owner

Labels = Mapping[str, str]
Selector = Mapping[str, Any]
"""A metav1.LabelSelector."""


class UntranslatableError(Exception):
    """An object cannot be copied to the lower cluster; the message says why and what to do.

    Attributes:
        reason: reason of the event about the object.
        is_final: whether a copy of an earlier state is deleted, because it would accept what the object no longer accepts.
    """

    def __init__(self, message: str, *, reason: str = "NotMirrored", is_final: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.is_final = is_final


_MAX_REQUIREMENTS = 50
"""Maximum number of requirements of a selector that is compared with many objects."""
_MAX_NOTES = 5
_MAX_VALUES = 500
"""Maximum number of values in all requirements of such a selector."""
MOST_SELECTORS = 20
"""Maximum number of different namespace selectors of one object that are compared with all namespaces."""
MOST_SELECTORS_OF_NAMESPACE = 200
"""Maximum number of different namespace selectors of all objects of one namespace."""
TOO_MANY_SELECTORS = (
    f"an object can have {MOST_SELECTORS} different namespace selectors, and all objects of a namespace "
    f"{MOST_SELECTORS_OF_NAMESPACE}. Select namespaces by the label kubernetes.io/metadata.name, or use the same "
    "selectors"
)


def selected_nodes(spec: Any) -> frozenset[str]:
    """Return the virtual nodes to which ``View.only_ours`` limited the selector of a copy; empty: none, or malformed."""
    try:
        expressions = spec["selector"]["matchExpressions"]
        return frozenset(
            node for one in expressions if one["key"] == names.LABEL_NODE for node in one["values"]
        )
    except (KeyError, TypeError):
        return frozenset()


def matcher(name: str, selector: Selector) -> Matcher:
    """Return a compiled selector that may be compared with many objects.

    Raises:
        UntranslatableError: it is too large; the message begins with ``name``.
        ValueError: it is malformed.
    """
    if why := too_large(selector):
        raise UntranslatableError(f"{name} {why}")
    return compile_selector(selector)


def no_copy(service: str) -> str:
    """Return for users why a Service is no backend of a copy."""
    return (
        f"Service {service} has no copy in the lower cluster, or has type ExternalName. Events of the Service say why it "
        "has no copy"
    )


def too_large(selector: Selector) -> str:
    """Return why a selector must not be compared with many objects; empty: it may."""
    expressions = selector.get("matchExpressions") or ()
    if len(selector.get("matchLabels") or ()) + len(expressions) > _MAX_REQUIREMENTS:
        return f"has more than {_MAX_REQUIREMENTS} requirements"
    if sum(len(one.get("values") or ()) for one in expressions) > _MAX_VALUES:
        return f"has more than {_MAX_VALUES} values"
    return ""


def compared(selectors: Iterable[Selector]) -> list[Selector]:
    """Return the different selectors of one object that are compared with all namespaces: the first ``MOST_SELECTORS``."""
    found: dict[bytes, Selector] = {}
    for selector in selectors:
        code = selector_code(selector)
        if code not in found and not too_large(selector):
            if len(found) >= MOST_SELECTORS:
                break
            found[code] = selector
    return list(found.values())


def selector_code(selector: Selector) -> bytes:
    """Return a short key that is equal for equal selectors only."""
    return hashlib.blake2b(msgspec.json.encode(selector, order="sorted"), digest_size=16).digest()


class Translation(NamedTuple):
    """The copy of an object."""

    content: dict[str, Any] | None
    """The fields of the copy besides its metadata; None: the lower cluster does not need the object."""
    notes: tuple[str, ...] = ()
    """What the copy leaves out, and what to do."""
    secrets: tuple[str, ...] = ()
    """Secrets of the object's namespace that the copy references."""
    config_maps: tuple[str, ...] = ()
    """As ``secrets``."""

    @property
    def spec(self) -> dict[str, Any] | None:
        """Return the ``spec`` of the copy; None: the lower cluster does not need the object."""
        return None if self.content is None else dict(self.content["spec"])


NOT_NEEDED = Translation(None)


def of_spec(
    spec: dict[str, Any],
    notes: Iterable[str] = (),
    secrets: Iterable[str] = (),
    config_maps: Iterable[str] = (),
) -> Translation:
    """Return the Translation of an object that has only a ``spec``, with the first five notes and each name once."""
    return Translation(
        {"spec": spec},
        tuple(notes)[:_MAX_NOTES],
        tuple(dict.fromkeys(secrets)),
        tuple(dict.fromkeys(config_maps)),
    )


@dataclass(frozen=True, slots=True)
class LowerPod:
    """The pod of this lower cluster that mirrors an upper pod."""

    namespace: str
    name: str
    uid: str
    node_name: str
    """The lower node; empty: not scheduled yet."""
    is_ready: bool | None = None
    """Whether the pod is Ready, including the readiness gates of its upper pod; None: unknown."""
    is_terminating: bool = False
    """Whether one of the two pods is being deleted."""
    addresses: frozenset[str] | None = None
    """Addresses of a pod of another process, which only has these in common with an endpoint that it is the pod of; None:
    the pod is known to be the lower pod of the upper one."""


FindPod = Callable[[str, str, str], LowerPod | None]
"""Returns the lower pod for namespace, name and uid (may be empty) of an upper pod; None: another lower
cluster runs the pod."""


def same_namespace(namespace: str) -> str:
    """Return the name unchanged, because by default an upper namespace has the same name in the lower cluster."""
    return namespace


@dataclass(frozen=True, slots=True)
class PodOptions:
    """Options for translating the pods of one virtual node."""

    owner: Owner
    ignore_labels: KeyPatterns = field(default_factory=KeyPatterns)
    """Labels that lower pods do not get."""
    ignore_annotations: KeyPatterns = field(default_factory=KeyPatterns)
    """Annotations that lower pods do not get."""
    service_accounts: bool = True
    """Whether lower pods get tokens of the upper cluster; if not, they use a ServiceAccount of the lower cluster."""
    shared_tokens: bool = False
    """Whether new pods share the tokens of the virtual node; if not, each pod has its own."""
    namespace_map: Callable[[str], str] = same_namespace
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of the virtual node, against which clusterSelectors are matched."""
    pool: Mapping[str, str] = field(default_factory=dict)
    """Labels of the lower nodes that the virtual node represents; empty: all nodes of the lower cluster."""
    device_classes: Mapping[str, str] = field(default_factory=dict)
    """Lower DeviceClass by upper DeviceClass, if their names differ."""
    policy: PolicySet = field(default_factory=PolicySet)
    """What pods may request from the lower cluster. Translation drops PriorityClasses and preferred nodes
    that it does not allow."""
    overrides: OverrideSet = field(default_factory=OverrideSet)
    """What the operator changes in the lower pods."""
    dns_servers: Sequence[str] = ()
    """Name servers for the names of the upper cluster; empty: pods use the DNS of the lower cluster."""
    cluster_domain: str = "cluster.local"
    """DNS domain of the upper cluster."""
    reach: Reach = field(default_factory=Reach)
    """The pods that the (anti-)affinity terms of lower pods may select."""

    @property
    def name(self) -> str:
        """Return the name of the virtual node."""
        return self.owner.node_name


def pod_options(settings: Config, cluster: Cluster, rules: ClusterRules, node: NodeConfig) -> PodOptions:
    """Return the options for a virtual node of a lower cluster."""
    return PodOptions(
        owner=Owner(cluster_id=rules.cluster_id, node_name=node.name),
        ignore_labels=settings.ignored.labels,
        ignore_annotations=settings.ignored.annotations,
        service_accounts=settings.enable_serviceaccount,
        shared_tokens=settings.identities.tokens == "node",
        namespace_map=rules.namespace_map,
        labels={
            names.LABEL_HOSTNAME: node.name,
            names.LABEL_NODE_TYPE: names.NODE_TYPE_VIRTUAL,
            names.LABEL_LOWER_CLUSTER: cluster.name,
            **node.labels,
        },
        pool=node.node_selector,
        device_classes=cluster.resource_claims.device_classes,
        policy=rules.policy,
        overrides=rules.overrides,
        dns_servers=cluster.dns.servers,
        cluster_domain=settings.cluster_domain,
        reach=rules.reach,
    )


@dataclass(frozen=True, slots=True)
class View:
    """One lower cluster, as far as translations need it."""

    cluster_id: str
    """Identity of the upper cluster."""
    nodes: tuple[str, ...]
    """The virtual nodes of the lower cluster."""
    changed_labels: Container[str] = ()
    """Pod labels that are not copied to lower pods, or that overrides change."""
    lower_namespace: Callable[[str], str] = same_namespace
    rules_of: Callable[[str], MetadataRules] = lambda _namespace: DEFAULT_RULES
    """``policy.metadata`` for an upper namespace."""
    is_allowed: Callable[[str], bool] = lambda _namespace: True
    """Whether pods of an upper namespace may run in the lower cluster."""
    labels_of: Callable[[str], Labels | None] = lambda _namespace: None
    """Labels of an upper namespace; None: it does not exist."""
    selected: Callable[[Selector], Collection[str] | None] = lambda _selector: None
    """Returns the allowed upper namespaces that a selector matches; None: ``TOO_MANY_SELECTORS``."""
    pods: Callable[[str], Iterable[Labels]] = lambda _namespace: ()
    """Labels of the pods of an upper namespace that run or will run in the lower cluster."""
    find_pod: FindPod = lambda _namespace, _name, _uid: None
    publishes_unready: Callable[[str, str], bool] = lambda _namespace, _name: False
    """Whether the upper Service with that namespace and name has ``publishNotReadyAddresses``."""
    has_service: Callable[[str, str], bool] = lambda _namespace, _name: False
    """Whether routes may use the Service with that upper namespace and name: the lower cluster has a copy of it, which is
    not of type ExternalName."""
    service_annotations: Callable[[str, str], Mapping[str, str]] = lambda _namespace, _name: {}
    """Annotations of the Service with that upper namespace and name."""
    adopt: bool | Sequence[str] = False
    """``namespaces.adopt``: lower namespaces that may be used, although virtual-node did not create and label them."""
    ingress_classes: Mapping[str, str] = field(default_factory=dict)
    """Lower IngressClass by upper IngressClass."""
    gateway_classes: Mapping[str, str] = field(default_factory=dict)
    """Lower GatewayClass by upper GatewayClass."""
    device_classes: Mapping[str, str] = field(default_factory=dict)
    """Lower DeviceClass by upper DeviceClass, if their names differ."""
    always: Sequence[str] = ()
    """``services.always``: Services that are copied even if no pod uses them."""
    requests_same_addresses: bool = False
    """Whether copies of Services request the upper addresses (``services.clusterIP: same``)."""

    def lost_keys(self, selector: Mapping[str, Any]) -> list[str]:
        """Return the label keys in a selector that lower pods do not have with the upper pod's value.

        Unknown fields of the selector are included, because nothing is known about the pods that they select.
        """
        used = [*(selector.get("matchLabels") or {})]
        used += [one["key"] for one in selector.get("matchExpressions") or ()]
        unknown = selector.keys() - {"matchLabels", "matchExpressions"}
        return sorted({key for key in used if self._is_lost(key)} | unknown)

    def without_lost(self, selector: Mapping[str, Any]) -> dict[str, Any]:
        """Return a selector without the requirements on ``lost_keys``; it selects the same pods or more."""
        labels = selector.get("matchLabels") or {}
        expressions = selector.get("matchExpressions") or ()
        return {
            "matchLabels": {key: value for key, value in labels.items() if not self._is_lost(key)},
            "matchExpressions": [one for one in expressions if not self._is_lost(one["key"])],
        }

    def only_ours(self, selector: Mapping[str, Any], *, on_our_nodes: bool = False) -> dict[str, Any]:
        """Return a selector limited to pods of this upper cluster; with ``on_our_nodes`` also to pods on ``nodes``."""
        found = {
            "matchLabels": {
                **(selector.get("matchLabels") or {}),
                names.LABEL_UPPER_CLUSTER: self.cluster_id,
            }
        }
        expressions = list(selector.get("matchExpressions") or ())
        if on_our_nodes:
            expressions.append({"key": names.LABEL_NODE, "operator": "In", "values": sorted(self.nodes)})
        return {**found, **({"matchExpressions": expressions} if expressions else {})}

    def _is_lost(self, key: str) -> bool:
        return key in self.changed_labels or key == names.LABEL_VIRTUAL_POD or names.is_reserved(key)
