"""Overrides: changes that the operator makes to the pods of one lower cluster. No IO.

The structures list the fields that an override may change. All other fields are refused at load: they are the pod's
identity, refer to upper objects that the virtual node translates, or open the node (volumes, ports, host namespaces).

The virtual node applies overrides to the lower pod, after the policy has allowed the user's pod. The multi-scheduler applies
them to the pod that it predicts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from clusterset.model import names
from clusterset.model.policy.rules import matches, repository_name
from controller_runtime.apimachinery import matching
from controller_runtime.apimachinery.decoding import ConfigStruct, decode
from controller_runtime.apimachinery.strategic_merge import merged
from controller_runtime.apimachinery.translation_budget import TranslationBudget, json_size

_Count = Annotated[int, Meta(ge=0, le=2**53)]
ALL_CONTAINERS = "*"
_PATCHED_CONTAINERS = ("containers", "initContainers")
_NO_SOURCE = {"value": None, "valueFrom": None}
_ADVICE = "use fewer containers or image volumes"
_LONGEST_IMAGE = 4096
"""Maximum characters of an image that is rewritten. Valid names are shorter."""
_SHOWN = 10
"""Maximum number of fields of one override, because annotations are limited."""
_MOST = 100
"""Maximum number of changes that are read. Users of the lower cluster can change the annotation."""


class ImageRewrite(ConfigStruct):
    """Replaces the beginning of image names."""

    source: str = msgspec.field(name="from")
    """Beginning of the image's full name: a registry, with or without a path, such as ``docker.io/`` or
    ``quay.io/team/app``. ``nginx`` is ``docker.io/library/nginx``. It matches only complete parts of the name."""
    to: str
    """Text that replaces ``from``. It ends with ``/`` if ``from`` does."""


class Toleration(ConfigStruct):
    """A toleration, as in core/v1."""

    key: str = ""
    """Key of the taint. Empty: every taint, with operator ``Exists``."""
    operator: Literal["Equal", "Exists"] = "Equal"
    """How ``value`` is compared."""
    value: str = ""
    """Value of the taint."""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    """Effect of the taint. Empty: every effect."""
    toleration_seconds: _Count | None = None
    """For effect ``NoExecute``: seconds until the pod is evicted. Unset: it is not evicted."""


class KeyReference(ConfigStruct):
    """A key of a ConfigMap or Secret in the pod's upper namespace."""

    name: str
    """Name of the object. It is copied to the lower cluster, as if the pod referenced it."""
    key: str
    """Key in its data."""
    optional: bool | None = None
    """Whether the pod starts without the object or key."""


class FieldReference(ConfigStruct):
    """A field of the lower pod."""

    field_path: str
    """Path of the field, such as ``spec.nodeName``, which is the lower node."""
    api_version: str | None = None
    """Version of the path; ``v1`` if not set."""


class ResourceReference(ConfigStruct):
    """A resource of the lower container."""

    resource: str
    """Resource, such as ``limits.memory``."""
    container_name: str | None = None
    """The container. Unset: the variable's own."""
    divisor: str | None = None
    """The unit."""


class EnvSource(ConfigStruct):
    """Source of a variable's value: exactly one field."""

    config_map_key_ref: KeyReference | None = None
    """A key of a ConfigMap."""
    secret_key_ref: KeyReference | None = None
    """A key of a Secret."""
    field_ref: FieldReference | None = None
    """A field of the lower pod."""
    resource_field_ref: ResourceReference | None = None
    """A resource of the container."""


class EnvPatch(ConfigStruct):
    """An environment variable that is set, replaced or removed."""

    name: str
    """Name of the variable."""
    value: str | None = None
    """Value. If neither ``value`` nor ``valueFrom`` is set, the variable is empty."""
    value_from: EnvSource | None = None
    """Source of the value, as in a pod. Objects are those of the pod's upper namespace, and fields are those of the
    lower pod."""
    directive: Literal["delete"] | None = msgspec.field(default=None, name="$patch")
    """``delete``: remove the variable."""


