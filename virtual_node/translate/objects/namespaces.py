"""Labels and annotations of a lower namespace, unmanaged objects in it, and which objects in it are ours. No IO.

``clusterset.model.namespace_map`` maps the name of the namespace.

A user of a lower cluster can copy our labels and annotations to objects in the user's own namespaces. So these prove
ownership only in a lower namespace that stands for the upper namespace of the object (``Places``): the Namespace has our
marks, which only virtual-node and administrators of the lower cluster can write, or the configuration adopts it.
Everywhere else an object is not ours, whatever labels it has.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from clusterset.model import names, namespace_map
from clusterset.model.namespace_map import NamespaceMap
from clusterset.model.policy.rules import PolicySet, matches
from controller_runtime.objects import Object
from virtual_node.translate.base import ownership
from virtual_node.translate.base.metadata import copied, record_labels, recorded_labels

_CARRIED_PREFIXES = ("pod-security.kubernetes.io/",)
"""Prefixes of labels that decide what the pods of a namespace may do. Without them the lower cluster could
refuse a pod that Pod Security admitted in the upper cluster, or the reverse.
https://kubernetes.io/docs/concepts/security/pod-security-admission/"""
_NOT_COUNTED = {("", "events"), ("events.k8s.io", "events"), ("metrics.k8s.io", "pods"), ("", "endpoints")}
"""Resources that are not counted, because they only describe other objects, which are counted."""
_CERTIFICATES = frozenset({"kube-root-ca.crt", "openshift-service-ca.crt"})
_ISTIO = frozenset({"istio-ca-root-cert", "istio-ca-crl"})
_OF_SERVICE_ACCOUNT = (
    "kubernetes.io/service-account.name",
    "openshift.io/internal-registry-auth-token.service-account",
)
_GENERATED_SECRET = re.compile(r"-(token|dockercfg)-[a-z0-9]{5}")
"""End of the names that Kubernetes before 1.24 and OpenShift generate, after that of the account. Tokens of users have others."""
_ACCOUNTS = frozenset({"default"})
_OPENSHIFT_ACCOUNTS = frozenset({"builder", "deployer", "pipeline"})
"""OpenShift annotates accounts of users, too, so only these count as its own."""
_OPENSHIFT_BINDINGS = frozenset({"system:deployers", "system:image-builders", "system:image-pullers"})


@dataclass(frozen=True, slots=True)
class CarriedLabels:
    """The labels of upper namespaces that their lower namespaces get: Pod Security labels, and ``namespaces.labels``."""

    patterns: Sequence[str] = ()
    policy: PolicySet = field(default_factory=PolicySet)

    def of(self, upper: Mapping[str, Any] | None) -> dict[str, str]:
        """Return the labels that an upper Namespace gives; None: the Namespace is unknown."""
        metadata = (upper or {}).get("metadata") or {}
        labels = metadata.get("labels") or {}
        chosen = {key: value for key, value in labels.items() if matches(key, self.patterns)}
        if chosen:
            rules = self.policy.of(metadata["name"]).metadata
            chosen = copied("Namespace", {"labels": chosen}, rules)["labels"]
        return chosen | {key: value for key, value in labels.items() if key.startswith(_CARRIED_PREFIXES)}

    def concern(self, key: str) -> bool:
        """Report whether a label is ours to change; another process may have other patterns for the same namespace."""
        return key.startswith(_CARRIED_PREFIXES) or matches(key, self.patterns)


def lower_namespace(
    upper: Mapping[str, Any] | None,
    *,
    name: str,
    upper_name: str,
    cluster_id: str,
    carried: CarriedLabels = CarriedLabels(),
) -> dict[str, Any]:
    """Return the lower Namespace to create.

    Args:
        upper: the upper Namespace; None: unknown.
        name: the lower name.
        upper_name: the upper name.
        cluster_id: the upper cluster's identity, for the ownership label.
        carried: the labels that it gets from the upper Namespace.
    """
    given = carried.of(upper)
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": name,
            "labels": {**given, names.LABEL_UPPER_CLUSTER: cluster_id},
            "annotations": {
                names.ANNOTATION_UPPER_NAMESPACE: upper_name,
                names.ANNOTATION_MADE_FOR: f"{cluster_id}/{upper_name}",
                names.ANNOTATION_APPLIED: record_labels(given),
            },
        },
    }


