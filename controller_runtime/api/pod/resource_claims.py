"""ResourceClaims of a pod: in its spec, or in the annotation to which the webhook moves them.

The upper scheduler does not bind a pod whose spec has ResourceClaims, because the devices are in the lower
clusters. So the webhook moves ``spec.resourceClaims`` and ``resources.claims`` of the containers to the
annotation, and the lower pod gets them back. Users can write the annotation as well as the spec, so both have
the same meaning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from controller_runtime.api import names
from controller_runtime.api.decoding import decode

CONTAINER_KINDS = ("initContainers", "containers")
_MOST = 256
"""Maximum number of entries. The API server has a lower limit for each list in a pod's spec."""


class ResourceClaimsConfig(msgspec.Struct, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """How ResourceClaims (dynamic resource allocation) follow pods to a lower cluster."""

    enabled: bool = False
    """Copy the ResourceClaims and ResourceClaimTemplates of pods to this cluster, which then allocates the devices. Off:
    pods with ResourceClaims are refused. Both clusters need Kubernetes 1.34."""
    device_classes: dict[str, str] = {}
    """Lower DeviceClass by upper DeviceClass, if their names differ."""


class _Entry(msgspec.Struct, rename="camel"):
    name: str
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class _Use(msgspec.Struct):
    name: str
    request: str | None = None


class _Moved(msgspec.Struct, rename="camel"):
    """The content of the annotation."""

    resource_claims: list[_Entry]
    containers: dict[str, list[_Use]] = {}
    """By container name: entries of its ``resources.claims``."""


class InvalidError(ValueError):
    """The annotation cannot be applied; the text says why, for the pod's author."""


def move(spec: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return a pod spec without ResourceClaims, and the annotation that contains them.

    Raises:
        InvalidError: a claim is invalid; the message names it.
    """
    rest = {key: value for key, value in spec.items() if key != "resourceClaims"}
    used: dict[str, Any] = {}
    for kind in CONTAINER_KINDS:
        if kind in spec:
            rest[kind] = [_without_claims(container, used) for container in spec[kind]]
    moved = {"resourceClaims": spec["resourceClaims"], **({"containers": used} if used else {})}
    _check(moved)
    return rest, msgspec.json.encode(moved).decode()


def references(pod: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a pod's entries of ``resourceClaims``, of its spec or annotation; empty if the annotation is invalid."""
    try:
        found = _read(pod)
    except InvalidError:
        return []
    return found["resourceClaims"] if found else list(pod["spec"].get("resourceClaims") or ())


def invalid(pod: Mapping[str, Any]) -> str:
    """Return why a pod's annotation cannot be applied; empty if it is valid or missing."""
    try:
        _read(pod)
    except InvalidError as error:
        return str(error)
    return ""


def restore(spec: dict[str, Any], pod: Mapping[str, Any]) -> None:
    """Write an upper pod's ResourceClaims into the spec of its lower pod, in place; nothing if they are invalid."""
    if claims := references(pod):
        spec["resourceClaims"] = claims
    if not claims or pod["spec"].get("resourceClaims"):
        return
    used = (_read(pod) or {}).get("containers") or {}
    for kind in CONTAINER_KINDS:
        if kind in spec:
            spec[kind] = [
                {**container, "resources": {**(container.get("resources") or {}), "claims": own}}
                if (own := used.get(container["name"]))
                else container
                for container in spec[kind]
            ]


def _read(pod: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the content of the annotation; None: there is none."""
    text = ((pod.get("metadata") or {}).get("annotations") or {}).get(names.ANNOTATION_RESOURCE_CLAIMS)
    if not text:
        return None
    where = f"Annotation {names.ANNOTATION_RESOURCE_CLAIMS}"
    if pod["spec"].get("resourceClaims"):
        raise InvalidError(f"{where}: the pod also has spec.resourceClaims; remove one of the two")
    try:
        found: dict[str, Any] = decode(text)
    except ValueError as error:
        raise InvalidError(f"{where}: not JSON: {error}") from None
    _check(found, where)
    return found


def _check(found: Any, where: str = "spec") -> None:
    """Check claims by the rules of the API server.

    The annotation has no other check in the upper cluster, and in the lower cluster an error would appear only
    after the pod was bound.
    """
    try:
        moved = msgspec.convert(found, _Moved)
    except msgspec.ValidationError as error:
        raise InvalidError(f"{where}: {error}") from None
    known: set[str] = set()
    for number, entry in enumerate(moved.resource_claims):
        at = f"{where}: resourceClaims[{number}]"
        if not entry.name or entry.name in known:
            raise InvalidError(f"{at}.name: {entry.name!r}: write a name that no other entry has")
        if bool(entry.resource_claim_name) == bool(entry.resource_claim_template_name):
            raise InvalidError(f"{at}: write either resourceClaimName or resourceClaimTemplateName")
        known.add(entry.name)
    uses = [(container, use.name) for container, entries in moved.containers.items() for use in entries]
    for container, name in uses:
        if name not in known:
            raise InvalidError(
                f"{where}: container {container!r}: resources.claims: {name!r} is not in resourceClaims"
            )
    if len(known) > _MOST or len(uses) > _MOST * _MOST:
        raise InvalidError(f"{where}: resourceClaims: {len(known)} are too many; at most {_MOST}")


def _without_claims(container: Mapping[str, Any], used: dict[str, Any]) -> Mapping[str, Any]:
    """Return a container without ``resources.claims``, and add these to ``used``."""
    resources: Mapping[str, Any] = container.get("resources") or {}
    claims: Sequence[Any] = resources.get("claims") or ()
    if not claims:
        return container
    used[container["name"]] = claims
    return {**container, "resources": {key: value for key, value in resources.items() if key != "claims"}}
