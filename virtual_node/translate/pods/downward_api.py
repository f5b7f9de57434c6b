"""The downward API of lower pods: containers see the values of the upper pod.

The lower kubelet fills these fields from the lower pod. If the lower pod has the same value (name, IPs,
single labels and annotations, resources), the reference is kept. If the value differs:

- In the environment, a value that cannot change (uid, namespace, node, ServiceAccount) becomes a literal.
- In a volume, the reference is changed to an annotation of the lower pod that holds the upper value. The
kubelet writes changed annotations to the file, so a changed upper label changes the file in the container.

``resourceFieldRef`` to a limit that is not set returns the allocatable of the lower node, which is the right
basis for a heap size.

Source: kubelet ``pkg/fieldpath``, ``pkg/volume/downwardapi``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from controller_runtime.api import names

ANNOTATION_UID = f"{names.DOMAIN}/downward-uid"
ANNOTATION_LABELS = f"{names.DOMAIN}/downward-labels"
ANNOTATION_ANNOTATIONS = f"{names.DOMAIN}/downward-annotations"
_LITERAL = frozenset({"metadata.uid", "metadata.namespace", "spec.nodeName", "spec.serviceAccountName"})
"""Fields that cannot change and have another value in the lower pod."""
_LONGEST = 100 * 1024
"""Maximum bytes of the upper annotations in a file. If they have more, the file has the lower pod's annotations."""
_SIMPLE_ESCAPES = {
    "\a": r"\a", "\b": r"\b", "\f": r"\f", "\n": r"\n", "\r": r"\r", "\t": r"\t", "\v": r"\v",
    "\\": r"\\", '"': r"\"",
}  # fmt: skip


def literal(
    variable: Mapping[str, Any], upper: Mapping[str, Any], tripped: Collection[str] = ()
) -> Mapping[str, Any]:
    """Return an environment variable for the lower pod: the upper value if the reference would give another value.

    Args:
        variable: variable of a container of the upper pod.
        upper: the upper pod.
        tripped: keys of the labels that are not copied to the lower cluster.
    """
    path = ((variable.get("valueFrom") or {}).get("fieldRef") or {}).get("fieldPath")
    if path in _LITERAL:
        part, _, field = path.partition(".")
        return {"name": variable["name"], "value": upper[part].get(field, "")}
    if not path or (subscript := _subscript(path)) is None:
        return variable
    kind, key = subscript
    is_copied = key not in tripped and key not in names.UPPER_ONLY_ON_PODS
    if is_copied and not names.is_reserved(key):
        return variable
    return {"name": variable["name"], "value": (upper["metadata"].get(kind) or {}).get(key, "")}


def volumes(
    spec_volumes: Sequence[Mapping[str, Any]], upper: Mapping[str, Any]
) -> tuple[list[Mapping[str, Any]], dict[str, str]]:
    """Make downward API items read annotations instead; return the volumes and these annotations.

    Args:
        spec_volumes: the lower pod's volumes.
        upper: the upper pod.
    """
    annotations: dict[str, str] = {}

    def rewritten(holder: Mapping[str, Any]) -> Mapping[str, Any]:
        if "downwardAPI" not in holder:
            return holder
        return {**holder, "downwardAPI": _source(holder["downwardAPI"], upper, annotations)}

    return [with_sources(rewritten(volume), rewritten) for volume in spec_volumes], annotations


def with_sources(
    volume: Mapping[str, Any], rewritten: Callable[[Mapping[str, Any]], Mapping[str, Any]]
) -> Mapping[str, Any]:
    """Return a volume; if it is a projected volume, each of its sources is rewritten."""
    if not (projected := volume.get("projected")) or not projected.get("sources"):
        return volume
    return {**volume, "projected": {**projected, "sources": list(map(rewritten, projected["sources"]))}}


def format_map(values: Mapping[str, str]) -> str:
    """Return labels or annotations as the kubelet writes them to a file: sorted ``key="value"`` lines."""
    return "\n".join(f"{key}={quote(value)}" for key, value in sorted(values.items()))


def quote(text: str) -> str:
    """Return a string as Go's ``%q`` prints it."""
    parts = []
    for character in text:
        if character in _SIMPLE_ESCAPES:
            parts.append(_SIMPLE_ESCAPES[character])
        elif character.isprintable():
            parts.append(character)
        elif (code := ord(character)) < 0x80:
            parts.append(f"\\x{code:02x}")
        elif code < 0x10000:
            parts.append(f"\\u{code:04x}")
        else:
            parts.append(f"\\U{code:08x}")
    return '"' + "".join(parts) + '"'


def _source(
    source: Mapping[str, Any], upper: Mapping[str, Any], annotations: dict[str, str]
) -> dict[str, Any]:
    items = []
    for item in source.get("items") or ():
        path = (item.get("fieldRef") or {}).get("fieldPath")
        entry = _annotation_for(path, upper) if path else None
        if entry is None:
            items.append(item)
            continue
        key, value = entry
        annotations[key] = value
        items.append(
            {**item, "fieldRef": {**item["fieldRef"], "fieldPath": f"metadata.annotations['{key}']"}}
        )
    return {**source, "items": items}


def _annotation_for(path: str, upper: Mapping[str, Any]) -> tuple[str, str] | None:
    metadata = upper["metadata"]
    match path:
        case "metadata.uid":
            return ANNOTATION_UID, metadata["uid"]
        case "metadata.namespace":
            return names.ANNOTATION_UPPER_NAMESPACE, metadata["namespace"]
        case "metadata.labels":
            return ANNOTATION_LABELS, format_map(metadata.get("labels") or {})
        case "metadata.annotations":
            annotations = metadata.get("annotations") or {}
            text = format_map(
                {key: value for key, value in annotations.items() if key not in names.REPORTED_ON_PODS}
            )
            return (ANNOTATION_ANNOTATIONS, text) if len(text.encode()) <= _LONGEST else None
        case _:
            return None


def _subscript(path: str) -> tuple[str, str] | None:
    """Split ``metadata.labels['app']`` into ``labels`` and ``app``; None for other paths."""
    for kind in ("labels", "annotations"):
        prefix = f"metadata.{kind}['"
        if path.startswith(prefix) and path.endswith("']"):
            return kind, path[len(prefix) : -2]
    return None