def upper_name(lower: Object) -> str:
    """Return the upper namespace that an owned lower namespace was created for."""
    recorded = lower.annotations.get(names.ANNOTATION_MADE_FOR, "").partition("/")[2]
    return lower.annotations.get(names.ANNOTATION_UPPER_NAMESPACE, recorded) or lower.name


def upper_names(lower: Object) -> list[str]:
    """Return the upper namespaces in an owned lower namespace's marks: one, or two if one mark was changed."""
    _, _, name = lower.annotations.get(names.ANNOTATION_MADE_FOR, "").partition("/")
    return list(dict.fromkeys(one for one in (upper_name(lower), name) if one))


def marks_patch(lower: Object, *, upper_name: str, cluster_id: str) -> dict[str, Any] | None:
    """Return a merge patch that restores the marks of an owned namespace; None: they are complete."""
    marks = lower_namespace(None, name="", upper_name=upper_name, cluster_id=cluster_id)["metadata"]
    del marks["name"], marks["annotations"][names.ANNOTATION_APPLIED]
    current = {"labels": lower.labels, "annotations": lower.annotations}
    is_complete = all(marks[field].items() <= current[field].items() for field in marks)
    return None if is_complete else {"metadata": marks}


def namespace_patch(
    upper: Mapping[str, Any],
    lower: Mapping[str, Any],
    carried: CarriedLabels = CarriedLabels(),
) -> dict[str, Any] | None:
    """Return a merge patch that copies labels of the upper namespace to an owned namespace; None: they are current.

    A label that was changed or removed in the lower cluster is no longer changed, because it belongs to the lower
    administrator. Each Pod Security mode (``enforce``, ``audit``, ``warn``) has a label and a version label, which belong
    together.
    """
    wanted = carried.of(upper)
    labels = (lower.get("metadata") or {}).get("labels") or {}
    recorded = recorded_labels(lower["metadata"])
    # A former pattern may still be that of another process, so labels that only the record has stay in it.
    ours = {key: value for key, value in (recorded or {}).items() if carried.concern(key)}
    present = {
        key: value
        for key, value in labels.items()
        if key in {*wanted, *ours} or key.startswith(_CARRIED_PREFIXES)
    }
    if recorded is None:  # created by a release without the record
        ours = {key: value for key, value in present.items() if wanted.get(key) == value}
    changed_below = {_mode(key) for key in {*present, *ours} if present.get(key) != ours.get(key)}
    change = {
        key: wanted.get(key)
        for key in sorted({*wanted, *ours})
        if _mode(key) not in changed_below and present.get(key) != wanted.get(key)
    }
    record = {key: value for key, value in (recorded or {}).items() if not carried.concern(key)}
    record |= {key: value for key, value in ours.items() if _mode(key) in changed_below}
    record |= {key: value for key, value in wanted.items() if _mode(key) not in changed_below}
    metadata: dict[str, Any] = {"labels": change} if change else {}
    if recorded != record:
        metadata["annotations"] = {names.ANNOTATION_APPLIED: record_labels(record)}
    return {"metadata": metadata} if metadata else None


def others(
    objects: Iterable[Mapping[str, Any]],
    *,
    group: str,
    resource: str,
    cluster_id: str,
    upper_name: str,
    generated: Sequence[str] = (),
) -> list[str]:
    """Return the names of objects in a lower namespace that neither we nor programs of every namespace created.

    Objects that we created for another upper namespace are included.

    Args:
        objects: objects of one resource.
        group: their API group.
        resource: their plural name.
        cluster_id: the upper cluster's identity.
        upper_name: the upper namespace that the lower one was created for.
        generated: ``namespaces.generated``.
    """
    qualified = f"{resource}.{group}" if group else resource
    return [
        item["metadata"]["name"]
        for item in objects
        if not ownership.is_owned_by(ownership.Marks.of(item["metadata"]), cluster_id, upper_name)
        and not _is_of_every_namespace(item["metadata"], group, resource)
        and not matches(f"{qualified}/{item['metadata']['name']}", generated)
    ]


