"""Permissions in a cluster as a table: declared once by a component, used by checks, manifests and the chart."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

READ = ("get", "list", "watch")
MANAGE = (*READ, "create", "patch", "delete")
"""Verbs for objects that a component creates."""
OWN_NAMESPACE = "<own>"
"""Placeholder in ``Right.namespace`` for the namespace that a component is installed in."""


@dataclass(frozen=True, slots=True)
class Right:
    """Verbs on one resource, and what fails without them."""

    group: str
    resource: str
    verbs: tuple[str, ...]
    purpose: str
    subresource: str = ""
    namespace: str = ""
    names: tuple[str, ...] = ()
    """Names of the only objects that the right applies to (``resourceNames``). Empty: all. May have
    placeholders, see ``resolved``."""

    @property
    def full_resource(self) -> str:
        """Return the resource as in RBAC rules, such as ``pods`` or ``pods/log``."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource

    def attributes(self) -> Iterator[dict[str, str]]:
        """Yield ``spec.resourceAttributes`` of a SelfSubjectAccessReview, one per verb (and name)."""
        for verb, name in itertools.product(self.verbs, self.names or ("",)):
            optional = {"subresource": self.subresource, "namespace": self.namespace, "name": name}
            yield {
                "verb": verb,
                "group": self.group,
                "resource": self.resource,
                **{field: value for field, value in optional.items() if value},
            }


def in_own_namespace(group: str, resource: str, verbs: tuple[str, ...], purpose: str, *names: str) -> Right:
    """Return a right in the namespace that a component is installed in; without ``names`` it applies to all objects."""
    return Right(group, resource, verbs, purpose, "", OWN_NAMESPACE, names)


def leader_election(lease: str, purpose: str) -> tuple[Right, Right]:
    """Return the rights to elect a leader by the Lease ``lease`` in the component's own namespace."""
    group, resource = "coordination.k8s.io", "leases"
    return (
        in_own_namespace(group, resource, ("create",), purpose),
        in_own_namespace(group, resource, ("get", "update"), purpose, lease),
    )


def resolved(
    rights: Iterable[Right], *, names: Mapping[str, Sequence[str]], own_namespace: str = OWN_NAMESPACE
) -> tuple[Right, ...]:
    """Return rights with placeholders replaced by the names of one installation.

    If all names of a right are placeholders without a value, the right is omitted, because without
    ``resourceNames`` it would apply to all objects.

    ``names`` has the values of each placeholder, a text in angle brackets that the components agree on.
    """
    found = []
    for right in rights:
        fit = tuple(dict.fromkeys(name for text in right.names for name in _expanded(text, names)))
        if fit or not right.names:
            namespace = own_namespace if right.namespace == OWN_NAMESPACE else right.namespace
            found.append(replace(right, names=fit, namespace=namespace))
    return tuple(found)


def _expanded(text: str, names: Mapping[str, Sequence[str]]) -> list[str]:
    for place, values in names.items():
        if place in text:
            return [text.replace(place, value) for value in values]
    return [text]


def rules(rights: Iterable[Right]) -> list[dict[str, Any]]:
    """Return RBAC rules that grant rights: one per group, set of verbs and set of names, in a stable order."""
    found: dict[tuple[str, tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for right in rights:
        key = (right.group, tuple(sorted(right.verbs)), tuple(sorted(right.names)))
        resources = found.setdefault(key, [])
        if right.full_resource not in resources:
            resources.append(right.full_resource)
    return [
        {
            "apiGroups": [group],
            "resources": sorted(resources),
            "verbs": list(verbs),
            **({"resourceNames": list(names)} if names else {}),
        }
        for (group, verbs, names), resources in sorted(found.items())
    ]
