"""Settings of the fit agent."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from multi_scheduler.fit.cluster.scoring import Lower, Strategy


class FitSettings(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """The agent's configuration."""

    score: Strategy = "BestFit"
    """BestFit: where the pod leaves the least behind, so that large holes stay whole. Spread: the emptiest cluster.
    BinPack: the fullest."""
    unreachable: Literal["Reject", "Pass"] = "Reject"
    """What becomes of the virtual nodes of a lower cluster that cannot be looked into."""
    admission: Literal["Reject", "Pass"] = "Reject"
    """What becomes of those of a cluster whose quotas or limit ranges would refuse the pod as it is. Pass: its webhooks
    give pods what these demand."""
    lower: Lower = "LeastAllocated"
    """How the lower clusters' schedulers choose among nodes with room: kube-scheduler's default, or MostAllocated with the
    divisible devices among its resources."""
    devices: dict[str, Annotated[int, msgspec.Meta(ge=1)]] = {}
    """Units of one device, by resource of which pods take a share of one device or whole devices, such as
    ``koordinator.sh/gpu-core: 100``. A pod then fits only where one device has room for its share."""
