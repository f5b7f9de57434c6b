"""Reads from a pod's labels and annotations the group whose pods start together or not at all. No IO.

Pods with a group of Kubernetes itself (``NATIVE_FIELDS``) start as kube-scheduler decides. Only the annotation of this project
adds a group to them: from 1.37 on, the Job controller can give each Job such a group, without a minimum.

Sources: scheduler-plugins ``apis/scheduling/v1alpha1``, LeaderWorkerSet ``api/leaderworkerset/v1``, JobSet
``api/jobset/v1alpha2``, and Kubernetes ``scheduling/v1beta1``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from clusterset.model import names

MOST_MEMBERS = 1000
"""Largest minimum of a group. Room for so many pods is computed in one step, which delays other pods."""
NATIVE_FIELDS = ("schedulingGroup", "workloadRef")
"""Fields of a pod's spec that name its group: from Kubernetes 1.36 on, and in 1.35."""
LABEL_POD_GROUP = "scheduling.x-k8s.io/pod-group"
"""Label of scheduler-plugins; its value names a PodGroup object."""
_LONGEST_NAME = 253
"""Maximum characters of a group's name, which messages repeat for each node."""
_LONGEST_KEY = 317
"""Maximum characters of a label key: a prefix, a slash and a name."""
_LWS_NAME = "leaderworkerset.sigs.k8s.io/name"
_LWS_INDEX = "leaderworkerset.sigs.k8s.io/group-index"
_LWS_SIZE = "leaderworkerset.sigs.k8s.io/size"
_LWS_EXCLUSIVE = "leaderworkerset.sigs.k8s.io/exclusive-topology"
_JOB_SET = "jobset.sigs.k8s.io/jobset-name"
_REPLICATED_JOB = "jobset.sigs.k8s.io/replicatedjob-name"
_REPLICATED_JOBS = "jobset.sigs.k8s.io/replicatedjob-replicas"

_PREFIXES = ("leaderworkerset.sigs.k8s.io/", "jobset.sigs.k8s.io/")
_OWN = frozenset(
    {
        names.ANNOTATION_POD_GROUP,
        names.ANNOTATION_MIN_MEMBERS,
        names.ANNOTATION_SCOPE,
        names.ANNOTATION_GROUP_TOPOLOGY,
    }
)

Source = Literal["annotation", "PodGroup", "LeaderWorkerSet", "JobSet"]
"""What declares a group. Groups of different sources with the same name are different groups."""


@dataclass(frozen=True, slots=True)
class Group:
    """The group of one pod, as this pod declares it."""

    namespace: str
    source: Source
    name: str
    minimum: int = 0
    """Number of pods that must get room at once; 0: not known from the pod."""
    is_one_cluster: bool = True
    """Whether all pods must run in one lower cluster."""
    topology: str = ""
    """Label key of lower nodes of which all pods must get the same value; empty: none."""
    problem: str = ""
    """Why the declaration cannot be used; empty: it can."""

    @property
    def key(self) -> str:
        """Return what identifies the group."""
        return f"{self.namespace}/{self.source}/{self.name}"

    @property
    def is_derived(self) -> bool:
        """Report whether only labels of the pod's controller declare the group, not the pod's user."""
        return self.source in ("LeaderWorkerSet", "JobSet")

    def __str__(self) -> str:
        """Return the name for messages."""
        return f"{self.namespace}/{self.name[:_LONGEST_NAME]}"


def is_group_key(key: str) -> bool:
    """Report whether ``group_of`` may read a label or annotation with this key."""
    return key == LABEL_POD_GROUP or key.startswith(_PREFIXES) or key in _OWN


def native_group(spec: Mapping[str, Any] | None) -> str:
    """Return the name of the PodGroup (scheduling.k8s.io) that a pod's spec names; empty: none."""
    group = (spec or {}).get("schedulingGroup")
    return str(group.get("podGroupName") or "") if isinstance(group, Mapping) else ""


def is_native(spec: Mapping[str, Any] | None) -> bool:
    """Report whether a pod has a group of Kubernetes itself."""
    return any((spec or {}).get(field) for field in NATIVE_FIELDS)


def group_of(
    namespace: str,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    spec: Mapping[str, Any] | None = None,
) -> Group | None:
    """Return the group of a pod; None: it starts alone, or with a group of Kubernetes itself.

    The annotation of this project overrides all labels, and labels have no effect on pods with a group of Kubernetes. A
    minimum in an annotation overrides any other minimum.
    """
    found = _declared(labels, annotations)
    if found is None or (found[0] != "annotation" and is_native(spec)):
        return None
    source, name, minimum = found
    problem = ""
    if (text := annotations.get(names.ANNOTATION_MIN_MEMBERS)) is not None:
        minimum = _number(text)
        if not 1 <= minimum <= MOST_MEMBERS:
            problem = f"annotation {names.ANNOTATION_MIN_MEMBERS} is not a number from 1 to {MOST_MEMBERS}"
    elif source == "annotation":
        problem = f"annotation {names.ANNOTATION_MIN_MEMBERS} is missing"
    elif minimum > MOST_MEMBERS:
        problem = f"it needs {minimum} pods, and the limit is {MOST_MEMBERS}"
    scope = annotations.get(names.ANNOTATION_SCOPE, "cluster")
    if scope not in ("cluster", "any"):
        problem = problem or f"annotation {names.ANNOTATION_SCOPE} is neither cluster nor any"
    topology = annotations.get(names.ANNOTATION_GROUP_TOPOLOGY, "")
    if len(name) > _LONGEST_NAME:
        problem = f"its name has more than {_LONGEST_NAME} characters"
    elif len(topology) > _LONGEST_KEY:
        problem = f"annotation {names.ANNOTATION_GROUP_TOPOLOGY} is longer than a label key"
    return Group(namespace, source, name, minimum, scope != "any" or bool(topology), topology, problem)


def _declared(labels: Mapping[str, str], annotations: Mapping[str, str]) -> tuple[Source, str, int] | None:
    """Return source, name and minimum of the group; None: no group."""
    own = annotations.get(names.ANNOTATION_POD_GROUP)
    if own is not None:
        return ("annotation", own, 0) if own else None
    is_set = names.ANNOTATION_MIN_MEMBERS in annotations
    if label := labels.get(LABEL_POD_GROUP):
        return "PodGroup", label, 0
    # A derived group of one pod is not a group, unless the annotation gives another minimum.
    if (name := labels.get(_LWS_NAME)) and (index := labels.get(_LWS_INDEX)):
        # With exclusive topology, the controller creates workers only after their leader has a node.
        size = 0 if _LWS_EXCLUSIVE in annotations else _number(annotations.get(_LWS_SIZE, ""))
        return ("LeaderWorkerSet", f"{name}-{index}", size) if size > 1 or is_set else None
    if (name := labels.get(_JOB_SET)) and (job := labels.get(_REPLICATED_JOB)):
        # One replicated job, not the whole set, because dependent replicated jobs are created later.
        jobs = _number(labels.get(_REPLICATED_JOBS) or annotations.get(_REPLICATED_JOBS, ""))
        return ("JobSet", f"{name}/{job}", jobs) if jobs > 1 or is_set else None
    return None


def _number(text: str) -> int:
    """Return a text of one to nine digits as a number; other texts as 0."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else 0
