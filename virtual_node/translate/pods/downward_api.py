"""The downward API of lower pods: containers see the values of the upper pod.

The lower kubelet fills these fields from the lower pod. If the lower pod has the same value (name, IPs,
single labels and annotations, resources), the reference is kept. If the value differs:

- In the environment, a value that cannot change (uid, namespace, node, ServiceAccount) becomes a literal, and so does a
label or annotation that the lower pod does not get, such as the zone that the API server copies from the pod's node. Without
a zone on the virtual node, the zone is the lower pod's.
- In a volume, the reference is changed to an annotation of the lower pod that holds the upper value. The
kubelet writes changed annotations to the file, so a changed upper label changes the file in the container.

``resourceFieldRef`` to a limit that is not set returns the allocatable of the lower node, which is the right
basis for a heap size.

Source: kubelet ``pkg/fieldpath``, ``pkg/volume/downwardapi``, ``third_party/forked/golang/expansion``.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from clusterset.model import names
from clusterset.model.policy.copied_keys import ZONES
from controller_runtime.apimachinery.translation_budget import TranslationBudget, json_size
from virtual_node.translate.base.fields import is_label_value

ANNOTATION_UID = f"{names.DOMAIN}/downward-uid"
ANNOTATION_LABELS = f"{names.DOMAIN}/downward-labels"
ANNOTATION_ANNOTATIONS = f"{names.DOMAIN}/downward-annotations"
ANNOTATION_KEY = f"{names.DOMAIN}/downward-key"
"""Prefix of annotations with the value of a label or annotation that lower pods do not have; a hash of its path follows."""
Stays = Callable[[str, str], bool]
"""Reports for ``labels`` or ``annotations``, and a key, whether the lower pod does not get the upper value."""
_LITERAL = frozenset({"metadata.uid", "metadata.namespace", "spec.nodeName", "spec.serviceAccountName"})
"""Fields that cannot change and have another value in the lower pod."""
_LONGEST = 100 * 1024
"""Maximum bytes of the upper annotations in a file. If they have more, the file has the lower pod's annotations."""
_LITERAL_ADVICE = "shorten the value, or use it in fewer variables"
_UNUSUAL = re.compile(r"[^ !#-\[\]-~]")
"""Characters that ``quote`` may have to escape: all but printable ASCII without quote and backslash."""
_SHOWN = 100
"""Characters of a path in an error."""
_SIMPLE_ESCAPES = {
    "\a": r"\a", "\b": r"\b", "\f": r"\f", "\n": r"\n", "\r": r"\r", "\t": r"\t", "\v": r"\v",
    "\\": r"\\", '"': r"\"",
}  # fmt: skip


def reads_zone_of_lower_pod(
    key: str, upper_labels: Mapping[str, str], node_labels: Mapping[str, str]
) -> bool:
    """Report whether a label is a zone or region that only the lower pod has, because the virtual node spans several.

    Then the lower pod's label counts everywhere. The API server writes it when it binds the lower pod, before any container
    starts, and the status writer copies it to the upper pod.

    Args:
        key: of the label.
        upper_labels: labels of the upper pod.
        node_labels: labels of the virtual node, as ``PodOptions`` has them.
    """
    return key in ZONES and key not in upper_labels and key not in node_labels


def zones_to_report(
    upper: Mapping[str, str], lower: Mapping[str, str], node_labels: Mapping[str, str]
) -> dict[str, str]:
    """Return the labels with the zone and region of a lower pod that its upper pod gets.

    Args:
        upper: labels of the upper pod.
        lower: labels of the lower pod.
        node_labels: as for ``reads_zone_of_lower_pod``.
    """
    return {
        key: lower[key]
        for key in sorted(ZONES & lower.keys())
        if reads_zone_of_lower_pod(key, upper, node_labels) and is_label_value(lower[key])
    }


def _copies_all(_field: str, key: str) -> bool:
    return names.is_reserved(key)


def literal(
    variable: Mapping[str, Any],
    upper: Mapping[str, Any],
    stays: Stays = _copies_all,
    budget: TranslationBudget | None = None,
) -> Mapping[str, Any]:
    """Return an environment variable for the lower pod: the upper value if the reference would give another value.

    Args:
        variable: variable of a container of the upper pod.
        upper: the upper pod.
        stays: which labels and annotations are not copied to the lower cluster.
        budget: of the pod; None: a new one.

    Raises:
        TooLargeError: the values exceed the budget.
    """
    path = ((variable.get("valueFrom") or {}).get("fieldRef") or {}).get("fieldPath")
    if path in _LITERAL:
        part, _, field = path.partition(".")
        return _with_value(variable, path, upper[part].get(field, ""), budget)
    if not path or (subscript := _subscript(path)) is None:
        return variable
    kind, key = subscript
    if not stays(kind, key):
        return variable
    return _with_value(variable, path, (upper["metadata"].get(kind) or {}).get(key, ""), budget)


