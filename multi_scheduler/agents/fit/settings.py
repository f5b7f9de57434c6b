"""Settings of the fit agent."""

from __future__ import annotations

from typing import Literal

import msgspec

from multi_scheduler.state.cluster.scoring import Strategy
from multi_scheduler.state.judge import StateSettings


class FitSettings(StateSettings, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """The agent's configuration."""

    score: Strategy = "BestFit"
    """BestFit: prefer the cluster where the pod leaves the least free, which keeps large gaps. Spread: the emptiest cluster.
    BinPack: the fullest."""
    pass_node: bool | Literal["Prefer"] = msgspec.field(default=True, name="passNode")
    """Annotate the pod with the lower node that has reserved room. true: the lower pod requires this node as long as it fits
    there. Prefer: it prefers the node. false: the lower scheduler chooses freely. Only with true, pods of different sizes always
    find the room that they were promised. Only with ``--bind``."""
