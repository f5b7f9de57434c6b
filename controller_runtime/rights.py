"""Rights in a cluster as a table: a component says what it asks for once, and checks, manifests and the chart read it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

READ = ("get", "list", "watch")
OWN_NAMESPACE = "<own>"
"""Stands for the namespace that a component is installed in."""
VIRTUAL_NODE = "<virtual-node>"
"""Stands, in ``Right.names``, for the name of each virtual node."""
LEASE = "<lease>"
"""Stands, in ``Right.names``, for the Lease by which replicas of the virtual node elect one."""
LEASES = "<component-lease>"
"""Stands, in ``Right.names``, for each Lease by which replicas of any component elect one."""
TOKEN_SECRET = "<token-secret>"  # noqa: S105 - a placeholder
"""Stands, in ``Right.names``, for each Secret with a token for a lower cluster that is renewed."""
WEBHOOK_CONFIGURATION = "<webhook-configuration>"
"""Stands, in ``Right.names``, for the name of both webhook configurations."""
EXTENDER_SECRET = "<extender-secret>"  # noqa: S105 - a placeholder
"""Stands, in ``Right.names``, for both Secrets with certificates that the extender makes; none when a user supplies them."""
WEBHOOK_SECRET = "<webhook-secret>"  # noqa: S105 - a placeholder
"""Stands, in ``Right.names``, for the Secret with the webhook's certificates; none when a user supplies them."""


@dataclass(frozen=True, slots=True)
class Right:
    """Some verbs on one resource, and what stops working without them."""

    group: str
    resource: str
    verbs: tuple[str, ...]
    purpose: str
    subresource: str = ""
    namespace: str = ""
    names: tuple[str, ...] = ()
    """The only objects it is about (``resourceNames``). Empty: all. May have placeholders, see ``resolved``."""

    @property
    def full_resource(self) -> str:
        """``pods/log``, as RBAC rules spell it."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource

    def attributes(self) -> Iterator[dict[str, str]]:
        """``spec.resourceAttributes`` of a SelfSubjectAccessReview, one per verb (and name)."""
        for verb, name in itertools.product(self.verbs, self.names or ("",)):
            attributes = {"verb": verb, "group": self.group, "resource": self.resource}
            if self.subresource:
                attributes["subresource"] = self.subresource
            if self.namespace:
                attributes["namespace"] = self.namespace
            if name:
                attributes["name"] = name
            yield attributes


def resolved(
    rights: Iterable[Right], *, names: Mapping[str, Sequence[str]], own_namespace: str = OWN_NAMESPACE
) -> tuple[Right, ...]:
    """Replace placeholders by the names of one installation.

    A right whose names all come from an empty list is left out: without ``resourceNames`` it would be about all objects.

    Args:
        rights: a component's table.
        names: placeholder, such as ``VIRTUAL_NODE`` → what it stands for.
        own_namespace: what ``OWN_NAMESPACE`` stands for.
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
    """RBAC rules that grant rights: one per group, set of verbs and set of names, in a stable order."""
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
