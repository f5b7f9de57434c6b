"""Small scenes with one right outcome: a group beside single pods, and three pods for two nodes."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from clusterset.model import names
from hack.sandbox.nodes.kwok import kwok_node
from tests.benchmarks.exact.bursts import Outcome, Player
from tests.benchmarks.exact.ground import set_nodes
from tests.benchmarks.exact.pods import Wanted
from tests.benchmarks.stage import Stage, progress

_QUIET = 2.0
_MEMBERS, _PLACES = 8, 12
_LARGE_NODES = 10
_ON_FIRST = {"nodeSelector": {names.LABEL_LOWER_CLUSTER: "lower1"}}


async def groups(at: Stage, player: Player, *, rounds: int) -> dict[str, Any]:
    """Return how many rounds ended with all pods of a group and as many single pods as the other places.

    In even rounds all places are in one lower cluster. In odd rounds a cluster has places for exactly the group, and
    another one has the others. The group's pods are created first.
    """
    nodes = {
        "lower1": [kwok_node(f"lower1-{number}", cpu="4") for number in range(3)],
        "lower2": [kwok_node(f"lower2-{number}", cpu="4") for number in range(2)],
        "lower3": [kwok_node("lower3-0", cpu="4")],
    }
    await set_nodes(at, nodes)
    right, sums, ends = 0, Outcome(), []
    for number in range(rounds):
        spec = _ON_FIRST if number % 2 == 0 else _elsewhere("lower1")
        members = [
            Wanted(f"member-{one}", 1000, 64, spec=spec, group=f"group-{number}", minimum=_MEMBERS)
            for one in range(_MEMBERS)
        ]
        singles = [Wanted(f"single-{one}", 1000, 64, spec=spec) for one in range(_MEMBERS)]
        outcome = await player.play([*members, *singles], f"g{number}", quiet=_QUIET, clients=1)
        end = [sum(kind in name for name in outcome.bound_names) for kind in ("member", "single")]
        ends.append(end)
        right += end == [_MEMBERS, _PLACES - _MEMBERS]
        sums += outcome
    progress(f"groups: {right} of {rounds} rounds ended with {_MEMBERS} and {_PLACES - _MEMBERS}: {ends}")
    return {"rounds": rounds, "right": right, "ends": ends, **sums.figures()}


async def demo(at: Stage, player: Player, *, rounds: int) -> dict[str, Any]:
    """Return in how many bursts of three pods of 40 cores, on two nodes of 64 cores, exactly two were bound."""
    await set_nodes(at, {"lower1": [kwok_node(f"lower1-{number}", cpu="64") for number in range(2)]})
    right, sums = 0, Outcome()
    for number in range(rounds):
        pods = [Wanted(f"large-{one}", 40_000, 64, spec=_ON_FIRST) for one in range(3)]
        outcome = await player.play(pods, f"d{number}", quiet=_QUIET)
        right += outcome.bound == 2 and not outcome.promised_twice
        sums += outcome
    return {"rounds": rounds, "right": right, **sums.figures()}


async def many_nodes(at: Stage, player: Player, *, nodes: int, bursts: int, seed: int) -> dict[str, Any]:
    """Return the counts of bursts in a lower cluster with so many nodes, of which the scheduler looks at a sample.

    A few nodes are large. More large pods are created than these nodes have room for, among small pods that every node
    can take, so a small pod that ignores its preferred node can take the room that a large one was promised.
    """
    small = [
        kwok_node(f"lower1-{number}", cpu="2", memory="8Gi", pods=60)
        for number in range(nodes - _LARGE_NODES)
    ]
    large = [
        kwok_node(f"lower1-large-{number}", cpu="12", memory="48Gi", pods=60)
        for number in range(_LARGE_NODES)
    ]
    await set_nodes(at, {"lower1": [*small, *large]})
    random, sums = Random(seed), Outcome()
    for number in range(bursts):
        outcome = await player.play(_large_among_small(random), f"m{number}")
        sums += outcome
    return {"nodes": nodes, "bursts": bursts, **sums.figures()}


def _large_among_small(random: Random) -> Sequence[Wanted]:
    sizes = [random.choice((8000, 10_000, 12_000)) for _ in range(_LARGE_NODES + 4)]
    sizes += [random.choice((250, 500, 1000, 2000)) for _ in range(120)]
    random.shuffle(sizes)
    return [Wanted(f"p{number}", cpu, cpu, spec=_ON_FIRST) for number, cpu in enumerate(sizes)]


def _elsewhere(cluster: str) -> dict[str, Any]:
    """Return an affinity to the virtual nodes of the other lower clusters."""
    terms = [
        {"matchExpressions": [{"key": names.LABEL_LOWER_CLUSTER, "operator": "NotIn", "values": [cluster]}]}
    ]
    required = {"nodeSelectorTerms": terms}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}
