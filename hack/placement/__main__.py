"""``python -m hack.placement trace|risk|learning|plots``: evaluates placement and draws the plots of the documentation."""

from __future__ import annotations

import argparse
from pathlib import Path

from hack.placement import campaign, report
from hack.placement.records import RESULTS
from hack.placement.trace import DIRECTORY


def main() -> None:
    """Run a part of the evaluation."""
    parser = argparse.ArgumentParser(prog="hack.placement", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    trace = commands.add_parser("trace", help="simulate the arrivals of a trace")
    trace.add_argument("--tasks", type=Path, default=DIRECTORY / "openb_pod_list_default.csv")
    trace.add_argument("--nodes", type=Path, default=DIRECTORY / "openb_node_list_gpu_node.csv")
    trace.add_argument("--out", type=Path, default=RESULTS / "default.jsonl")
    trace.add_argument("--seeds", type=int, default=10)
    trace.add_argument("--workers", type=int, default=1)
    trace.add_argument(
        "--clusters", type=int, choices=(1, campaign.CLUSTERS), help="number of clusters; default: both"
    )
    trace.add_argument("policies", nargs="*", help="all, if none is named")
    for name, text in (("risk", "simulate usage and overload"), ("learning", "evaluate the learned agent")):
        other = commands.add_parser(name, help=text)
        other.add_argument("--out", type=Path, default=RESULTS / f"{name}.jsonl")
        other.add_argument("--seeds", type=int, default=10)
        other.add_argument("--workers", type=int, default=1)
    commands.add_parser("plots", help="draw the plots of the documentation, and print its tables")
    arguments = parser.parse_args()
    if arguments.command == "trace":
        campaign.run_trace(
            arguments.tasks,
            arguments.nodes,
            arguments.out,
            seeds=arguments.seeds,
            clusters=arguments.clusters,
            policies=arguments.policies,
            workers=arguments.workers,
        )
    elif arguments.command == "risk":
        campaign.run_risk(arguments.out, seeds=arguments.seeds, workers=arguments.workers)
    elif arguments.command == "learning":
        campaign.run_learning(arguments.out, seeds=arguments.seeds, workers=arguments.workers)
    else:
        report.write()


if __name__ == "__main__":
    main()
