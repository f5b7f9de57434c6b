"""Settings of the state of the lower clusters. They are part of the fit agent's configuration."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from multi_scheduler.state.cluster.scoring import Lower


class StateSettings(msgspec.Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """How lower clusters are judged."""

    unreachable: Literal["Reject", "Pass"] = "Reject"
    """Whether virtual nodes of an unreachable lower cluster are rejected or pass."""
    admission: Literal["Reject", "Pass"] = "Reject"
    """Whether virtual nodes are rejected or pass if the lower cluster's quotas or limit ranges would refuse the pod. Pass: for
    clusters with webhooks that add what quotas and limit ranges require."""
    lower: Lower = "LeastAllocated"
    """How the lower clusters' schedulers choose among nodes with room: LeastAllocated, kube-scheduler's default, or
    MostAllocated with the divisible devices among its resources."""
    devices: dict[str, Annotated[int, msgspec.Meta(ge=1)]] = {}
    """Units of one device, by resource, such as ``koordinator.sh/gpu-core: 100``. A request below this number takes a share
    of one device, and a larger one takes whole devices. A pod then fits only if one node has these free."""