class ResourcesPatch(ConfigStruct):
    """Resources. A value of null removes the pod's own."""

    limits: dict[str, str | _Count | None] = {}
    """Limit by resource."""
    requests: dict[str, str | _Count | None] = {}
    """Request by resource."""


class ContainerPatch(ConfigStruct):
    """Changes of one container, or of all. A pod without a container of that name is not changed by it."""

    name: str
    """Name of the container. ``*``: all containers of this list."""
    image: str = ""
    """Image, which is not changed by ``images``. Empty: not changed."""
    image_pull_policy: Literal["", "Always", "IfNotPresent", "Never"] = ""
    """When the image is pulled. Empty: not changed."""
    command: list[str] = []
    """Replaces the entrypoint. Empty: not changed."""
    args: list[str] = []
    """Replaces the arguments. Empty: not changed."""
    env: list[EnvPatch] = []
    """Environment variables, merged by name."""
    resources: ResourcesPatch = msgspec.field(default_factory=ResourcesPatch)
    """Requests and limits, merged by resource."""
    security_context: dict[str, Any] = {}
    """Security context, merged by field."""


class SecretReference(ConfigStruct):
    """A pull secret in the pod's upper namespace."""

    name: str
    """Name of the Secret. It is copied to the lower cluster, as if the pod referenced it."""


class SpecPatch(ConfigStruct):
    """Changes of the spec."""

    containers: list[ContainerPatch] = []
    """Changes of containers."""
    init_containers: list[ContainerPatch] = []
    """Changes of init containers and sidecars."""
    node_selector: dict[str, str | None] = {}
    """Labels of lower nodes, merged by key. null removes the pod's own."""
    tolerations: list[Toleration] | None = None
    """Replaces all tolerations of the pod, as a strategic merge patch does. To add some, use the override's
    ``tolerations``."""
    image_pull_secrets: list[SecretReference] = []
    """Pull secrets, merged by name."""
    priority_class_name: str = ""
    """PriorityClass of the lower cluster. Empty: not changed."""
    runtime_class_name: str = ""
    """RuntimeClass of the lower cluster. Empty: not changed."""
    scheduler_name: str = ""
    """Scheduler of the lower cluster. Empty: not changed."""
    security_context: dict[str, Any] = {}
    """Security context of the pod, merged by field."""
    dns_policy: Literal["", "ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"] = ""
    """DNS policy. Empty: not changed."""
    dns_config: dict[str, Any] = {}
    """DNS configuration, merged by field."""


class MetadataPatch(ConfigStruct):
    """Changes of labels and annotations. null removes the pod's own."""

    labels: dict[str, str | None] = {}
    """Labels, merged by key."""
    annotations: dict[str, str | None] = {}
    """Annotations, merged by key."""


class PodPatch(ConfigStruct):
    """A strategic merge patch for lower pods. Other fields than these are refused."""

    metadata: MetadataPatch = msgspec.field(default_factory=MetadataPatch)
    """Changes of labels and annotations."""
    spec: SpecPatch = msgspec.field(default_factory=SpecPatch)
    """Changes of the spec."""


class Override(ConfigStruct):
    """A change of pods in this lower cluster. First ``images`` apply, then ``tolerations``, then ``patch``."""

    name: str
    """Name of the override, unique in the cluster: a DNS label."""
    namespaces: list[str] = []
    """Shell patterns of upper namespaces whose pods are changed. Empty: all."""
    pod_selector: dict[str, Any] = {}
    """LabelSelector (``matchLabels``, ``matchExpressions``) of upper pods that are changed. Empty: all. Users set the
    labels of their pods."""
    images: list[ImageRewrite] = []
    """Rewrites of image names. The first one that matches applies."""
    tolerations: list[Toleration] = []
    """Tolerations, as in a pod, that are added to the pod's own."""
    patch: PodPatch = msgspec.field(default_factory=PodPatch)
    """Strategic merge patch."""


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
    for override in overrides:
        if override.metadata:
            result["metadata"] = merged(result["metadata"], override.metadata, strategic=True)
        result["spec"] = _spec(result["spec"], override, budget)
    return result


