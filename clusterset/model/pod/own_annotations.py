"""The annotations that this project reads on upper pods, and what is wrong with those of a pod. No IO.

A wrong value is ignored, so users would not notice it. The webhook returns the problems as warnings, which kubectl
prints, and the virtual node writes them as an event. Problems that refuse a pod (``clusterSelector``,
``resource-claims``, ``move-anti-affinity``) are not listed here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice

from clusterset.model import division, names
from clusterset.model.pod import api_access, groups
from clusterset.model.pod.lower_spec import is_node_name
from controller_runtime.apimachinery.readable import guess

EVENT = "IgnoredAnnotation"
"""Reason of the virtual node's event."""
_MOST = 10
"""Maximum number of problems of a pod that are returned."""
_SHOWN = 60
"""Characters of a value or key that a problem quotes."""

Texts = Mapping[str, str]
Check = Callable[[Texts, Texts], str]
"""Returns from a pod's labels and annotations why an annotation is ignored; empty: it is read."""


def _any(_labels: Texts, _annotations: Texts) -> str:
    return ""


def _api_server(_labels: Texts, annotations: Texts) -> str:
    try:
        api_access.requested(annotations)
    except ValueError as error:
        return str(error)
    return ""


def _division(_labels: Texts, annotations: Texts) -> str:
    try:
        division.parse(annotations)
    except ValueError as error:
        return str(error)
    return ""


def _skew(_labels: Texts, annotations: Texts) -> str:
    if annotations.get(names.ANNOTATION_DIVISION):
        return ""  # checked with the division
    return f"it has no effect without annotation {names.ANNOTATION_DIVISION}"


def _group(labels: Texts, annotations: Texts) -> str:
    found = groups.group_of("", labels, annotations)
    return found.problem if found is not None else ""


def _of_group(labels: Texts, annotations: Texts) -> str:
    found = groups.group_of("", labels, annotations)
    if found is None:
        return (
            f"it has no effect, because the pod is in no group; set annotation {names.ANNOTATION_POD_GROUP}"
        )
    # The problem of a group that annotation pod-group declares is reported there.
    return "" if names.ANNOTATION_POD_GROUP in annotations else found.problem


def _node(key: str) -> Check:
    def check(_labels: Texts, annotations: Texts) -> str:
        text = annotations[key]
        return "" if not text or is_node_name(text) else f"{text[:_SHOWN]!r} is not a name of a node"

    return check


READ: Mapping[str, Check] = {
    names.ANNOTATION_KUBERNETES_SERVICE: _api_server,
    names.ANNOTATION_SCHEDULER_NAME: _any,
    names.ANNOTATION_POD_GROUP: _group,
    names.ANNOTATION_MIN_MEMBERS: _of_group,
    names.ANNOTATION_SCOPE: _of_group,
    names.ANNOTATION_GROUP_TOPOLOGY: _of_group,
    names.ANNOTATION_DIVISION: _division,
    names.ANNOTATION_DIVISION_MAX_SKEW: _skew,
    names.ANNOTATION_PREFERRED_NODE: _node(names.ANNOTATION_PREFERRED_NODE),
    names.ANNOTATION_REQUIRED_NODE: _node(names.ANNOTATION_REQUIRED_NODE),
    names.ANNOTATION_MOVE_ANTI_AFFINITY: _any,
    names.ANNOTATION_RESOURCE_CLAIMS: _any,
    **dict.fromkeys(names.REPORTED_ON_PODS, _any),
    names.ANNOTATION_DELETION_COST_WRITTEN: _any,
    names.ANNOTATION_UNSCHEDULABLE_NODES: _any,
    names.ANNOTATION_REPLACES: _any,
    names.ANNOTATION_LEAVING: _any,
}
"""Every annotation with our domain that is read or written on upper pods, by its key."""


def problems(labels: Texts | None, annotations: Texts | None, path: str = "metadata") -> list[str]:
    """Return why annotations and labels with our domain are ignored, each after its field; at most ``_MOST``.

    Args:
        labels: of the upper pod, or of a pod template.
        annotations: of the same.
        path: path of the field that has both.
    """
    return list(islice(_problems(labels or {}, annotations or {}, path), _MOST))


def _problems(labels: Texts, annotations: Texts, path: str) -> Iterator[str]:
    if names.LABEL_UPPER_CLUSTER in labels:
        return  # a virtual node of another upper cluster made this pod, with names for lower pods
    for key in filter(_is_ours, annotations):
        where = f"{path}.annotations[{key[:_SHOWN]}]"
        if (check := READ.get(key)) is None:
            yield f"{where}: no annotation of pods has this name{guess(key, READ)}"
        elif problem := check(labels, annotations):
            yield f"{where}: {problem.removeprefix(f'annotation {key}: ')}"
    for key in filter(_is_ours, labels):
        hint = ", write it as an annotation" if key in READ else guess(key, READ)
        yield f"{path}.labels[{key[:_SHOWN]}]: no label of pods has this name{hint}"


def _is_ours(key: str) -> bool:
    return key.startswith(f"{names.DOMAIN}/")
