"""ResourceClaims of a pod: in its spec, or in the annotation to which the webhook moves them.

The upper scheduler does not bind a pod whose spec has ResourceClaims, because the devices are in the lower
clusters. So the webhook moves ``spec.resourceClaims`` and ``resources.claims`` of the containers to the
annotation, and the lower pod gets them back. Users can write the annotation as well as the spec, so both have
the same meaning.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from clusterset.model import names
from controller_runtime.apimachinery.decoding import ConfigStruct, decode

CONTAINER_KINDS = ("initContainers", "containers")
_MOST = 256
"""Maximum number of claims of a pod. The API server has a lower limit for each list in a pod's spec."""
_LARGEST = 64 * 1024
"""Maximum characters of the annotation."""
_SHOWN = 63
"""Characters of a name in an error."""
_WHERE = f"Annotation {names.ANNOTATION_RESOURCE_CLAIMS}"


class ResourceClaimsConfig(ConfigStruct):
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
        if spec.get(kind):
            rest[kind] = [_without_claims(container, used) for container in spec[kind]]
    moved = {"resourceClaims": spec["resourceClaims"], **({"containers": used} if used else {})}
    _check(moved)
    text = msgspec.json.encode(moved).decode()
    _check_size(text, "spec")
    return rest, text


def references(pod: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a pod's entries of ``resourceClaims``, of its spec or annotation; empty if the annotation is invalid."""
    try:
        found = _read(pod)
    except InvalidError:
        return []
    return (
        [dict(one) for one in found["resourceClaims"]]
        if found
        else list(pod["spec"].get("resourceClaims") or ())
    )


def of_group(pod: Mapping[str, Any], group: Mapping[str, Any]) -> list[str]:
    """Return the names of a pod's claims that its PodGroup generates from a template, one for all pods of the group."""
    templates = {entry["name"]: template_of(entry) for entry in references(pod)}
    shared = (group.get("spec") or {}).get("resourceClaims") or ()
    return [
        str(one["name"])
        for one in shared
        if template_of(one) and templates.get(one["name"]) == template_of(one)
    ]


def template_of(entry: Mapping[str, Any]) -> str:
    """Return the ResourceClaimTemplate that an entry of a pod or PodGroup names; empty: it names a ResourceClaim."""
    return str(entry.get("resourceClaimTemplateName") or "")


def as_admitted(pod: Mapping[str, Any], lower_pod: Mapping[str, Any]) -> dict[str, Any]:
    """Return an upper pod with the ResourceClaims of its lower pod, because users can change the annotation later."""
    metadata = pod["metadata"]
    annotations = {
        key: value
        for key, value in (metadata.get("annotations") or {}).items()
        if key != names.ANNOTATION_RESOURCE_CLAIMS
    }
    spec = {**pod["spec"], "resourceClaims": lower_pod["spec"].get("resourceClaims")}
    return {**pod, "metadata": {**metadata, "annotations": annotations}, "spec": spec}


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
                {
                    **container,
                    "resources": {**(container.get("resources") or {}), "claims": [dict(one) for one in own]},
                }
                if (own := used.get(container["name"]))
                else container
                for container in spec[kind]
            ]


def _read(pod: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the content of the annotation; None: there is none."""
    text = ((pod.get("metadata") or {}).get("annotations") or {}).get(names.ANNOTATION_RESOURCE_CLAIMS)
    if not text:
        return None
    if pod["spec"].get("resourceClaims"):
        raise InvalidError(f"{_WHERE}: the pod also has spec.resourceClaims; remove one of the two")
    found, why = _parsed(text)
    if why:
        raise InvalidError(why)
    return found


@functools.lru_cache(maxsize=8)
def _parsed(text: str) -> tuple[dict[str, Any], str]:
    """Return the content of the annotation, and why it is invalid; empty: it is valid. Do not change the content.

    Cached, because agents read the annotation of one pod for each virtual node.
    """
    try:
        _check_size(text, _WHERE)
        found: dict[str, Any] = decode(text)
        _check(found, _WHERE)
    except InvalidError as error:
        return {}, str(error)
    except ValueError as error:
        return {}, f"{_WHERE}: not JSON: {error}"
    return found, ""


def _check_size(text: str, where: str) -> None:
    if len(text) > _LARGEST:
        raise InvalidError(
            f"{where}: resourceClaims: {len(text):,} characters are too many; at most {_LARGEST:,}"
        )


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
            raise InvalidError(f"{at}.name: {entry.name[:_SHOWN]!r}: write a name that no other entry has")
        if bool(entry.resource_claim_name) == bool(entry.resource_claim_template_name):
            raise InvalidError(f"{at}: write either resourceClaimName or resourceClaimTemplateName")
        known.add(entry.name)
    uses = [(container, use.name) for container, entries in moved.containers.items() for use in entries]
    for container, name in uses:
        if name not in known:
            raise InvalidError(
                f"{where}: container {container[:_SHOWN]!r}: resources.claims: {name[:_SHOWN]!r} is not in resourceClaims"
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
