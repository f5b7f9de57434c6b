"""The command line: tensile-kube's flags, word for word, and ours beside them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

from controller_runtime.api import matching
from controller_runtime.errors import ConfigError
from controller_runtime.flags import add_boolean, add_log_flags, comma_list, duration, positive, take_klog
from descheduler import policy as policies
from descheduler.history import Limits
from descheduler.options import EvictionOptions, Options
from descheduler.policy import Policy, StrategyConfig
from descheduler.strategies import registry
from descheduler.stuck import FAILURES

PROGRAM = "virtual-node-descheduler"
_PASS = 60.0
_STRATEGY_FLAGS = (
    "unschedulable_threshold",
    "include_failures",
    "move_off_lost_clusters",
    "stale_after",
    "heal_after",
    "stale_pods_per_second",
)
_LEADER_FLAGS = ("leader_elect_lease_duration", "leader_elect_renew_deadline", "leader_elect_retry_period")


def parse(arguments: Sequence[str]) -> Options:
    """Read the command line and the policy file it names.

    Raises:
        ConfigError: names the flag, or the file and the field.
        SystemExit: ``--help``, or a flag that does not exist.
    """
    rest, verbosity = take_klog(list(arguments))
    given = parser().parse_args(rest)
    found = registry.strategies()
    policy = Policy()
    if given.policy_config_file:
        policy = policies.load(given.policy_config_file, known=registry.known_names(found))
    strategies = policy.strategies if given.policy_config_file else _by_flags(given)
    for strategy in strategies:
        policies.convert(strategy.params, found[strategy.name].params_type, where=strategy.where)
    node_selector = given.node_selector or policy.node_selector or ""
    try:
        matching.parse_selector(node_selector)
    except ValueError as error:
        raise ConfigError(f"--node-selector: {error}") from None
    return Options(
        strategies=strategies,
        eviction=_eviction(given, policy),
        kubeconfig=given.kubeconfig,
        server=given.master,
        node_selector=node_selector,
        interval=given.descheduling_interval,
        freeze_namespace=given.freeze_namespace,
        freeze_period=positive("--freeze-period", given.freeze_period),
        qps=given.kube_api_qps,
        burst=given.kube_api_burst,
        leader_elect=given.leader_elect,
        lease=_lease(given),
        health_address=given.health_addr,
        log_level=given.log_level,
        log_format=given.log_format,
        klog_verbosity=verbosity,
        warnings=_warnings(given),
    )


def _warnings(given: argparse.Namespace) -> tuple[str, ...]:
    """Flags that a policy file makes void."""
    if not given.policy_config_file:
        return ()
    flags = parser()
    void = [name for name in _STRATEGY_FLAGS if getattr(given, name) != flags.get_default(name)]
    return tuple(
        f"--{name.replace('_', '-')} has no effect: the policy file alone says which strategies run, and how"
        for name in void
    )


def _by_flags(given: argparse.Namespace) -> tuple[StrategyConfig, ...]:
    """The strategies that run without a policy file."""
    failures = comma_list(given.include_failures)
    for failure in failures:
        if failure not in FAILURES:
            raise ConfigError(f"--include-failures: {failure!r}: known are {', '.join(FAILURES)}")
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
    options = EvictionOptions(
        dry_run=given.dry_run,
        local_storage=_either(given.evict_local_storage_pods, policy.local_storage, default=False),
        system_critical=bool(policy.system_critical),
        ignore_pvc=bool(policy.ignore_pvc),
        max_per_node=_number(given.max_pods_to_evict_per_node, policy.max_per_node),
        max_per_namespace=policy.max_per_namespace or 0,
        max_total=policy.max_total or 0,
        limits=limits,
    )
    return replace(options, pass_seconds=given.descheduling_interval or _PASS)


def _either(flag: bool | None, policy: bool | None, *, default: bool) -> bool:  # noqa: FBT001 - three states each
    """A flag beats the policy, which beats the default."""
    for value in (flag, policy):
        if value is not None:
            return value
    return default


def _number(flag: int | None, policy: int | None) -> int:
    value = flag if flag is not None else policy or 0
    if value < 0:
        raise ConfigError(f"--max-pods-to-evict-per-node: {value}: write a number of pods, 0 for no limit")
    return value


def _lease(given: argparse.Namespace) -> dict[str, float | str]:
    duration_, deadline, period = (getattr(given, name) for name in _LEADER_FLAGS)
    if not duration_ > deadline > period * 1.2 > 0:
        raise ConfigError(
            "--leader-elect-lease-duration must be more than --leader-elect-renew-deadline, "
            "and that more than 1.2 × --leader-elect-retry-period"
        )
    return {"lease_duration": duration_, "renew_deadline": deadline, "retry_period": period}


def parser() -> argparse.ArgumentParser:
    """Every flag."""
    whole = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Moves pods that their lower cluster cannot start, and pods of lost clusters, to other ones.",
        allow_abbrev=False,
    )
    cluster = whole.add_argument_group("upper cluster")
    cluster.add_argument(
        "--kubeconfig",
        default="",
        metavar="FILE",
        help="kubeconfig ($KUBECONFIG, ~/.kube/config, in-cluster)",
    )
    cluster.add_argument("--master", default="", metavar="URL", help="overrides the kubeconfig's server")
    cluster.add_argument(
        "--kube-api-qps", type=float, default=50.0, metavar="N", help="requests per second (50)"
    )
    cluster.add_argument(
        "--kube-api-burst", type=int, default=100, metavar="N", help="requests at once (100)"
    )
    cluster.add_argument(
        "--node-selector", default="", metavar="SELECTOR", help="which virtual nodes to look after (all)"
    )

    what = whole.add_argument_group("strategies")
    what.add_argument(
        "--policy-config-file",
        default="",
        metavar="FILE",
        help="DeschedulerPolicy, v1alpha1 or v1alpha2; decides alone which strategies run",
    )
    what.add_argument(
        "--descheduling-interval",
        type=duration,
        default=0.0,
        metavar="D",
        help="between two passes of the periodic strategies (0: one pass at start)",
    )
    what.add_argument(
        "--unschedulable-threshold",
        type=duration,
        default=180.0,
        metavar="D",
        help="how long a lower cluster may try to schedule a pod (3m)",
    )
    what.add_argument(
        "--include-failures",
        default="",
        metavar="LIST",
        help="failures below that count, too: image, quota, admission (none)",
    )
    add_boolean(
        what,
        "--move-off-lost-clusters",
        default=True,
        help_text="move pods off clusters that are lost (true)",
    )
    what.add_argument(
        "--stale-after",
        type=duration,
        default=20.0,
        metavar="D",
        help="a virtual node NotReady or silent for longer is lost (20s)",
    )
    what.add_argument(
        "--heal-after",
        type=duration,
        default=30.0,
        metavar="D",
        help="a virtual node well for this long is used again (30s)",
    )
    what.add_argument(
        "--stale-pods-per-second",
        type=float,
        default=5.0,
        metavar="N",
        help="how fast pods leave a lost cluster (5)",
    )
    _add_moving(whole.add_argument_group("moving"))
    _add_process(whole.add_argument_group("process"))
    return whole


def _add_moving(group: argparse._ArgumentGroup) -> None:
    add_boolean(
        group, "--dry-run", default=False, help_text="only tell, in log and events, what would be done"
    )
    group.add_argument(
        "--max-pods-to-evict-per-node",
        type=int,
        default=None,
        metavar="N",
        help="per pass, or minute without --descheduling-interval (0: no limit)",
    )
    add_boolean(
        group,
        "--evict-local-storage-pods",
        default=None,  # type: ignore[arg-type] # None: the policy file decides
        help_text="pods with emptyDir or hostPath volumes may go, too",
    )
    group.add_argument(
        "--freeze-namespace",
        default="kube-system",
        metavar="NS",
        help="where the ConfigMaps are that remember avoided nodes (kube-system)",
    )
    group.add_argument(
        "--freeze-period",
        type=duration,
        default=300.0,
        metavar="D",
        help="how long an owner's pods avoid a node that could not schedule them (5m)",
    )
    group.add_argument(
        "--max-deschedules",
        type=int,
        default=5,
        metavar="N",
        help="rounds of moving per owner until it is given up (5; 0: never)",
    )
    group.add_argument(
        "--deschedule-window",
        type=duration,
        default=7200.0,
        metavar="D",
        help="time without a round after which an owner starts anew (2h)",
    )
    group.add_argument(
        "--backoff",
        type=duration,
        default=60.0,
        metavar="D",
        help="between an owner's first round and its second; doubles (1m)",
    )


def _add_process(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--health-addr",
        default="",
        metavar="HOST:PORT",
        help="serve /healthz, /readyz and /metrics there (off)",
    )
    add_boolean(group, "--leader-elect", default=True, help_text="only one of several replicas works (true)")
    for flag, default in zip(_LEADER_FLAGS, (15.0, 10.0, 2.0), strict=True):
        group.add_argument(
            f"--{flag.replace('_', '-')}", type=duration, default=default, metavar="D", help=f"({default:g}s)"
        )
    add_log_flags(group)
