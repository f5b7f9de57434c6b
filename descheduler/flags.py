"""The command line: the flags of tensile-kube under the same names, and additional flags. A policy file adds options."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

from controller_runtime.apimachinery import matching
from controller_runtime.errors import ConfigError
from controller_runtime.leaderelection.flags import add_election_flags, lease_times
from controller_runtime.process.argparser import Parser
from controller_runtime.process.flags import (
    add_boolean,
    add_duration,
    add_flag,
    add_health_address,
    add_log_flags,
    add_rate_flags,
    add_upper_flags,
    comma_list,
    options,
    positive,
    take_klog,
)
from descheduler.config import policy as policies
from descheduler.config.options import EvictionOptions, Limits, Options
from descheduler.config.policy import Policy, StrategyConfig
from descheduler.strategies import registry
from descheduler.strategies.drain import Drain
from descheduler.view.unschedulable import FAILURES

PROGRAM = "virtual-node-descheduler"
_STRATEGY_FLAGS = (
    "unschedulable_threshold",
    "include_failures",
    "move_off_lost_clusters",
    "stale_after",
    "move_running_after",
    "heal_after",
    "stale_pods_per_second",
)


def parse(arguments: Sequence[str]) -> Options:
    """Return the options of a command line and of the policy file that it names.

    Raises:
        ConfigError: a value is invalid; the message names the flag, or the file and the field.
        SystemExit: ``--help`` or an unknown flag.
    """
    rest, klog = take_klog(arguments)
    given = parser().parse_args(rest)
    found = registry.strategies()
    policy = Policy()
    if given.policy_config_file:
        policy = policies.load(given.policy_config_file, known=registry.known_names(found))
    strategies = policy.strategies if given.policy_config_file else _by_flags(given)
    if all(strategy.name != Drain.name for strategy in strategies):  # a drain works with any policy
        strategies = (*strategies, StrategyConfig(Drain.name, {}, Drain.name))
    strategies = tuple(
        replace(one, params=policies.convert(one.params, found[one.name].params_type, where=one.where))
        for one in strategies
    )
    node_selector = given.node_selector or policy.node_selector or ""
    try:
        matching.parse_selector(node_selector)
    except ValueError as error:
        raise ConfigError(f"--node-selector: {error}") from None
    return options(
        Options,
        given,
        strategies=strategies,
        eviction=_eviction(given, policy),
        node_selector=node_selector,
        interval=given.descheduling_interval,
        freeze_period=positive("--freeze-period", given.freeze_period),
        qps=given.kube_api_qps,
        burst=given.kube_api_burst,
        # A dry run takes no part in leader election, because it must not write a Lease. Its replicas cannot
        # conflict, because they write nothing.
        leader_elect=given.leader_elect and not given.dry_run,
        lease=lease_times(given),
        klog=klog,
        warnings=_warnings(given),
    )


def _warnings(given: argparse.Namespace) -> tuple[str, ...]:
    """Return a warning for each flag that has no effect because a policy file is given."""
    if not given.policy_config_file:
        return ()
    flags = parser()
    void = [name for name in _STRATEGY_FLAGS if getattr(given, name) != flags.get_default(name)]
    return tuple(
        f"--{name.replace('_', '-')} has no effect: --policy-config-file configures all strategies"
        for name in void
    )


def _by_flags(given: argparse.Namespace) -> tuple[StrategyConfig, ...]:
    """Return the strategies that run without a policy file."""
    failures = comma_list(given.include_failures)
    for failure in failures:
        if failure not in FAILURES:
            raise ConfigError(f"--include-failures: {failure!r}: write one of {', '.join(FAILURES)}")
    threshold = positive("--unschedulable-threshold", given.unschedulable_threshold)
    chosen = [
        StrategyConfig(
            "Unschedulable",
            {"thresholdSeconds": threshold, "failures": failures},
            "--unschedulable-threshold",
        )
    ]
    if given.move_off_lost_clusters:
        params = {
            "staleAfterSeconds": positive("--stale-after", given.stale_after),
            "moveRunningAfterSeconds": positive("--move-running-after", given.move_running_after),
            "healAfterSeconds": given.heal_after,
            "podsPerSecond": positive("--stale-pods-per-second", given.stale_pods_per_second),
        }
        chosen.append(StrategyConfig("StaleCluster", params, "--stale-after"))
    return tuple(chosen)


def _eviction(given: argparse.Namespace, policy: Policy) -> EvictionOptions:
    limits = Limits(
        backoff=given.backoff,
        backoff_maximum=max(given.backoff, Limits().backoff_maximum),
        rounds=given.max_deschedules,
        window=positive("--deschedule-window", given.deschedule_window),
    )
    local_storage = given.evict_local_storage_pods
    return EvictionOptions(
        dry_run=given.dry_run,
        local_storage=bool(policy.local_storage if local_storage is None else local_storage),
        system_critical=bool(policy.system_critical),
        ignore_pvc=bool(policy.ignore_pvc),
        max_per_node=_number(given.max_pods_to_evict_per_node, policy.max_per_node),
        max_per_namespace=policy.max_per_namespace or 0,
        max_total=policy.max_total or 0,
        make_before_break=given.make_before_break,
        wave=int(positive("--pods-per-wave", given.pods_per_wave)),
        pass_seconds=given.descheduling_interval or EvictionOptions().pass_seconds,
        limits=limits,
    )


def _number(flag: int | None, policy: int | None) -> int:
    value = flag if flag is not None else policy or 0
    if value < 0:
        raise ConfigError(f"--max-pods-to-evict-per-node: {value}: write a number of pods, 0 for no limit")
    return value


def parser() -> Parser:
    """Return the parser of all flags."""
    flags = Parser(
        PROGRAM,
        about="Moves pods that their lower cluster cannot start, and pods of lost clusters, to other ones.",
        examples=[
            ("Report the moves without moving pods", "--kubeconfig upper.yaml --dry-run"),
            (
                "Use a policy file of kubernetes-sigs/descheduler",
                "--policy-config-file policy.yaml",
            ),
        ],
    )
    cluster = flags.add_argument_group("upper cluster")
    add_upper_flags(cluster)
    add_rate_flags(cluster, qps=50.0, burst=100)
    add_flag(cluster, "--node-selector SELECTOR", "virtual nodes to deschedule from (all)")

    strategies = flags.add_argument_group("strategies")
    add_flag(
        strategies,
        "--policy-config-file FILE",
        "DeschedulerPolicy, v1alpha1 or v1alpha2; replaces the flags of strategies",
    )
    add_duration(
        strategies,
        "--descheduling-interval",
        0.0,
        "time between two passes of periodic strategies (0: only one pass, at start)",
    )
    add_duration(
        strategies,
        "--unschedulable-threshold",
        180.0,
        "how long a lower cluster may try to schedule a pod (3m)",
    )
    add_flag(
        strategies,
        "--include-failures LIST",
        "failures in a lower cluster that also count: image, quota, admission (none)",
    )
    add_boolean(
        strategies,
        "--move-off-lost-clusters",
        default=True,
        help_text="move pods off lost clusters (true)",
    )
    add_duration(
        strategies,
        "--stale-after",
        20.0,
        "time of NotReady or of a silent Lease after which a virtual node is lost (20s)",
    )
    add_duration(
        strategies,
        "--move-running-after",
        300.0,
        "time of this silence after which pods that may run are moved, if another virtual node has room (5m)",
    )
    add_duration(
        strategies,
        "--heal-after",
        30.0,
        "time a lost virtual node must be healthy before it is used again (30s)",
    )
    add_flag(
        strategies,
        "--stale-pods-per-second N",
        "moves per second off lost clusters (5)",
        type=float,
        default=5.0,
    )
    _add_moving(flags.add_argument_group("moving"))
    process = flags.add_argument_group("process")
    add_health_address(process)
    add_election_flags(process)
    add_log_flags(process)
    return flags


def _add_moving(group: argparse._ArgumentGroup) -> None:
    add_boolean(
        group, "--dry-run", default=False, help_text="move no pods; report planned moves in log and events"
    )
    add_flag(
        group,
        "--max-pods-to-evict-per-node N",
        "moves off a node per pass, or per minute without --descheduling-interval (0: no limit)",
        type=int,
        default=None,
    )
    add_boolean(
        group,
        "--make-before-break",
        default=True,
        help_text="evict a Ready pod of a Deployment only after its replacement is Ready (true)",
    )
    add_flag(
        group,
        "--pods-per-wave N",
        "pods whose replacements start at the same time (20)",
        type=int,
        default=20,
    )
    add_boolean(
        group,
        "--evict-local-storage-pods",
        default=None,  # type: ignore[arg-type] # None: the policy file decides
        help_text="also move pods with emptyDir or hostPath volumes",
    )
    add_flag(
        group,
        "--freeze-namespace NS",
        "namespace of the descheduler's ConfigMaps, its records of moves and their key (kube-system)",
        default="kube-system",
    )
    add_duration(
        group,
        "--freeze-period",
        300.0,
        "how long an owner's pods avoid a node that could not schedule them (5m)",
    )
    add_flag(
        group,
        "--max-deschedules N",
        "rounds of moves per owner, after which its pods stay (5; 0: no limit)",
        type=int,
        default=5,
    )
    add_duration(
        group,
        "--deschedule-window",
        7200.0,
        "time without a round after which an owner's rounds are forgotten (2h)",
    )
    add_duration(
        group, "--backoff", 60.0, "time between an owner's first and second round; doubles every round (1m)"
    )
