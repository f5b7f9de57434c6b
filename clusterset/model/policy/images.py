"""Normalizes image names, so that one image has one name, and checks them.

Source: ``github.com/distribution/reference`` (ParseNormalizedNamed), which kubelets and container runtimes
use.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from clusterset.model.policy.config import ImageRules
from clusterset.model.policy.findings import FieldValue, containers
from clusterset.model.policy.rules import matches

_DEFAULT_REGISTRY = "docker.io"
_ALIASES = {"index.docker.io": _DEFAULT_REGISTRY, "registry-1.docker.io": _DEFAULT_REGISTRY}


def full_name(image: str) -> str:
    """Return an image's name with registry, repository, and tag or digest.

    ``nginx`` becomes ``docker.io/library/nginx:latest``. The registry is in lower case and without the default port.
    """
    name = repository_name(image)
    rest = name.partition("/")[2]
    return name if "@" in rest or ":" in rest.rpartition("/")[2] else f"{name}:latest"


def repository_name(image: str) -> str:
    """Return an image's name with registry and repository, and with a tag or digest only if the image has one."""
    registry, separator, rest = image.strip().partition("/")
    is_registry = separator and (
        "." in registry or ":" in registry or registry == "localhost" or registry != registry.lower()
    )
    if not is_registry:
        registry, rest = _DEFAULT_REGISTRY, image.strip()
    registry = registry.lower().removesuffix(":443")
    registry = _ALIASES.get(registry, registry)
    if registry == _DEFAULT_REGISTRY and "/" not in rest:
        rest = f"library/{rest}"
    return f"{registry}/{rest}"


def check(pod: Mapping[str, Any], allowed: ImageRules) -> Iterator[FieldValue]:
    """Yield the images that are not allowed, including those of image volumes."""
    for where, container in containers(pod["spec"]):
        if _is_forbidden(image := container.get("image") or "", allowed):
            yield f"{where}.image", image
    for volume in pod["spec"].get("volumes") or ():
        if _is_forbidden(image := (volume.get("image") or {}).get("reference") or "", allowed) and image:
            yield f"spec.volumes[{volume['name']}].image.reference", image


def _is_forbidden(image: str, allowed: ImageRules) -> bool:
    name = full_name(image)
    return not matches(name, allowed.allow) or matches(name, allowed.deny)
