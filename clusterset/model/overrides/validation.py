"""Finds errors of overrides in a configuration that their types do not detect."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from clusterset.model import names
from clusterset.model.overrides.config import ContainerPatch, ImageRewrite, Override, Toleration
from clusterset.model.policy.images import repository_name
from controller_runtime.apimachinery import matching, quantity

_MOST = 100
"""Maximum overrides of a cluster, because each is compared with each pod."""
_OVERRIDE_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_NAME = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)", re.ASCII)
_DOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_IMAGE = re.compile(r"[A-Za-z0-9.-]+(:[0-9]+)?(/[a-z0-9._-]+)*/?", re.ASCII)
_OBJECT_NAME_LENGTH = 253
_OURS = (
    names.LABEL_VIRTUAL_POD,
    names.ANNOTATION_TRIPPED_LABELS,
    names.ANNOTATION_CLUSTER_SELECTOR,
    names.ANNOTATION_LAST_APPLIED,
)
"""Keys outside our domain that the virtual node reads, writes or leaves out."""


def problems(where: str, overrides: Sequence[Override]) -> list[str]:
    """Return the errors of a cluster's overrides, each as ``field: what``; empty: none."""
    if len(overrides) > _MOST:
        return [f"{where}: {len(overrides)} are too many for one cluster; at most {_MOST}"]
    found: list[str] = []
    seen: set[str] = set()
    for position, override in enumerate(overrides):
        field = f"{where}[{position}]"
        if not _OVERRIDE_NAME.fullmatch(override.name):
            found.append(f"{field}.name: {override.name!r} must be a DNS label of at most 63 characters")
        elif override.name in seen:
            found.append(f"{field}.name: {override.name!r} is there twice")
        seen.add(override.name)
        found += _problems(field, override)
    return found


def _problems(where: str, override: Override) -> Iterator[str]:
    yield from matching.selector_problems(f"{where}.podSelector", override.pod_selector)
    for position, rewrite in enumerate(override.images):
        yield from _of_rewrite(f"{where}.images[{position}]", rewrite)
    yield from _of_tolerations(f"{where}.tolerations", override.tolerations)
    metadata, spec = override.patch.metadata, override.patch.spec
    for kind, values in (("labels", metadata.labels), ("annotations", metadata.annotations)):
        field = f"{where}.patch.metadata.{kind}"
        for key in values:
            if names.is_reserved(key) or key in _OURS:
                yield f"{field}[{key}]: belongs to virtual-node and cannot be changed"
        yield from _of_pairs(field, values, is_label=kind == "labels")
    yield from _of_pairs(f"{where}.patch.spec.nodeSelector", spec.node_selector, is_label=True)
    yield from _of_tolerations(f"{where}.patch.spec.tolerations", spec.tolerations or ())
    for kind, containers in (("containers", spec.containers), ("initContainers", spec.init_containers)):
        for position, container in enumerate(containers):
            yield from _of_container(f"{where}.patch.spec.{kind}[{position}]", container)
    references = [reference.name for reference in spec.image_pull_secrets]
    yield from _of_references(f"{where}.patch.spec.imagePullSecrets", references)


def _of_rewrite(where: str, rewrite: ImageRewrite) -> Iterator[str]:
    for field, text in (("from", rewrite.source), ("to", rewrite.to)):
        whole = f"{text.removesuffix('/')}/x/y"
        if not _IMAGE.fullmatch(text) or not repository_name(whole).endswith(whole):
            yield f"{where}.{field}: {text!r} must begin with a registry in lower case, such as docker.io/ or quay.io/team"
        elif repository_name(whole) != whole:
            yield f"{where}.{field}: {text!r} never begins a full name; write {repository_name(whole).removesuffix('/x/y')!r}"
    if rewrite.source.endswith("/") != rewrite.to.endswith("/"):
        yield f"{where}: from {rewrite.source!r} and to {rewrite.to!r} must both end with / or both not"


def _of_tolerations(where: str, tolerations: Sequence[Toleration]) -> Iterator[str]:
    for position, one in enumerate(tolerations):
        field = f"{where}[{position}]"
        if one.operator == "Exists" and one.value:
            yield f"{field}.value: not allowed with operator Exists"
        if one.operator == "Equal" and not one.key:
            yield f"{field}.key: required, except with operator Exists"
        if one.key and not _is_key(one.key):
            yield f"{field}.key: {one.key!r} is not the key of a taint"
        if one.toleration_seconds is not None and one.effect != "NoExecute":
            yield f"{field}.tolerationSeconds: needs effect NoExecute"


def _of_pairs(where: str, pairs: Mapping[str, str | None], *, is_label: bool) -> Iterator[str]:
    for key, value in pairs.items():
        if not _is_key(key if is_label else key.lower()):
            yield f"{where}[{key}]: {key!r} is not a valid key"
        if is_label and value and not _NAME.fullmatch(value):
            yield f"{where}[{key}]: {value!r} is not a valid value of a label"


def _of_container(where: str, container: ContainerPatch) -> Iterator[str]:
    if not container.name:
        yield f"{where}.name: required; '*' is every container"
    for position, variable in enumerate(container.env):
        field = f"{where}.env[{position}]"
        if not variable.name or "=" in variable.name:
            yield f"{field}.name: {variable.name!r} is not the name of a variable"
        source = variable.value_from
        if variable.directive and (source or variable.value is not None):
            yield f"{field}: $patch: delete contradicts a value"
        if source is None:
            continue
        if variable.value is not None:
            yield f"{field}: value and valueFrom contradict each other"
        given = [one for one in (source.config_map_key_ref, source.secret_key_ref) if one is not None]
        if len(given) + sum(one is not None for one in (source.field_ref, source.resource_field_ref)) != 1:
            yield f"{field}.valueFrom: exactly one source is required"
        yield from _of_references(f"{field}.valueFrom", [one.name for one in given])
    for kind in ("limits", "requests"):
        for resource, value in getattr(container.resources, kind).items():
            if value is not None and not _is_amount(value):
                yield f"{where}.resources.{kind}.{resource}: {value!r} is not a quantity such as 500m, 2 or 1Gi"


def _of_references(where: str, referenced: Sequence[str]) -> Iterator[str]:
    for name in referenced:
        if not _DOMAIN.fullmatch(name) or len(name) > _OBJECT_NAME_LENGTH:
            yield f"{where}: {name!r} is not the name of a ConfigMap or Secret"


def _is_key(key: str) -> bool:
    """Report whether a text is a qualified name, such as ``example.com/name``."""
    domain, separator, name = key.rpartition("/")
    is_domain = not separator or (bool(_DOMAIN.fullmatch(domain)) and len(domain) <= _OBJECT_NAME_LENGTH)
    return is_domain and bool(_NAME.fullmatch(name))


def _is_amount(value: str | int) -> bool:
    try:
        return quantity.milli(value) >= 0
    except ValueError:
        return False
