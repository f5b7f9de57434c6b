"""Settings of the fit agent."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from multi_scheduler.fit.cluster.scoring import Lower, Strategy


class FitSettings(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """The agent's configuration."""

    score: Strategy = "BestFit"
    """BestFit: prefer the cluster where the pod leaves the least free, which keeps large gaps. Spread: the emptiest cluster.
    BinPack: the fullest."""
    unreachable: Literal["Reject", "Pass"] = "Reject"
    """Whether virtual nodes of an unreachable lower cluster are rejected or pass."""
    admission: Literal["Reject", "Pass"] = "Reject"
    """Whether virtual nodes are rejected or pass if the lower cluster's quotas or limit ranges would refuse the pod. Pass: for
    clusters with webhooks that add what quotas and limit ranges require."""
    pass_node: bool | Literal["Prefer"] = msgspec.field(default=True, name="passNode")
    """Annotate the pod with the lower node that has reserved room. true: the lower pod requires this node as long as it fits
    there. Prefer: it prefers the node. false: the lower scheduler chooses freely. Only with true, pods of different sizes always
    find the room that they were promised. Only with ``--bind``."""
    lower: Lower = "LeastAllocated"
    """How the lower clusters' schedulers choose among nodes with room: LeastAllocated, kube-scheduler's default, or
    MostAllocated with the divisible devices among its resources."""
    devices: dict[str, Annotated[int, msgspec.Meta(ge=1)]] = {}
    """Units of one device, by resource, such as ``koordinator.sh/gpu-core: 100``. A request below this number takes a share
    of one device, and a larger one takes whole devices. A pod then fits only if one node has these free."""
