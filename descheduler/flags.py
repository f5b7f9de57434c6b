"""Combines the command line and the policy file into options."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from controller_runtime.api import matching
from controller_runtime.errors import ConfigError
from controller_runtime.leaderelection.flags import lease_times
from controller_runtime.process.flags import comma_list, options, positive, take_klog
from descheduler.command_line import parser
from descheduler.config import policy as policies
from descheduler.config.move_limits import Limits
from descheduler.config.options import EvictionOptions, Options
from descheduler.config.policy import Policy, StrategyConfig
from descheduler.strategies import registry
from descheduler.strategies.drain import Drain
from descheduler.view.unschedulable import FAILURES

_STRATEGY_FLAGS = (
    "unschedulable_threshold",
    "include_failures",
    "move_off_lost_clusters",
    "stale_after",
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
    if all(strategy.name != Drain.name for strategy in strategies):  # administrators need it with any policy
        strategies = (*strategies, StrategyConfig(Drain.name, {}, Drain.name))
    for strategy in strategies:
        policies.convert(strategy.params, found[strategy.name].params_type, where=strategy.where)
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
