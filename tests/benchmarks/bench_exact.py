"""Promises of room on real control planes: pods promised twice, and pods that wait although they fit.

``python -m tests.benchmarks.bench_exact``: an upper cluster and three lower ones with stock schedulers. Bursts of pods with
random sizes, constraints and groups request a third more than the lower nodes have. The same pods are scheduled by the
multi-scheduler in three configurations, by kube-scheduler alone, and by an extender with tensile-kube's rule. Then follow
scenes with one right outcome, and a lower cluster with 150 nodes, of which its scheduler looks at a sample only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.exact import pods, scenes
from tests.benchmarks.exact.bursts import Outcome, Player
from tests.benchmarks.exact.ground import ground, set_nodes
from tests.benchmarks.exact.variants import VARIANTS, scheduling
from tests.benchmarks.stage import Stage, progress
from tests.benchmarks.tables import condition

PODS, OVERFILL, GROUP_ROUNDS, DEMO_ROUNDS, MANY_NODES, MANY_BURSTS, SEED = 1000, 4 / 3, 20, 45, 150, 3, 42
DEFAULT = "a"


async def measure(
    *,
    quick: bool,
    seed: int,
    letters: Sequence[str] = tuple(VARIANTS),
    count: int | None = None,
    group_rounds: int | None = None,
    demo_rounds: int | None = None,
    many_bursts: int | None = None,
    stories: Path | None = None,
    directory: Path | None = None,
) -> dict[str, Any]:
    """Return the figures of all variants and scenes.

    Args:
        quick: small sizes for the arguments that are None.
        seed: determines the pods.
        letters: keys of ``VARIANTS``.
        count: least number of pods of each variant.
        group_rounds: rounds of the groups' scene.
        demo_rounds: bursts of the demo's scene.
        many_bursts: bursts in the cluster with many nodes.
        stories: directory for the stories of bursts that break a goal.
        directory: for the clusters' logs, which stay; None: a temporary one.
    """
    count, group_rounds, demo_rounds, many_bursts = (
        (small if quick else usual) if given is None else given
        for given, usual, small in (
            (count, PODS, 100),
            (group_rounds, GROUP_ROUNDS, 2),
            (demo_rounds, DEMO_ROUNDS, 2),
            (many_bursts, MANY_BURSTS, 1),
        )
    )
    bursts = pods.bursts(seed, pods=count, overfill=OVERFILL)
    async with ground(directory=directory) as (at, player):
        player.stories = stories
        await set_nodes(
            at,
            {cluster: pods.nodes(cluster) for cluster in pods.CORES},
            [pod for cluster in pods.CORES for pod in pods.natives(cluster)],
        )
        variants = [await _variant(at, player, letter, bursts) for letter in letters]
        async with scheduling(at.sandbox, VARIANTS[DEFAULT]):
            player.asks_lower_schedulers = False
            groups = await scenes.groups(at, player, rounds=group_rounds) if group_rounds else {}
            demo = await scenes.demo(at, player, rounds=demo_rounds) if demo_rounds else {}
            many = (
                await scenes.many_nodes(at, player, nodes=MANY_NODES, bursts=many_bursts, seed=seed)
                if many_bursts
                else {}
            )
    figures = {"bursts": len(bursts), "variants": variants, "groups": groups, "demo": demo, "manyNodes": many}
    return {**figures, "targets": _targets(figures)}


async def _variant(
    at: Stage, player: Player, letter: str, bursts: Sequence[Sequence[pods.Wanted]]
) -> dict[str, Any]:
    variant = VARIANTS[letter]
    progress(f"variant {letter}: {variant.name}")
    sums = Outcome()
    async with scheduling(at.sandbox, variant):
        for burst in bursts:
            sums += await player.play(burst, letter)
    return {"variant": variant.name, **sums.figures()}


def _targets(figures: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the goals of the default configuration."""
    rows = []
    for found in figures["variants"]:
        if found["variant"] == VARIANTS[DEFAULT].name:
            rows += [
                _zero("pods promised twice", found["promisedTwice"]),
                _zero("pods that wait although they fit", found["waitingAlthoughFit"]),
                _zero(
                    "waiting pods that a lower scheduler places when it is asked", found["lowerSchedulerPlaces"]
                ),
                _zero("groups with more than no and less than their minimum of bound pods", found["partialGroups"]),
            ]  # fmt: skip
    for name, what in (("groups", "rounds with a group of 8 and 4 single pods"), ("demo", "bursts with 2 of 3 large pods bound")):  # fmt: skip
        if found := figures[name]:
            right, rounds = found["right"], found["rounds"]
            rows.append(condition(what, f"{rounds}", f"{right}", is_met=right == rounds))
    if found := figures["manyNodes"]:
        rows.append(_zero(f"pods promised twice with {found['nodes']} nodes", found["promisedTwice"]))
    return rows


def _zero(what: str, count: int) -> dict[str, Any]:
    return condition(what, "0", f"{count}", is_met=count == 0)


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--variants", default="".join(VARIANTS), help=f"letters; default: {''.join(VARIANTS)}"
    )
    parser.add_argument("--pods", type=int, default=PODS, help="least number of pods of each variant")
    parser.add_argument("--group-rounds", type=int, default=GROUP_ROUNDS)
    parser.add_argument("--demo-rounds", type=int, default=DEMO_ROUNDS)
    parser.add_argument("--many-bursts", type=int, default=MANY_BURSTS)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--stories", type=Path, help="directory for the stories of bursts that break a goal")
    parser.add_argument("--directory", type=Path, help="directory for the clusters' logs")
    given = parser.parse_args()
    figures = asyncio.run(
        measure(
            quick=False,
            seed=given.seed,
            letters=given.variants,
            count=given.pods,
            group_rounds=given.group_rounds,
            demo_rounds=given.demo_rounds,
            many_bursts=given.many_bursts,
            stories=given.stories,
            directory=given.directory,
        )
    )
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