def for_images(overrides: Sequence[CompiledOverride]) -> list[CompiledOverride]:
    """Return the overrides reduced to their image rewrites, as debug containers get them."""
    return [
        replace(override, tolerations=(), metadata={}, containers={}, spec={})
        for override in overrides
        if override.images
    ]


def rewritten(image: str, rewrites: Sequence[ImageRewrite]) -> str:
    """Return an image changed by the first rewrite whose ``from`` matches; unchanged if none matches.

    ``from`` matches complete parts at the beginning of the image's full name: ``docker.io/library/nginx`` matches
    ``nginx:1.29`` and not ``nginx-exporter``.
    """
    if not rewrites or not image or len(image) > _LONGEST_IMAGE:
        return image
    name = repository_name(image)
    for rewrite in rewrites:
        rest = name.removeprefix(rewrite.source)
        if len(rest) < len(name) and (rewrite.source.endswith("/") or not rest or rest[0] in "/:@"):
            return rewrite.to + rest
    return image


def _spec(spec: Mapping[str, Any], override: CompiledOverride, budget: TranslationBudget) -> dict[str, Any]:
    result = dict(spec)
    where = f"Override {override.name} in each container"
    if override.images:
        _rewrite(result, override.images, where, budget)
    if override.tolerations:
        own = result.get("tolerations") or []
        budget.work(
            len(override.tolerations) * len(own),
            f"Override {override.name}: tolerations",
            "use fewer tolerations",
        )
        result["tolerations"] = [
            *own,
            *(added for added in override.tolerations if added not in own),
        ]
    for kind, patches in override.containers.items():
        if result.get(kind):
            budget.work(len(patches) * len(result[kind]), where, _ADVICE)
            size = sum(json_size(patch) for patch in patches if patch["name"] == ALL_CONTAINERS)
            budget.add(size * len(result[kind]), where, _ADVICE)
            result[kind] = [_container(container, patches) for container in result[kind]]
    return merged(result, override.spec, strategic=True) if override.spec else result


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
        patch["env"] = [variable if "$patch" in variable else _variable(variable) for variable in variables]
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


def changed_fields(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the paths of at most ten differing fields of metadata and spec, such as ``spec.containers[app].image``."""
    found = (
        path for part in ("metadata", "spec") for path in _differing(before.get(part), after.get(part), part)
    )
    shown = list(itertools.islice(found, _SHOWN))
    more = sum(1 for _ in found)
    return [*shown, f"and {more} more"] if more else shown


def recorded_changes(lower_pod: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return override and field for each change that a lower pod's annotation lists; empty if it is malformed."""
    annotations = (lower_pod.get("metadata") or {}).get("annotations") or {}
    try:
        recorded = decode(annotations.get(names.ANNOTATION_OVERRIDES, "{}"))
    except ValueError:
        return []
    if not isinstance(recorded, dict):
        return []
    return [
        (name, field)
        for name, fields in recorded.items()
        for field in (fields if isinstance(fields, list) else ())
        if isinstance(field, str)
    ][:_MOST]


def _differing(before: Any, after: Any, path: str) -> Iterator[str]:
    if before == after:
        return
    first, second = _by_name(before), _by_name(after)
    if first is None or second is None:
        yield path
        return
    is_list = isinstance(before, list)
    for key in {**first, **second}:
        nested = f"{path}[{key}]" if is_list or not key.isalnum() else f"{path}.{key}"
        yield from _differing(first.get(key), second.get(key), nested)


def _by_name(value: Any) -> Mapping[str, Any] | None:
    """Return a map, or a list of named entries as a map; None: neither."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, list) and all(isinstance(one, Mapping) and "name" in one for one in value):
        return {str(one["name"]): one for one in value}
    return None