def _is_of_every_namespace(metadata: Mapping[str, Any], group: str, resource: str) -> bool:
    """Report whether Kubernetes, OpenShift or Istio created an object, as in every namespace."""
    annotations = metadata.get("annotations") or {}
    match group, resource:
        case "", "configmaps":
            of_istio = (metadata.get("labels") or {}).get("istio.io/config") == "true"
            return metadata["name"] in (_CERTIFICATES | _ISTIO if of_istio else _CERTIFICATES)
        case "", "serviceaccounts":
            of_openshift = "openshift.io/internal-registry-pull-secret-ref" in annotations
            return metadata["name"] in (_ACCOUNTS | _OPENSHIFT_ACCOUNTS if of_openshift else _ACCOUNTS)
        case "", "secrets":
            accounts = [annotations[key] for key in _OF_SERVICE_ACCOUNT if key in annotations]
            ends = [metadata["name"].removeprefix(account) for account in accounts]
            return any(_GENERATED_SECRET.fullmatch(end) for end in ends)
        case "rbac.authorization.k8s.io", "rolebindings":
            return metadata["name"] in _OPENSHIFT_BINDINGS
        case "discovery.k8s.io", "endpointslices":
            owners = metadata.get("ownerReferences") or ()
            return any(owner.get("kind") == "Service" for owner in owners)
        case kind:
            return kind in _NOT_COUNTED


def _mode(key: str) -> str:
    """Return the label of a Pod Security mode, given that label or its version label; another label itself."""
    return key.removesuffix("-version") if key.startswith(_CARRIED_PREFIXES) else key


@dataclass(eq=False)
class Places:
    """The lower namespaces of one lower cluster that stand for namespaces of our upper cluster."""

    cluster_id: str
    """Identity of the upper cluster."""
    namespace_map: NamespaceMap
    adopt: bool | Sequence[str] = False
    """``namespaces.adopt``: existing lower namespaces that may be used."""
    _owned: dict[str, frozenset[str]] = field(default_factory=dict)
    """By lower namespace that we created, the upper namespaces in its marks; empty name: the mark has none."""
    is_used: Callable[[str, str], bool] = lambda _namespace, _upper_namespace: False
    """Reports whether a lower namespace has our pods of an upper one; empty: of any. Such pods may be older than a
    change of the configuration, and still need the objects that they use."""
    _listeners: list[Callable[[str], None]] = field(default_factory=list)

    def on_new(self, call: Callable[[str], None]) -> None:
        """Register a function to call with each lower namespace that gets other marks."""
        self._listeners.append(call)

    def note(self, namespace: Object) -> None:
        """Remember the marks of a lower namespace as the lower cluster has it."""
        marked = frozenset(
            upper
            for cluster_id, upper in namespace_map.marks(namespace.labels, namespace.annotations)
            if cluster_id == self.cluster_id
        )
        if marked == self._owned.get(namespace.name, frozenset()):
            return
        if not marked:
            self.forget(namespace.name)
            return
        self._owned[namespace.name] = marked
        for call in self._listeners:
            call(namespace.name)

    def forget(self, namespace: str) -> None:
        """Forget a lower namespace that is gone or no longer has our marks."""
        self._owned.pop(namespace, None)

    def stands_for(self, namespace: str, upper_namespace: str) -> bool:
        """Report whether our objects for an upper namespace may be in that lower namespace.

        A marked namespace stands for the upper namespace in its marks, also after a change of ``namespaces.prefix`` or
        ``namespaces.map``. All others stand only for the upper namespace that is mapped to them.
        """
        if marked := self._owned.get(namespace):
            return upper_namespace in marked or (
                marked == {""} and self.namespace_map(upper_namespace) == namespace
            )
        return (
            namespace_map.adopts(namespace, self.adopt)
            and self.namespace_map(upper_namespace) == namespace
            and not self.namespace_map.conflicting_upper(upper_namespace)
        )

    def is_in_place(self, lower: Object) -> bool:
        """Report whether an object with our labels is where we put the objects of its upper namespace."""
        return self.holds(lower.namespace, ownership.upper_namespace(lower))

    def holds(self, namespace: str, upper_namespace: str) -> bool:
        """Report whether objects for an upper namespace in that lower namespace are ours."""
        return self.stands_for(namespace, upper_namespace) or self.is_used(namespace, upper_namespace)

    def has(self, namespace: str) -> bool:
        """Report whether a lower namespace stands for any upper namespace, or has our pods."""
        is_usable = namespace in self._owned or namespace_map.adopts(namespace, self.adopt)
        return is_usable or self.is_used(namespace, "")
