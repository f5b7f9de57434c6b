"""The permissions of a virtual node for the objects that follow pods, by kind in ``follow``."""

from __future__ import annotations

from controller_runtime.rights import OWN_NAMESPACE, READ, Right
from virtual_node.translate.follow.addresses import KEY_OBJECT

_FOLLOWED = {
    "networkPolicies": ("networking.k8s.io", ("networkpolicies",), "NetworkPolicies"),
    "podDisruptionBudgets": ("policy", ("poddisruptionbudgets",), "PodDisruptionBudgets"),
    "ingresses": ("networking.k8s.io", ("ingresses",), "Ingresses"),
    "gateways": ("gateway.networking.k8s.io", ("gateways", "httproutes"), "Gateways and HTTPRoutes"),
}


def _followed(verbs: tuple[str, ...], reason: str) -> dict[str, tuple[Right, ...]]:
    return {
        kind: tuple(Right(group, plural, verbs, reason.format(objects)) for plural in plurals)
        for kind, (group, plurals, objects) in _FOLLOWED.items()
    }


UPPER: dict[str, tuple[Right, ...]] = _followed(("list", "watch"), "{} that follow pods")
"""Needed in the upper cluster, in addition to ``daemon.UPPER``, for each kind in ``clusters[].follow``."""
_KEY = Right(
    "",
    "secrets",
    ("get", "update"),
    "the key that signs records of addresses. Create the Secret empty, or grant create too",
    "",
    OWN_NAMESPACE,
    (KEY_OBJECT,),
)
UPPER["ingresses"] += (
    Right("networking.k8s.io", "ingresses", ("patch",), "addresses of their copies", "status"),
    _KEY,
)
UPPER["gateways"] += (
    Right("gateway.networking.k8s.io", "gateways", ("patch",), "addresses of their copies", "status"),
    _KEY,
)

INSPECTION: dict[str, tuple[Right, ...]] = _followed(("list",), "find copies of {} that are left")
"""Needed in the upper cluster by the scheduled ``virtual-node inspect``, in addition to ``operator.INSPECTION``, for each
kind in ``clusters[].follow``."""

LOWER: dict[str, tuple[Right, ...]] = _followed((*READ, "create", "patch", "delete"), "copies of {}")
"""Needed in a lower cluster, in addition to ``daemon.LOWER``, for each kind in its ``follow``."""
