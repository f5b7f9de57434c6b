"""The ``overrides`` of a lower cluster in the configuration.

The structures list the fields that an override may change. All other fields are refused at load: they are the pod's
identity, refer to upper objects that the virtual node translates, or open the node (volumes, ports, host namespaces).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from controller_runtime.apimachinery.decoding import ConfigStruct

_Count = Annotated[int, Meta(ge=0, le=2**53)]


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
    """Value. Unset: empty, or ``valueFrom``."""
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