def volumes(
    spec_volumes: Sequence[Mapping[str, Any]],
    upper: Mapping[str, Any],
    stays: Stays = _copies_all,
    budget: TranslationBudget | None = None,
) -> tuple[list[Mapping[str, Any]], dict[str, str]]:
    """Make downward API items read annotations instead; return the volumes and these annotations.

    Args:
        spec_volumes: the lower pod's volumes.
        upper: the upper pod.
        stays: as for ``literal``.
        budget: of the pod; None: a new one.

    Raises:
        TooLargeError: the annotations exceed the budget.
    """
    annotations: dict[str, str] = {}
    budget = budget or TranslationBudget()

    @functools.cache
    def key_for(path: str) -> str | None:
        """Return the annotation that an item reads, once it is added; None: the item stays as it is."""
        if (entry := _annotation_for(path, upper, stays, budget)) is None:
            return None
        annotations.update([entry])
        return entry[0]

    def rewritten(holder: Mapping[str, Any]) -> Mapping[str, Any]:
        if "downwardAPI" not in holder:
            return holder
        return {**holder, "downwardAPI": _source(holder["downwardAPI"], key_for)}

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
    return f'"{_UNUSUAL.sub(_escaped, text)}"'


def _escaped(found: re.Match[str]) -> str:
    character = found[0]
    if character in _SIMPLE_ESCAPES:
        return _SIMPLE_ESCAPES[character]
    if character.isprintable():
        return character
    code = ord(character)
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _with_value(
    variable: Mapping[str, Any], path: str, value: str, budget: TranslationBudget | None
) -> dict[str, Any]:
    # A kubelet expands $(NAME) in a literal value, and turns $$ into $, but leaves the value of a field as it is.
    escaped = value.replace("$", "$$")
    if budget is not None:
        budget.add(json_size(escaped), f"Variables with fieldPath {path[:_SHOWN]}", _LITERAL_ADVICE)
    return {"name": variable["name"], "value": escaped}


def _source(source: Mapping[str, Any], key_for: Callable[[str], str | None]) -> dict[str, Any]:
    items = []
    for item in source.get("items") or ():
        path = (item.get("fieldRef") or {}).get("fieldPath")
        key = key_for(path) if path else None
        if key is None:
            items.append(item)
            continue
        items.append(
            {**item, "fieldRef": {**item["fieldRef"], "fieldPath": f"metadata.annotations['{key}']"}}
        )
    return {**source, "items": items}


def _annotation_for(
    path: str, upper: Mapping[str, Any], stays: Stays, budget: TranslationBudget
) -> tuple[str, str] | None:
    metadata = upper["metadata"]
    match path:
        case "metadata.uid":
            return ANNOTATION_UID, metadata["uid"]
        case "metadata.namespace":
            return names.ANNOTATION_UPPER_NAMESPACE, metadata["namespace"]
        case "metadata.labels":
            labels = metadata.get("labels") or {}
            budget.add(json_size(labels), "Volume items with fieldPath metadata.labels", "use fewer labels")
            return ANNOTATION_LABELS, format_map(labels)
        case "metadata.annotations":
            annotations = {
                key: value
                for key, value in (metadata.get("annotations") or {}).items()
                if key not in names.REPORTED_ON_PODS
            }
            # Quoting never shortens a text, so a longer one is not quoted in vain.
            if sum(len(key) + len(value) for key, value in annotations.items()) > _LONGEST:
                return None
            text = format_map(annotations)
            return (ANNOTATION_ANNOTATIONS, text) if len(text.encode()) <= _LONGEST else None
        case _:
            if (subscript := _subscript(path)) is None or not stays(*subscript):
                return None
            field, key = subscript
            is_reported = field == "annotations" and key in names.REPORTED_ON_PODS
            value = "" if is_reported else (metadata.get(field) or {}).get(key, "")
            budget.add(json_size(value), f"Volume items with fieldPath {path[:_SHOWN]}", _LITERAL_ADVICE)
            return f"{ANNOTATION_KEY}-{hashlib.sha256(path.encode()).hexdigest()[:16]}", value


def _subscript(path: str) -> tuple[str, str] | None:
    """Split ``metadata.labels['app']`` into ``labels`` and ``app``; None for other paths."""
    for kind in ("labels", "annotations"):
        prefix = f"metadata.{kind}['"
        if path.startswith(prefix) and path.endswith("']"):
            return kind, path[len(prefix) : -2]
    return None
