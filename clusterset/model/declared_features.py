"""Declared features of nodes: what a pod requires of its node, and what a virtual node declares for its lower nodes. No IO.

A kubelet declares in ``status.declaredFeatures`` which feature gates it has (KEP-5328). The scheduler keeps pods that need a
feature away from other nodes, and admission refuses changes of a pod that its node cannot apply. Source:
``k8s.io/component-helpers/nodedeclaredfeatures`` and the scheduler's plug-in NodeDeclaredFeatures, Kubernetes 1.37.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeGuard

_MINOR = re.compile(r"v?(\d+)\.(\d+)")


def minor_version(version: str) -> tuple[int, int] | None:
    """Return major and minor version of a text such as v1.37.2; None: it cannot be read."""
    found = _MINOR.match(version)
    return (int(found[1]), int(found[2])) if found else None


WEBSOCKETS = "ExtendWebSocketsToKubelet"
"""The API server passes WebSockets of exec, attach and port-forward on to the kubelet, and does not translate them to SPDY."""
_WEBSOCKETS_SINCE = (1, 31)
"""The first version of an API server that accepts all WebSocket protocols of kubectl: port-forward came last (KEP-4006)."""
_IN_LOWER_CLUSTER = "devices are allocated in the lower cluster, and not by the upper scheduler"
NOT_GIVEN = {
    WEBSOCKETS: "the lower API server receives the WebSockets, so its version decides, and not the kubelets'",
    "DRANodeAllocatableResources": _IN_LOWER_CLUSTER,
    "DRAOptionalNodeOperations": _IN_LOWER_CLUSTER,
    "InPlacePodVerticalScalingMemoryBackedVolumes": "only cpu and memory of a running pod are sent to the lower cluster",
}
"""Features of lower nodes that a virtual node does not declare, with the reason."""
_MOST_FEATURES = 64
"""Number of features of a lower node that are read. Kubernetes 1.37 has nine."""
_LONGEST_NAME = 253
_NAME = re.compile(r"[A-Z][a-zA-Z0-9]*(?:/[a-zA-Z][a-zA-Z0-9]*)*")
_Body = Mapping[str, Any]


def declared(node: _Body) -> frozenset[str]:
    """Return the features that a Node declares, without those that the API server would refuse on another Node."""
    names = (node.get("status") or {}).get("declaredFeatures")
    if not isinstance(names, list):
        return frozenset()
    return frozenset(map(sys.intern, filter(_is_feature, names[:_MOST_FEATURES])))


def published(
    lower_nodes: Iterable[frozenset[str]], *, lower_version: str, before: frozenset[str]
) -> list[str]:
    """Return the features that a virtual node declares, in the order that the API server requires.

    These are the features that all of its lower nodes declare, because a pod may run on any of them.

    Args:
        lower_nodes: the result of ``declared`` for each lower node that takes pods.
        lower_version: version of the lower API server, such as v1.37.2; empty: unknown.
        before: what the virtual node declares now. It stays while nothing is known, and while an autoscaled cluster has no
            nodes, because pods that require a feature could not make such a cluster grow.
    """
    distinct = set(lower_nodes)
    common = frozenset.intersection(*distinct) if distinct else before
    features = common - NOT_GIVEN.keys()
    version = minor_version(lower_version)
    if version >= _WEBSOCKETS_SINCE if version else WEBSOCKETS in before:
        features |= {WEBSOCKETS}
    return sorted(features)


def required(spec: _Body) -> list[str]:
    """Return the features that the scheduler requires of the node of a new pod."""
    return [feature for feature, is_needed in REQUIRED.items() if is_needed(spec)]


def restarts_all(spec: _Body) -> bool:
    """Report whether the exit of some container restarts all containers of the pod (KEP-5532)."""
    return any(
        rule.get("action") == "RestartAllContainers"
        for container in _containers(spec, "initContainers", "containers")
        for rule in container.get("restartPolicyRules") or ()
    )


def _has_host_network_in_user_namespace(spec: _Body) -> bool:
    return bool(spec.get("hostNetwork")) and spec.get("hostUsers") is False


def _has_mount_options(spec: _Body) -> bool:
    return any(
        mount.get("bindMountOptions")
        for container in _containers(spec, "initContainers", "containers", "ephemeralContainers")
        for mount in container.get("volumeMounts") or ()
    )


REQUIRED: Mapping[str, Callable[[_Body], bool]] = {
    "RestartAllContainersOnContainerExits": restarts_all,
    "UserNamespacesHostNetworkSupport": _has_host_network_in_user_namespace,
    "VolumeBindMountOptions": _has_mount_options,
}
"""The features that matter for scheduling, sorted, and whether a pod with a spec needs them."""


def _containers(spec: _Body, *kinds: str) -> Iterator[_Body]:
    for kind in kinds:
        yield from spec.get(kind) or ()


def _is_feature(name: object) -> TypeGuard[str]:
    return isinstance(name, str) and len(name) <= _LONGEST_NAME and _NAME.fullmatch(name) is not None
