"""``virtual-node cleanup``: removes an installation from all clusters. ``helm uninstall`` runs it.

The order of steps avoids losses. First the webhook is unregistered and virtual nodes are cordoned. The pods on
these nodes are deleted while the daemon still runs, so that each lower pod gets its grace period. Then the
daemons are stopped. Last, objects with our labels are removed from the lower clusters, and the nodes from the
upper cluster. Claims that still exist in the upper cluster keep their data in the lower cluster, which is
reported.

A lower cluster that does not answer does not stop the cleanup; what may be left there is reported. A rejected
configuration does not stop the Helm hook, which uses the configuration's valid part.

``--dry-run`` runs the same steps without changes and prints to stdout what would be deleted or changed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import Callable, Sequence

from clusterset.config import Cluster
from controller_runtime import resources
from controller_runtime.client.client import Client
from controller_runtime.errors import ConfigError
from controller_runtime.process import terminal
from controller_runtime.process.argparser import Parser
from controller_runtime.process.flags import add_flag, add_switch, comma_list, duration
from virtual_node.commands.cleanup.dry_run import dry_run_client
from virtual_node.commands.cleanup.helm_hook import uninstalls
from virtual_node.commands.cleanup.lower import LowerCleanup
from virtual_node.commands.cleanup.upper import UpperCleanup
from virtual_node.commands.common import connect, output, profiles
from virtual_node.config import command_line, program
from virtual_node.config.command_line import DaemonSettings
from virtual_node.config.types import Config

_STOPPING = 45.0
"""Seconds to wait for our daemons to stop."""
_SHARE = 0.6
"""Share of the time limit for pods to terminate; the rest is for later steps."""
_ABOVE = 30.0
"""Timeout of one request in the upper cluster."""
_BELOW = 15.0
"""Minimum seconds for each lower cluster, whatever earlier steps took; also the timeout of one request there."""


def main(argv: Sequence[str]) -> int:
    """Run the command; return 0, even if a lower cluster could not be cleaned.

    Raises:
        ConfigError: flags or configuration are wrong, the Job of ``--as-hook`` is no hook, or the upper cluster fails;
            exit code 2.
    """
    flags = parser()
    own, rest = flags.parse_known_args(argv)
    if own.no_clusters:
        if rest:
            flags.error(f"unrecognized arguments, with --no-clusters: {' '.join(rest)}")
        config = Config(kubeconfig=own.kubeconfig)
    else:
        upper = [f"--kubeconfig={own.kubeconfig}"] if own.kubeconfig else []
        # A user can correct a rejected file and try again. The hook uses its valid parts, so that the release
        # can be uninstalled.
        daemon = command_line.PROGRAM.parser()
        daemon.prog, daemon.also_known = flags.prog, flags.flag_names()
        options = command_line.PROGRAM.parse(
            [*upper, *rest], parser=daemon, settings=DaemonSettings(accepts_rejected=own.as_hook)
        )
        config = options.config
        if options.rejected:
            output.note(
                f"configuration rejected: {options.rejected}; cleaning up with the parts that are valid"
            )
            if not config.clusters:
                output.note(
                    "it has no valid lower cluster, so virtual nodes and objects in lower clusters are left; run "
                    f"`{flags.prog} --config FILE` with a corrected file"
                )
    asyncio.run(_run(config, own))
    return 0


async def _run(config: Config, own: argparse.Namespace) -> None:
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            connect.by_file(
                config.kubeconfig,
                server=config.server,
                agent="virtual-node-cleanup",
                cluster="upper",
                timeout=_ABOVE,
                in_cluster=True,
            )
        )
        try:
            await stack.enter_async_context(profiles.added(config, client))
        except ConfigError as error:
            output.note(f"{error}; the lower clusters of ClusterProfiles are left")
        await _clean(dry_run_client(client, print_change) if own.dry_run else client, config, own)


async def _clean(client: Client, config: Config, own: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + own.timeout
    if own.as_hook:
        await uninstalls(client, own.namespace, own.selector)
    cluster_id = config.cluster_id
    if not cluster_id:
        cluster_id = str((await client.get(resources.NAMESPACES, "kube-system"))["metadata"]["uid"])
    nodes = [node.name for cluster in config.clusters for node in cluster.virtual_nodes()]
    clusters = [cluster.name for cluster in config.clusters]
    upper = UpperCleanup(client, nodes=nodes, clusters=clusters, say=_progress(own))
    # From here on, no new pod waits for our webhook or goes to a scheduler that is about to be removed.
    await upper.remove_webhook(own.webhook_configuration)
    await upper.cordon()
    await upper.delete_pods(deadline=loop.time() + own.timeout * _SHARE)
    if own.selector and own.namespace:
        await upper.stop_daemons(own.namespace, own.selector, seconds=0 if own.dry_run else _STOPPING)
    await upper.delete_waiting_pods(own.scheduler_name)
    claims = await upper.volumes.claims()
    deadline = max(deadline, loop.time() + _BELOW)
    cleaned = await asyncio.gather(
        *(_lower(cluster, cluster_id, claims, own, deadline=deadline) for cluster in config.clusters)
    )
    await upper.remove(
        namespace=own.namespace, leases=own.leases, secrets=own.secrets, elections=own.elections
    )
    await upper.volumes.release({name for name, is_clean in zip(clusters, cleaned, strict=True) if is_clean})


async def _lower(
    cluster: Cluster,
    cluster_id: str,
    claims: frozenset[str],
    own: argparse.Namespace,
    *,
    deadline: float,
) -> bool:
    """Clean one lower cluster; return whether no pod in it uses one of our volumes any more.

    A failure is reported and does not stop the cleanup of other clusters.
    """
    progress = _progress(own)
    names = [node.name for node in cluster.virtual_nodes()]
    try:
        if not cluster.kubeconfig:  # a rejected configuration may lack it; kubectl's default must not be used
            raise ConfigError("it has no kubeconfig")
        async with connect.by_file(
            cluster.kubeconfig,
            agent="virtual-node-cleanup",
            context=cluster.context,
            server=cluster.server,
            cluster=cluster.name,
            timeout=_BELOW,
        ) as client:
            cleanup = LowerCleanup(
                dry_run_client(client, print_change) if own.dry_run else client,
                cluster_id=cluster_id,
                nodes=names,
                namespaces=cluster.namespaces,
                upper_claims=claims,
                say=progress,
            )
            async with asyncio.timeout_at(deadline):
                return not await cleanup.run()
    except (ConfigError, TimeoutError) as error:
        why = str(error) or "not finished within the time limit"
        progress(
            f"{cluster.name}: not cleaned ({why}); what is left there carries the label "
            f"virtual-node.io/upper-cluster={cluster_id}"
        )
        return False


def print_change(line: str) -> None:
    """Print an object that ``--dry-run`` would delete or change to stdout, where programs can read it."""
    terminal.line(f"{line} (dry run)")


def _progress(own: argparse.Namespace) -> Callable[[str], None]:
    return (lambda line: output.note(f"{line} (dry run)")) if own.dry_run else output.note


def parser() -> Parser:
    """Return the command's parser."""
    own = Parser(
        program.name(),
        "cleanup",
        about="Remove an installation from all clusters: its pods are deleted gracefully, then all objects "
        "with its labels, in lower clusters and in the upper cluster. helm uninstall runs it. It does not "
        "ask for confirmation and cannot be undone (see --dry-run). Claims that exist in the upper cluster "
        "keep their data in the lower cluster.",
        examples=(
            ("What would be deleted, and what would be kept", "cleanup --config clusters.yaml --dry-run"),
            (
                "The objects of a configuration whose daemon was started by hand",
                "cleanup --config clusters.yaml",
            ),
            (
                "With the Deployments of its components",
                "cleanup --config clusters.yaml --namespace virtual-node-system --selector app.kubernetes.io/instance=vn",
            ),
        ),
        notes="Takes the daemon's flags, too: --config, or --client-kubeconfig and --nodename. A lower "
        "cluster that does not answer is skipped; what may be left there is printed.",
        exit_codes="0 all that can be removed is removed, 2 usage, or missing rights in the upper cluster",
    )
    add_switch(own, "--dry-run", "change nothing in any cluster, and print what would be deleted and changed")
    add_flag(own, "--namespace NS", "namespace of the components (none: started by hand)")
    add_flag(own, "--selector SELECTOR", "label selector of their Deployments, which are stopped")
    add_switch(
        own,
        "--as-hook",
        "do nothing unless Helm or Argo CD installed what --selector finds, because other tools run "
        "hooks at any time",
    )
    add_flag(own, "--kubeconfig FILE", "upper cluster's")
    add_switch(own, "--no-clusters", "there are no lower clusters: no --config, no --client-kubeconfig")
    add_flag(own, "--webhook-configuration NAME", "name of the webhook configurations to remove first")
    add_flag(
        own,
        "--scheduler-name NAME",
        "scheduler that is removed, too: labelled pods that wait for it are deleted, so that their "
        "controllers create them again",
    )
    for flag, what in (
        ("--leases LIST", "Leases in --namespace to remove"),
        ("--elections LIST", "elections of mode Sharded, whose Leases in --namespace to remove"),
        ("--secrets LIST", "Secrets in --namespace to remove"),
    ):
        add_flag(own, flag, what, type=comma_list, default=[])
    add_flag(own, "--timeout D", "time limit of the whole command (5m)", type=duration, default=300.0)
    return own
