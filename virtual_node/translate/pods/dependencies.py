"""The objects that a pod references in any of its fields, and that are copied to the lower cluster with the pod."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from clusterset.model.pod import resource_claims
from clusterset.model.pod.conditions import CONTAINER_KINDS
from virtual_node.translate.pods import service_account

_OF_ENVIRONMENT = (
    *(("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")),  # of a variable
    *(("configMapRef", "ConfigMap"), ("secretRef", "Secret")),  # of envFrom
)
_SECRET_REFERENCES = ("cephfs", "rbd", "cinder", "flexVolume", "scaleIO", "storageos", "iscsi")


@dataclass(frozen=True, slots=True)
class Dependency:
    """An object that a pod references."""

    kind: str
    """``ConfigMap``, ``Secret``, ``ResourceClaim`` or ``ResourceClaimTemplate``."""
    name: str
    optional: bool = False
    volume: str = ""
    """The volume that references the object; empty: an environment variable or a pull secret references it."""


def dependencies(pod: Mapping[str, Any]) -> list[Dependency]:
    """Return the objects that a pod references, each once, in order of first reference; ResourceClaims come last.

    An object is mandatory if one of its references is. Pull secrets are optional, because a kubelet starts a
    pod without them. The root CA ConfigMap of the injected token volume is left out, because
    ``service_account`` translates it.
    """
    found: dict[tuple[str, str], Dependency] = {}
    for need in _mentions(pod):
        if not need.name:
            continue
        key = (need.kind, need.name)
        known = found.get(key)
        if known is None:
            found[key] = need
        elif known.optional and not need.optional:
            found[key] = replace(need, optional=False)
    return list(found.values())


def pull_secrets(spec: Mapping[str, Any]) -> list[str]:
    """Return the names of the pull secrets of a pod spec, in its order. Empty names, which the API allows, are left out."""
    references = (reference.get("name", "") for reference in spec.get("imagePullSecrets") or ())
    return [name for name in references if name]


def _mentions(pod: Mapping[str, Any]) -> Iterator[Dependency]:
    spec = pod["spec"]
    for kind in CONTAINER_KINDS:
        for container in spec.get(kind) or ():
            yield from _of_environment(container)
    for volume in spec.get("volumes") or ():
        yield from _of_volume(volume)
    for name in pull_secrets(spec):
        yield Dependency("Secret", name, optional=True)
    for reference in resource_claims.references(pod):
        yield Dependency("ResourceClaim", reference.get("resourceClaimName") or "")
        yield Dependency("ResourceClaimTemplate", reference.get("resourceClaimTemplateName") or "")


def _named(kind: str, reference: Mapping[str, Any], volume: str = "") -> Dependency:
    return Dependency(kind, reference.get("name", ""), bool(reference.get("optional")), volume)


def _of_environment(container: Mapping[str, Any]) -> Iterator[Dependency]:
    values = [source for variable in container.get("env") or () if (source := variable.get("valueFrom"))]
    for source in (*values, *(container.get("envFrom") or ())):
        for field, kind in _OF_ENVIRONMENT:
            if reference := source.get(field):
                yield _named(kind, reference)


def _of_volume(volume: Mapping[str, Any]) -> Iterator[Dependency]:
    name = volume["name"]
    if source := volume.get("configMap"):
        yield _named("ConfigMap", source, name)
    if source := volume.get("secret"):
        yield Dependency("Secret", source.get("secretName", ""), bool(source.get("optional")), name)
    injected = service_account.is_injected(volume)
    for source in (volume.get("projected") or {}).get("sources") or ():
        if (reference := source.get("configMap")) and not (
            injected and reference.get("name") == service_account.ROOT_CA
        ):
            yield _named("ConfigMap", reference, name)
        if reference := source.get("secret"):
            yield _named("Secret", reference, name)
    for kind in _SECRET_REFERENCES:
        reference = (volume.get(kind) or {}).get("secretRef") or {}
        yield Dependency("Secret", reference.get("name", ""), volume=name)
    if source := volume.get("azureFile"):
        yield Dependency("Secret", source.get("secretName", ""), volume=name)
    if reference := (volume.get("csi") or {}).get("nodePublishSecretRef"):
        yield Dependency("Secret", reference.get("name", ""), volume=name)
