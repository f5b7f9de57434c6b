"""The containers of a lower pod that users of its upper pod may name in ``exec``, ``attach`` and ``logs``. No IO.

Names of containers that the lower cluster has added appear in events. Users of the upper pod can add a debug container of such
a name to it, which the lower API server does not accept a second time, and would reach a container that is not theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clusterset.model.policy.decision import violations
from clusterset.model.policy.findings import DEBUG_CONTAINERS
from clusterset.model.policy.rules import Effective

_DEBUG = "ephemeralContainers"
_KINDS = ("containers", "initContainers", _DEBUG)


def reachable(above: Mapping[str, Any], below: Mapping[str, Any], rules: Effective) -> frozenset[str]:
    """Return the names of an upper pod's containers, without those under which the lower pod has another container.

    That is a container of another kind, or a debug container with rights that the policy does not allow in the upper pod. An
    administrator of the lower cluster has added it.

    Args:
        above: the upper pod's spec.
        below: the lower pod's spec.
        rules: the policy for the upper namespace.
    """
    kinds = {container["name"]: kind for kind in _KINDS for container in below.get(kind) or ()}
    found = {
        container["name"]
        for kind in _KINDS
        for container in above.get(kind) or ()
        if kinds.get(container["name"], kind) == kind
    }
    debugging = [container for container in below.get(_DEBUG) or () if container["name"] in found]
    if debugging:
        spec = {"securityContext": below.get("securityContext"), _DEBUG: debugging}
        refused = violations({"metadata": {}, "spec": spec}, rules)
        # Overrides may choose images that users must not choose.
        fields = [one.field for one in refused if one.rule != "images"]
        found -= {field.removeprefix(DEBUG_CONTAINERS).partition("]")[0] for field in fields}
    return frozenset(found)
