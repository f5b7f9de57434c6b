"""The annotator's command line."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controller_runtime.errors import ConfigError
from controller_runtime.leaderelection.flags import LeaseTimes, add_election_flags, lease_times
from controller_runtime.process import flags
from controller_runtime.process.argparser import Parser
from multi_scheduler.process.options import ProcessOptions, add_config_flags, process_options

PROGRAM = "virtual-node-annotator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(ProcessOptions):
    """A parsed command line."""

    lower_nodes: bool
    """Annotate lower nodes as well."""
    interval: float
    """Seconds between two comparisons of all nodes."""
    refresh: float
    """Seconds after which unchanged annotations are written again, so that readers can judge their age."""
    threshold: float
    """Relative change of a value that causes a write."""
    namespace: str
    """Namespace of the Lease."""
    leader_elect: bool
    lease: LeaseTimes


def parse(argv: Sequence[str], environment: Mapping[str, str] | None = None) -> Options:
    """Parse a command line and the configuration file.

    Raises:
        ConfigError: a value or the configuration file is wrong.
        SystemExit: raised by argparse for unknown flags and ``--help``.
    """
    rest, klog = flags.take_klog(argv)
    given = parser(os.environ if environment is None else environment).parse_args(rest)
    if not 0 <= given.threshold <= 100:
        raise ConfigError(f"--threshold: {given.threshold:g} is not between 0 and 100 percent")
    return flags.options(
        Options,
        given,
        **process_options(given, klog),
        interval=flags.positive("--interval", given.interval),
        refresh=flags.positive("--refresh", given.refresh),
        threshold=given.threshold / 100,
        lease=lease_times(given),
    )


def parser(environment: Mapping[str, str]) -> Parser:
    """Return the program's parser; ``POD_NAMESPACE`` in the environment sets the default of ``--namespace``."""
    whole = Parser(
        PROGRAM,
        about="Writes the usage and the free resources of lower nodes as annotations to virtual nodes, and to lower "
        "nodes if it may. The keys are those of kube-safe-scheduler's annotators.",
        examples=[
            ("Annotate virtual nodes", "--kubeconfig upper.yaml --config clusters.yaml"),
            ("Annotate lower nodes, too", "--kubeconfig upper.yaml --config clusters.yaml --lower-nodes"),
        ],
    )
    add_config_flags(whole)
    flags.add_boolean(
        whole,
        "--lower-nodes",
        default=False,
        help_text="annotate lower nodes, too; needs the right patch on nodes in lower clusters (false)",
    )
    flags.add_duration(whole, "--interval", 60.0, "time between two comparisons of all nodes (1m)")
    flags.add_duration(
        whole,
        "--refresh",
        300.0,
        "time after which unchanged values are written again, so that readers can judge their age (5m)",
    )
    flags.add_flag(
        whole,
        "--threshold PERCENT",
        "change of a value, in percent of the written one, that is written before --refresh (5)",
        type=float,
        default=5.0,
    )
    process = whole.add_argument_group("process")
    flags.add_flag(
        process,
        "--namespace NS",
        "namespace of the Lease ($POD_NAMESPACE, kube-system)",
        default=environment.get("POD_NAMESPACE", "") or "kube-system",
    )
    add_election_flags(process)
    flags.add_health_address(process)
    flags.add_log_flags(process)
    return whole
