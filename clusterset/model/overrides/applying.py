"""Applies the overrides of a lower cluster to a pod.

The virtual node applies them to the lower pod, after the policy has allowed the user's pod. The multi-scheduler applies
them to the pod that it predicts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from clusterset.model.overrides.config import ImageRewrite, Override
from clusterset.model.policy.images import repository_name
from clusterset.model.policy.rules import matches
from controller_runtime.apimachinery import matching
from controller_runtime.apimachinery.strategic_merge import merged
from controller_runtime.apimachinery.translation_budget import TranslationBudget, json_size

ALL_CONTAINERS = "*"
_PATCHED_CONTAINERS = ("containers", "initContainers")
_NO_SOURCE = {"value": None, "valueFrom": None}
_ADVICE = "use fewer containers or image volumes"
_LONGEST_IMAGE = 4096
"""Maximum characters of an image that is rewritten. Valid names are shorter."""


@dataclass(frozen=True, slots=True)
class CompiledOverride:
    """One override, ready to be applied."""

    name: str
    key: str
    """The configured override as JSON; equal only for equal overrides."""
    namespaces: tuple[str, ...]
    selects: matching.Matcher
    images: tuple[ImageRewrite, ...]
    tolerations: tuple[dict[str, Any], ...]
    metadata: dict[str, Any]
    """Strategic merge patch of the metadata."""
    containers: Mapping[str, list[dict[str, Any]]]
    """Strategic merge patches of containers, each with the container's name, by list (``containers``,
    ``initContainers``)."""
    spec: dict[str, Any]
    """Strategic merge patch of the spec without containers."""


class OverrideSet:
    """The overrides of one lower cluster."""

    def __init__(self, configured: Sequence[Override] = ()) -> None:
        """Compile the overrides once."""
        self._all = tuple(map(_compiled, configured))

    @property
    def labels(self) -> frozenset[str]:
        """Return the keys of labels that an override may change."""
        return frozenset(key for one in self._all for key in one.metadata.get("labels") or ())

    def of(self, upper: Mapping[str, Any]) -> tuple[CompiledOverride, ...]:
        """Return the overrides that apply to an upper pod, in order."""
        if not self._all:
            return ()
        metadata = upper["metadata"]
        namespace, labels = metadata.get("namespace", ""), metadata.get("labels") or {}
        return tuple(
            one
            for one in self._all
            if (not one.namespaces or matches(namespace, one.namespaces)) and one.selects(labels)
        )


def applied(
    pod: Mapping[str, Any], overrides: Sequence[CompiledOverride], budget: TranslationBudget | None = None
) -> dict[str, Any]:
    """Return a pod with overrides applied in order. The pod does not change.

    Raises:
        TooLargeError: the translation exceeds the budget; None: a new one.
    """
    budget = budget or TranslationBudget()
    result = dict(pod)
    for one in overrides:
        if one.metadata:
            result["metadata"] = merged(result["metadata"], one.metadata, strategic=True)
        result["spec"] = _spec(result["spec"], one, budget)
    return result


def for_images(overrides: Sequence[CompiledOverride]) -> list[CompiledOverride]:
    """Return the overrides reduced to their image rewrites, as debug containers get them."""
    return [
        replace(one, tolerations=(), metadata={}, containers={}, spec={}) for one in overrides if one.images
    ]


def rewritten(image: str, rewrites: Sequence[ImageRewrite]) -> str:
    """Return an image changed by the first rewrite whose ``from`` matches; unchanged if none matches.

    ``from`` matches complete parts at the beginning of the image's full name: ``docker.io/library/nginx`` matches
    ``nginx:1.29`` and not ``nginx-exporter``.
    """
    if not rewrites or not image or len(image) > _LONGEST_IMAGE:
        return image
    name = repository_name(image)
    for one in rewrites:
        rest = name.removeprefix(one.source)
        if len(rest) < len(name) and (one.source.endswith("/") or not rest or rest[0] in "/:@"):
            return one.to + rest
    return image


def _spec(spec: Mapping[str, Any], one: CompiledOverride, budget: TranslationBudget) -> dict[str, Any]:
    result = dict(spec)
    where = f"Override {one.name} in each container"
    if one.images:
        _rewrite(result, one.images, where, budget)
    if one.tolerations:
        own = result.get("tolerations") or []
        budget.work(
            len(one.tolerations) * len(own), f"Override {one.name}: tolerations", "use fewer tolerations"
        )
        result["tolerations"] = [*own, *(added for added in one.tolerations if added not in own)]
    for kind, patches in one.containers.items():
        if result.get(kind):
            budget.work(len(patches) * len(result[kind]), where, _ADVICE)
            size = sum(json_size(patch) for patch in patches if patch["name"] == ALL_CONTAINERS)
            budget.add(size * len(result[kind]), where, _ADVICE)
            result[kind] = [_container(container, patches) for container in result[kind]]
    return merged(result, one.spec, strategic=True) if one.spec else result


def _container(container: Mapping[str, Any], patches: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    result = dict(container)
    for patch in patches:
        if patch["name"] in {ALL_CONTAINERS, container["name"]}:
            result = merged(result, {**patch, "name": container["name"]}, strategic=True)
    return result


def _rewrite(
    spec: dict[str, Any], rewrites: Sequence[ImageRewrite], where: str, budget: TranslationBudget
) -> None:
    def image(name: str) -> str:
        budget.work(len(rewrites), where, _ADVICE)
        changed = rewritten(name, rewrites)
        budget.add(max(0, len(changed) - len(name)), where, _ADVICE)
        return changed

    for kind in (*_PATCHED_CONTAINERS, "ephemeralContainers"):
        if spec.get(kind):
            spec[kind] = [
                {**container, "image": image(container["image"])} if container.get("image") else container
                for container in spec[kind]
            ]
    volumes = spec.get("volumes") or ()
    if any("image" in volume for volume in volumes):
        spec["volumes"] = [
            {**volume, "image": {**source, "reference": image(source["reference"])}}
            if (source := volume.get("image") or {}).get("reference")
            else volume
            for volume in volumes
        ]


def _compiled(override: Override) -> CompiledOverride:
    patch = msgspec.to_builtins(override.patch)
    spec = patch.get("spec") or {}
    return CompiledOverride(
        name=override.name,
        key=msgspec.json.encode(override).decode(),
        namespaces=tuple(override.namespaces),
        selects=matching.compile_selector(override.pod_selector),
        images=tuple(override.images),
        tolerations=tuple(msgspec.to_builtins(override.tolerations)),
        metadata=patch.get("metadata") or {},
        containers={
            kind: [_container_patch(one) for one in spec.pop(kind)]
            for kind in _PATCHED_CONTAINERS
            if kind in spec
        },
        spec=spec,
    )


def _container_patch(configured: Mapping[str, Any]) -> dict[str, Any]:
    """Return the patch of a container. A variable's value replaces its source, and the reverse; quantities are text."""
    patch = dict(configured)
    if variables := patch.get("env"):
        patch["env"] = [one if "$patch" in one else _variable(one) for one in variables]
    if resources := patch.pop("resources", None):
        patch["resources"] = {
            kind: {name: value if value is None else str(value) for name, value in values.items()}
            for kind, values in resources.items()
        }
    return patch


def _variable(configured: Mapping[str, Any]) -> dict[str, Any]:
    """Return a patch that replaces a variable's value and source, because API servers refuse a variable with two."""
    source = configured.get("valueFrom")
    return {**_NO_SOURCE, **configured, **({"valueFrom": {**source, "$patch": "replace"}} if source else {})}
