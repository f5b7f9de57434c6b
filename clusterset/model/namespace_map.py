"""Maps upper namespaces to lower namespaces, and decides which are mirrored. No IO.

An explicit entry wins over the prefix, the prefix over the same name. A prefixed name that is longer than
Kubernetes allows is cut and ends with a hash of the full name. A name that only looks like such a result is
hashed, too, so that no two upper namespaces get the same name.
"""

from __future__ import annotations

import fnmatch
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from clusterset.model import names
from controller_runtime.apimachinery.decoding import ConfigStruct

NEVER_MIRRORED = "kube-system"
DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""A DNS-1123 label, such as the name of a namespace."""
_LONGEST = 63
_SHORTENED = re.compile(r".{54}-[0-9a-f]{8}")


class NamespaceConfig(ConfigStruct):
    """The lower namespace of each upper namespace, and the upper namespaces that may use this cluster."""

    prefix: str = ""
    """Prefix of lower names. Empty: the lower namespace has the upper name."""
    map: dict[str, str] = {}
    """Lower name by upper name; overrides the prefix."""
    allowed: list[str] = []
    """Shell patterns of upper namespaces whose pods may run in this cluster. Empty: all but kube-system."""
    adopt: bool | list[str] = False
    """Use existing lower namespaces that virtual-node did not create: ``true`` for all, or shell patterns of
    names. Pods that need any other existing namespace wait, with an event."""
    labels: list[str] = []
    """Shell patterns of label keys that lower namespaces get from their upper namespaces, for programs and policies of the
    lower cluster, if ``policy.metadata`` allows them. Only namespaces that virtual-node created get them. Pod Security
    labels are always copied."""
    remove: bool = True
    """When an upper namespace is deleted, delete the lower namespace that we created for it, unless that has objects
    of other owners."""
    generated: list[str] = []
    """Objects that programs of the lower cluster create in every namespace, as shell patterns of resource and name, such as
    ``networkpolicies.networking.k8s.io/default-deny``. They do not keep a lower namespace, and are deleted with it.
    PersistentVolumeClaims always keep it. Those of Kubernetes, OpenShift and Istio are built in."""


@dataclass(frozen=True, slots=True)
class NamespaceMap:
    """A function from upper namespaces to lower namespaces."""

    prefix: str = ""
    explicit: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, upper: str) -> str:
        """Return the lower namespace of an upper one."""
        if upper in self.explicit:
            return self.explicit[upper]
        if not self.prefix:
            return upper
        name = self.prefix + upper
        if len(name) <= _LONGEST and not _SHORTENED.fullmatch(name):
            return name
        return f"{name[: _LONGEST - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"

    def conflicting_upper(self, upper: str) -> str:
        """Return another upper namespace explicitly mapped to ``upper``'s lower namespace; empty: none."""
        if upper in self.explicit:
            return ""
        lower = self(upper)
        return next((other for other, target in self.explicit.items() if target == lower), "")


def allowed(namespace: str, patterns: Sequence[str]) -> bool:
    """Return whether pods of a namespace may be mirrored: it matches a pattern, or there are no patterns."""
    return not patterns or any(fnmatch.fnmatchcase(namespace, pattern) for pattern in patterns)


def marks(labels: Mapping[str, str], annotations: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return upper cluster and upper namespace from each of a lower namespace's ownership marks.

    The marks are the ownership label with the namespace annotation, and the ``made-for`` annotation. The list
    is empty if virtual-node did not create the namespace. The marks agree unless a user changed one. An empty
    namespace means that its annotation was removed.
    """
    found = []
    if cluster_id := labels.get(names.LABEL_UPPER_CLUSTER):
        found.append((cluster_id, annotations.get(names.ANNOTATION_UPPER_NAMESPACE, "")))
    if names.ANNOTATION_MADE_FOR in annotations:
        cluster_id, _, name = annotations[names.ANNOTATION_MADE_FOR].partition("/")
        found.append((cluster_id, name))
    return found


def adopts(namespace: str, adopt: bool | Sequence[str]) -> bool:  # noqa: FBT001 - the setting, which is both
    """Return whether an existing lower namespace may be used: always, never, or if a shell pattern matches it."""
    if isinstance(adopt, bool):
        return adopt
    return any(fnmatch.fnmatchcase(namespace, pattern) for pattern in adopt)
