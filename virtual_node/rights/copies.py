"""The permissions of a virtual node for the objects that it copies, from the table of kinds."""

from __future__ import annotations

from controller_runtime.rights import MANAGE, OWN_NAMESPACE, READ, Right
from virtual_node.translate.follow.addresses import KEY_OBJECT
from virtual_node.translate.kinds import FOLLOWED, Demand, Kind

_KEY = Right(
    "",
    "secrets",
    ("get", "update"),
    "the key that signs records of addresses. Create the Secret empty, or grant create too",
    "",
    OWN_NAMESPACE,
    (KEY_OBJECT,),
)


def upper(kind: Kind) -> tuple[Right, ...]:
    """Return what a virtual node needs in the upper cluster to copy a kind."""
    resource = kind.resource
    verbs = READ if kind.demand is Demand.REFERENCES else ("list", "watch")
    found = (Right(resource.group, resource.plural, verbs, _purpose(kind)),)
    if kind.addresses is None:
        return found
    status = Right(resource.group, resource.plural, ("patch",), "addresses of their copies", "status")
    return (*found, status, _KEY)


def lower(kind: Kind) -> Right:
    """Return what a virtual node needs in a lower cluster to copy a kind."""
    return Right(kind.resource.group, kind.resource.plural, MANAGE, _purpose(kind))


def _purpose(kind: Kind) -> str:
    return kind.purpose or f"copies of {kind.resource.plural}"


_SETTINGS = dict.fromkeys(kind.setting for kind in reversed(FOLLOWED))
UPPER: dict[str, tuple[Right, ...]] = {
    setting: tuple(right for kind in FOLLOWED if kind.setting == setting for right in upper(kind))
    for setting in _SETTINGS
}
"""Needed in the upper cluster, in addition to ``daemon.UPPER``, for each kind in ``clusters[].follow``."""
INSPECTION: dict[str, tuple[Right, ...]] = {
    setting: tuple(
        Right(kind.resource.group, kind.resource.plural, ("list",), f"find {_purpose(kind)} that are left")
        for kind in FOLLOWED
        if kind.setting == setting
    )
    for setting in _SETTINGS
}
"""Needed in the upper cluster by the scheduled ``virtual-node inspect``, in addition to ``operator.INSPECTION``, for each
kind in ``clusters[].follow``."""
LOWER: dict[str, tuple[Right, ...]] = {
    setting: tuple(lower(kind) for kind in FOLLOWED if kind.setting == setting) for setting in _SETTINGS
}
"""Needed in a lower cluster, in addition to ``daemon.LOWER``, for each kind in its ``follow``."""
