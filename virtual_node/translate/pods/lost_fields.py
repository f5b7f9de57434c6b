"""The fields of a new lower pod that the lower cluster did not keep.

An API server drops fields that its version does not know, and fields of features that are off, without an error. Its answer to
the creation shows what is left. Admission of the lower cluster may remove fields, too. Values are not compared, because
admission and defaults change them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clusterset.model.pod.spec_fields import SAME_AS_ABSENT, consequence
from controller_runtime.apimachinery import readable

EVENT = "FieldsLost"
_CONTAINER_KINDS = frozenset({"initContainers", "ephemeralContainers"})
_MAPS_OF_METADATA = frozenset({"annotations", "labels", "matchLabels", "nodeSelector", "userAnnotations"})
MAPS = _MAPS_OF_METADATA | {"limits", "options", "overhead", "requests", "volumeAttributes"}
"""Fields whose keys are not fields. Only their presence is compared."""
_SHOWN = 5
"""Fields that a message names."""
_LONGEST = 100
"""Maximum characters of a field in a message, because tenants choose names."""


@dataclass(frozen=True, slots=True)
class LostField:
    """A field that was sent and not kept."""

    path: str
    """As in ``spec_fields``."""
    field: str
    """For users: ``spec.containers[app].restartPolicyRules``."""
    consequence: str
    """What would be different without it; empty: the pod may run."""


def lost_fields(sent: Mapping[str, Any], kept: Mapping[str, Any]) -> list[LostField]:
    """Return the fields of a pod's spec that were sent to an API server and that its answer does not have."""
    return list(_compared(sent, kept, "", "spec"))


def needed(spec: Mapping[str, Any]) -> list[LostField]:
    """Return the fields of a spec without which the pod must not run."""
    return [field for field in _compared(spec, {}, "", "spec") if field.consequence]


def message(cluster: str, lost: Sequence[LostField]) -> str:
    """Return the text for users about lost fields: first those without which the pod must not run."""
    must = [one for one in lost if one.consequence]
    if not must:
        return (
            f"Lower cluster {cluster} has dropped fields of the pod, and runs it without them: {_listed(lost)}. Its version of "
            "Kubernetes does not know them, their feature is off there, or its admission removes them"
        )
    first = must[0]
    return (
        f"Lower cluster {cluster} drops fields without which the pod must not run: {_listed(must)}. Without "
        f"{first.field[:_LONGEST]}, {first.consequence}. Upgrade the lower cluster, turn the feature on there, or remove the "
        "fields from the pod"
    )


def _listed(lost: Sequence[LostField]) -> str:
    return readable.some([one.field[:_LONGEST] for one in lost], limit=_SHOWN)


def _compared(sent: Mapping[str, Any], kept: Mapping[str, Any], path: str, where: str) -> Iterator[LostField]:
    for name, value in sent.items():
        other = kept.get(name)
        if value == other:
            continue
        step = "containers" if name in _CONTAINER_KINDS else name
        here, shown = f"{path}.{step}" if path else step, f"{where}.{name}"
        if other is None:
            yield from _lost(value, here, shown)
        elif name in MAPS and isinstance(value, Mapping):
            continue
        elif isinstance(value, Mapping) and isinstance(other, Mapping):
            yield from _compared(value, other, here, shown)
        elif _has_objects(value) and _has_objects(other):
            for item, its_other, its_name in _pairs(value, other):
                yield from _compared(item, its_other, here, f"{shown}[{its_name}]")


def _lost(value: Any, path: str, shown: str) -> Iterator[LostField]:
    """Yield a field that is missing, or the fields in it without which the pod must not run."""
    if _is_empty(value) or value in SAME_AS_ABSENT.get(path, ()):
        return
    if why := consequence(path):
        yield LostField(path, shown, why)
        return
    name = path.rpartition(".")[2]
    inner: list[LostField] = []
    if isinstance(value, Mapping) and name not in MAPS:
        inner = list(_compared(value, {}, path, shown))
    elif _has_objects(value):
        for number, item in enumerate(value):
            inner += _compared(item, {}, path, f"{shown}[{item.get('name', number)}]")
    if must := [field for field in inner if field.consequence]:
        yield from must
    elif value:  # false and 0 are what most missing fields mean
        yield LostField(path, shown, "")


def _is_empty(value: Any) -> bool:
    """Report whether API servers may leave out a value, because it means the same as no field."""
    if isinstance(value, Mapping):
        return all(map(_is_empty, value.values()))
    return value is None or value in ("", [])


def _has_objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, Mapping) for item in value)


def _pairs(
    sent: Sequence[Mapping[str, Any]], kept: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any], object]]:
    """Yield each item of a list with the one that was kept of it, and its name or number.

    Admission may add and remove items. So items are matched by name, or by position if there are as many as before.
    """
    for key in ("mountPath", "name"):
        names = [item.get(key) for item in sent]
        of_kept = {item.get(key): item for item in kept}
        if None not in names and len(set(names)) == len(names) and len(of_kept) == len(kept):
            yield from ((item, of_kept[item[key]], item[key]) for item in sent if item[key] in of_kept)
            return
    if len(sent) == len(kept):
        yield from (
            (item, other, number) for number, (item, other) in enumerate(zip(sent, kept, strict=True))
        )
