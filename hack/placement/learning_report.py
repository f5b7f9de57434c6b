"""Tables of the evaluation of the learned agent. No IO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hack.docs.markdown import table
from hack.placement.learning import POLICIES, SCENARIOS

Record = Mapping[str, Any]


def estimates(found: Sequence[Record]) -> str:
    """Return a table of true, IPS and DR rewards, by scenario and policy."""
    rows = []
    for scenario in SCENARIOS:
        runs = [one["policies"] for one in found if one["scenario"] == scenario]
        for policy in POLICIES:
            ones = [run[policy] for run in runs]
            true = f"{_mean([one['true'] for one in ones]):.3f}"
            named = _NAMES.get(policy, policy)
            rows.append((scenario, named, true, _estimate(ones, "ips"), _estimate(ones, "dr")))
        online = _mean([run["online"]["true"] for run in runs])
        rows.append((scenario, "learned, as it chose", f"{online:.3f}", "–", "–"))
    return table(("clusters", "policy", "true", "IPS", "DR"), rows)


_NAMES = {"learned": "learned, model of the first half"}
_PARTS = {
    "before the change": "before three clusters are replaced",
    "the 300 decisions after it": "the 300 decisions after that",
}


def parts(found: Sequence[Record]) -> str:
    """Return a table of rewards in parts of the second half: the agent's, and that of always choosing the emptiest cluster."""
    rows = []
    for scenario in SCENARIOS:
        runs = [one["segments"] for one in found if one["scenario"] == scenario]
        for name in runs[0] if runs else ():
            pairs = [run[name] for run in runs]
            lost = sum(own < other for own, other in pairs)
            means = (f"{_mean([pair[place] for pair in pairs]):.3f}" for place in (0, 1))
            rows.append((scenario, _PARTS.get(name, name), *means, f"{lost} of {len(pairs)}"))
    heads = ("clusters", "decisions", "learned", "least-allocated", "seeds in which learned was worse")
    return table(heads, rows)


def _estimate(ones: Sequence[Record], kind: str) -> str:
    mean = _mean([one[kind][0] for one in ones])
    half = _mean([(one[kind][2] - one[kind][1]) / 2 for one in ones])
    covered = sum(one[kind][1] <= one["true"] <= one[kind][2] for one in ones)
    return f"{mean:.3f} ± {half:.3f}, {covered} of {len(ones)}"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(1, len(values))
