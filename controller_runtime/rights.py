"""Rights in a cluster as a table: a component says what it asks for once, and checks, manifests and the chart read it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

READ = ("get", "list", "watch")
OWN_NAMESPACE = "<own>"
"""Stands for the namespace that a component is installed in."""


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
    """The only objects it is about (``resourceNames``). Empty: all."""

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
