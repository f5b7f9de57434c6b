"""Tables of the evaluation of the learned agent. No IO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hack.placement.learning import POLICIES, SCENARIOS

Record = Mapping[str, Any]


def estimates(found: Sequence[Record]) -> str:
    """Return a table of true values and both estimates, by scenario and policy."""
    lines = ["| clusters | policy | true | IPS | DR |", "|---|---|---|---|---|"]
    for scenario in SCENARIOS:
        runs = [one["policies"] for one in found if one["scenario"] == scenario]
        for policy in POLICIES:
            ones = [run[policy] for run in runs]
            lines.append(
                f"| {scenario} | {_NAMES.get(policy, policy)} | {_mean([one['true'] for one in ones]):.3f} | "
                f"{_estimate(ones, 'ips')} | {_estimate(ones, 'dr')} |"
            )
        online = _mean([run["online"]["true"] for run in runs])
        lines.append(f"| {scenario} | learned, as it chose | {online:.3f} | – | – |")
    return "\n".join(lines)


_NAMES = {"learned": "learned, model of the first half"}
_PARTS = {
    "before the change": "before three clusters are replaced",
    "the 300 decisions after it": "the 300 decisions after that",
}


def parts(found: Sequence[Record]) -> str:
    """Return a table of rewards in parts of the second half: the agent's, and that of always choosing the emptiest cluster."""
    lines = [
        "| clusters | decisions | learned | least-allocated | seeds in which learned was worse |",
        "|---|---|---|---|---|",
    ]
    for scenario in SCENARIOS:
        runs = [one["segments"] for one in found if one["scenario"] == scenario]
        for name in runs[0] if runs else ():
            pairs = [run[name] for run in runs]
            lost = sum(own < other for own, other in pairs)
            own, other = (_mean([pair[place] for pair in pairs]) for place in (0, 1))
            lines.append(
                f"| {scenario} | {_PARTS.get(name, name)} | {own:.3f} | {other:.3f} | {lost} of {len(pairs)} |"
            )
    return "\n".join(lines)


def _estimate(ones: Sequence[Record], kind: str) -> str:
    mean = _mean([one[kind][0] for one in ones])
    half = _mean([(one[kind][2] - one[kind][1]) / 2 for one in ones])
    covered = sum(one[kind][1] <= one["true"] <= one[kind][2] for one in ones)
    return f"{mean:.3f} ± {half:.3f}, {covered} of {len(ones)}"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(1, len(values))
