"""Checks which rights a person has, and names missing ones as ``kubectl auth can-i`` commands."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from controller_runtime import resources
from controller_runtime.client.client import Client
from controller_runtime.errors import ConfigError
from controller_runtime.resources import Resource


@dataclass(frozen=True, slots=True)
class Need:
    """A right that a read needs."""

    verb: str
    """The API verb, such as get, list or create."""
    resource: Resource
    namespace: str | None = field(default=None, kw_only=True)
    """None: all namespaces, or a cluster-scoped resource."""
    subresource: str = field(default="", kw_only=True)
    name: str = field(default="", kw_only=True)
    """Empty: all objects."""

    @property
    def words(self) -> str:
        """Return verb and resource: ``get nodes/proxy``, ``get nodes/tokyo/proxy``, ``create pods in shop``."""
        full = "/".join(filter(None, (self.resource.plural, self.name, self.subresource)))
        return f"{self.verb} {full}" + (f" in {self.namespace}" if self.namespace else "")

    def attributes(self) -> dict[str, str]:
        """Return ``spec.resourceAttributes`` of a SelfSubjectAccessReview."""
        return {
            "verb": self.verb,
            "group": self.resource.group,
            "resource": self.resource.plural,
            "subresource": self.subresource,
            "namespace": self.namespace or "",
            "name": self.name,
        }

    @property
    def question(self) -> str:
        """Return the check: ``kubectl auth can-i list leases.coordination.k8s.io --namespace=kube-node-lease``."""
        qualified = "/".join(filter(None, (self.resource.qualified, self.name)))
        parts = ["kubectl auth can-i", self.verb, qualified]
        if self.subresource:
            parts.append(f"--subresource={self.subresource}")
        if self.namespace:
            parts.append(f"--namespace={self.namespace}")
        elif self.resource.namespaced:
            parts.append("--all-namespaces")
        return " ".join(parts)


def refusal(verb: str, resource: Resource, *, namespace: str | None = None) -> ConfigError:
    """Return the error for a missing mandatory right, see ``Need``."""
    right = Need(verb, resource, namespace=namespace)
    return ConfigError(f"this command needs the right to {right.words}: {right.question}")


async def missing(client: Client, needs: Sequence[Need]) -> list[Need]:
    """Return the rights that the caller does not have according to the API server.

    Raises:
        ApiError: the server does not answer.
    """
    allowed = await asyncio.gather(*(may(client, one.attributes()) for one in needs))
    return [one for one, is_allowed in zip(needs, allowed, strict=True) if not is_allowed]


async def may(client: Client, attributes: Mapping[str, str]) -> bool:
    """Return whether the caller may send a request with these ``resourceAttributes``.

    Raises:
        ApiError: the server does not answer.
    """
    review = await client.create(
        resources.SELF_SUBJECT_ACCESS_REVIEWS, {"spec": {"resourceAttributes": attributes}}
    )
    return bool((review.get("status") or {}).get("allowed"))
