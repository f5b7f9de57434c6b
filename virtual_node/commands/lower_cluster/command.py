"""``virtual-node lower-cluster register|manifest|join|leave|dns``: manages lower clusters and their accounts.

``register`` creates least-privilege accounts. It prints the Secrets with their kubeconfigs for the upper
cluster, or creates them there with ``--kubeconfig``. A repetition updates the rights and makes new tokens.
``join`` does the same and adds the cluster to the Helm release; ``leave`` reverts both. ``dns`` makes a name server.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import yaml

from controller_runtime.errors import ConfigError, Forbidden
from controller_runtime.process import terminal
from controller_runtime.process.flags import DRY_RUN, add_flag, add_switch, duration
from controller_runtime.process.terminal import Parser
from virtual_node.commands.common import connect, flags
from virtual_node.commands.lower_cluster import account as lower_account
from virtual_node.commands.lower_cluster import dns, join, leave
from virtual_node.commands.lower_cluster import tunnel as tunnel_steps
from virtual_node.config import program
from virtual_node.rights import daemon, manifests, name_server, tunnel

_AGENT = "virtual-node-register"
_NAMESPACES = dict.fromkeys(("join", "leave", "dns"), "virtual-node-system")
"""Default of ``--namespace`` in the upper cluster, by action; ``kube-system`` for other actions."""


def main(argv: Sequence[str]) -> int:
    """Run the command; return 0 when it is done.

    Raises:
        ConfigError: the action cannot be done; the message names the next step. Exit code 2.
    """
    options = parser().parse_args(argv)
    options.name = options.name or options.cluster
    if not options.name:
        raise ConfigError(f"NAME: required: '{program.name('lower-cluster')} {options.action} NAME'")
    options.namespace = options.namespace or _NAMESPACES.get(options.action, "kube-system")
    if options.action == "manifest":
        terminal.block(yaml.safe_dump_all(lower_account.objects(options), sort_keys=False).rstrip())
        return 0
    if (options.lost or options.force) and options.action != "leave":
        raise ConfigError(f"{'--lost' if options.lost else '--force'}: only with leave")
    if (options.via or options.tunnel_address) and options.action != "join":
        raise ConfigError(f"{'--via' if options.via else '--tunnel-address'}: only with join")
    if (options.config or options.apply) and options.action != "dns":
        raise ConfigError(f"{'--config' if options.config else '--apply'}: only with dns")
    if options.as_uid and options.action in {"join", "leave"} and not options.values:
        raise ConfigError("--as-uid: only with --values, because helm cannot impersonate a UID")
    if not options.client_kubeconfig and not options.lost:
        raise ConfigError("--client-kubeconfig: required: an administrator's kubeconfig of the lower cluster")
    match options.action:
        case "join":
            asyncio.run(join.run(options))
        case "leave":
            asyncio.run(leave.run(options))
        case "dns":
            asyncio.run(dns.run(options))
        case _:
            _print(options, asyncio.run(_register(options)))
    return 0


def _print(options: argparse.Namespace, secrets: Sequence[dict[str, Any]]) -> None:
    """Print the Secrets, or where they were created."""
    if not options.kubeconfig:
        terminal.block(yaml.safe_dump_all(secrets, sort_keys=False).rstrip())
        return
    for secret in secrets:
        where = f"{secret['metadata']['namespace']}/{secret['metadata']['name']}"
        terminal.line(f"Secret {where} holds a kubeconfig of lower cluster {options.name}.")


async def _register(options: argparse.Namespace) -> list[dict[str, Any]]:
    way: lower_account.Proxy | None = None
    if options.kubeconfig:
        # First, so that nothing is left in the lower cluster if the upper one does not answer.
        async with connect.upper(options, agent=_AGENT) as upper:
            way = tunnel_steps.way(options, await tunnel_steps.kept(upper, options))
            space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": options.namespace}}
            with contextlib.suppress(
                Forbidden
            ):  # the namespace may exist; otherwise creating the Secrets fails
                await lower_account.apply(upper, space)
    async with join.lower_client(options, agent=_AGENT) as lower:
        for body in lower_account.objects(options):
            await lower_account.apply(lower, body)
        secrets = [await lower_account.secret(lower, options, account, way) for account in manifests.ACCOUNTS]
    if options.kubeconfig:
        async with connect.upper(options, agent=_AGENT) as upper:
            for secret in secrets:
                await lower_account.apply(upper, secret)
    return secrets


def parser() -> Parser:
    """Return the command's parser."""
    own = Parser(
        program.name(),
        "lower-cluster",
        about="Join a lower cluster to an installation of the chart, or make only its accounts: a ServiceAccount with "
        "exactly the rights that a virtual node needs, one that may only read for the multi-scheduler, and a Secret "
        "in the upper cluster with the kubeconfig of each. Every action can be repeated.",
        examples=(
            (
                "Add a cluster to an installation, and run a pod there to prove it",
                "lower-cluster join tokyo --client-kubeconfig tokyo-admin.yaml",
            ),
            (
                "Add a cluster behind a firewall, through a load balancer of the upper cluster",
                "lower-cluster join tokyo --client-kubeconfig tokyo.yaml --via konnectivity --tunnel-address 192.0.2.7:8091",
            ),
            ("Remove it again", "lower-cluster leave tokyo --client-kubeconfig tokyo-admin.yaml"),
            (
                "Make only the accounts, and the Secrets in the upper cluster",
                "lower-cluster register tokyo --client-kubeconfig tokyo-admin.yaml --kubeconfig upper.yaml",
            ),
            (
                "Print the Secrets instead",
                "lower-cluster register tokyo --client-kubeconfig tokyo-admin.yaml",
            ),
            ("Print the accounts, to apply them yourself", "lower-cluster manifest tokyo"),
            (
                "Let pods find others by the names of the upper cluster, although namespaces have a prefix there",
                "lower-cluster dns tokyo --client-kubeconfig tokyo-admin.yaml --apply",
            ),
        ),
        exit_codes="0 done, 2 failed",
    )
    own.add_argument(
        "action",
        choices=("join", "leave", "register", "manifest", "dns"),
        help="join: accounts, Secrets, helm upgrade, and a pod as proof. leave: undo it. register: accounts and "
        "Secrets. manifest: print the accounts. dns: print a name server for the names of the upper cluster, or "
        "--apply it",
    )
    own.add_argument(
        "cluster",
        nargs="?",
        type=flags.label,
        metavar="NAME",
        help="name of the lower cluster in the upper cluster",
    )
    add_flag(own, "--name CLUSTER", "the same as NAME", default=None, type=flags.label)
    _add_account_flags(own)
    _add_upper_flags(own)
    _add_joining_flags(own)
    _add_tunnel_flags(own)
    _add_dns_flags(own)
    flags.add_request_timeout(own)
    return own


def _kinds(text: str) -> list[str]:
    """Return the kinds of ``--follow``; an argparse type."""
    found = [kind for kind in text.split(",") if kind]
    if unknown := [kind for kind in found if kind not in daemon.LOWER_COPIES]:
        raise argparse.ArgumentTypeError(
            f"unknown {', '.join(unknown)}; known are {', '.join(daemon.LOWER_COPIES)}"
        )
    return found


def _add_account_flags(parser: Parser) -> None:
    add_flag(parser, "--client-kubeconfig FILE", "administrator's kubeconfig of the lower cluster")
    add_flag(parser, "--client-context CONTEXT", "context of --client-kubeconfig (its current-context)")
    add_flag(parser, "--server URL", "URL at which the upper cluster reaches the lower API server")
    add_flag(
        parser,
        "--account-namespace NAME",
        "namespace of the accounts in the lower cluster (virtual-node)",
        type=flags.label,
        default="virtual-node",
    )
    parser.add_argument(
        "--usage-source",
        choices=tuple(lower_account.USAGE_SOURCES),
        default="None",
        help="where the multi-scheduler reads the usage of lower nodes (usage.source of its configuration); "
        "its account gets the rights for that (None). Give the flag again when you repeat the action",
    )
    add_flag(
        parser,
        "--follow KINDS",
        "kinds of objects that follow pods, separated by commas (follow of the lower cluster's configuration): "
        f"{', '.join(daemon.LOWER_COPIES)}. The account gets the rights for them. Give the flag again when you repeat the "
        "action",
        type=_kinds,
        default=[],
    )
    add_switch(
        parser,
        "--resource-claims",
        "grant the rights to copy ResourceClaims and ResourceClaimTemplates (resourceClaims.enabled of the lower "
        "cluster). Give the flag again when you repeat the action",
    )
    add_switch(
        parser,
        "--shared-volumes",
        "grant the rights to create and delete volumes, for storage that other lower clusters reach, too "
        "(volumes.shared of the lower cluster). Give the flag again when you repeat the action",
    )
    add_switch(
        parser,
        "--keep-namespaces",
        "do not grant the right to list all resources, which the removal of empty namespaces needs",
    )
    add_flag(
        parser,
        "--token-duration D",
        "how long the tokens are valid (720h); the API server may grant less. The virtual node renews them daily",
        type=duration,
        default=30 * 24 * 3600.0,
    )
    add_switch(parser, "--legacy-token", "tokens that never expire, inside the kubeconfig: for a kubeconfig "
        "that is not mounted from the Secret, where nothing renews them; not with join",
    )  # fmt: skip


def _add_upper_flags(parser: Parser) -> None:
    add_flag(
        parser,
        "--kubeconfig FILE",
        "kubeconfig of the upper cluster. register: create the Secrets there (none: print them). join, "
        "leave: without it "
        "$KUBECONFIG or ~/.kube/config",
    )
    add_flag(parser, "--context CONTEXT", "context of the upper kubeconfig (its current-context)")
    flags.add_impersonation(parser)
    add_flag(
        parser,
        "--namespace NS",
        "namespace of the Secrets in the upper cluster (kube-system); for join, leave and dns, namespace of "
        "the Helm release (virtual-node-system)",
        default=None,
        type=flags.label,
    )


def _add_joining_flags(parser: Parser) -> None:
    own = parser.add_argument_group("join and leave")
    add_flag(
        own, "--release NAME", "Helm release (the only one of this chart)", default=None, type=flags.label
    )
    add_switch(own, "--dry-run", "change nothing, and print what would be done", words=DRY_RUN)
    add_flag(own, "--timeout D", "time limit of each step that waits (5m)", type=duration, default=300.0)
    add_flag(
        own,
        "--probe-image IMAGE",
        "image of the pod that join runs in the lower cluster as proof (registry.k8s.io/pause:3.10); "
        "empty: no pod",
        default="registry.k8s.io/pause:3.10",
    )
    add_switch(
        own,
        "--force",
        "leave although pods run in the lower cluster (they are deleted) or volumes with data are bound",
    )
    add_switch(
        own,
        "--lost",
        "leave although the lower cluster no longer answers: change only the upper cluster, and print "
        "what is left in the lower cluster; without --client-kubeconfig",
    )
    add_flag(
        own,
        "--values FILE",
        "edit this values file instead of upgrading the release, for releases that Argo CD, Flux or a pipeline "
        "upgrades. Run the command again once the file is applied",
    )


def _add_tunnel_flags(parser: Parser) -> None:
    own = parser.add_argument_group("join through a tunnel")
    own.add_argument(
        "--via",
        choices=(tunnel_steps.KONNECTIVITY, tunnel_steps.DIRECT),
        default="",
        help="konnectivity: if the upper cluster cannot connect to the lower one, an agent in the lower cluster opens a tunnel. "
        "The chart runs konnectivity's proxy server, and join creates the agent. A repeated join keeps the tunnel. "
        "direct: remove it",
    )
    add_flag(
        own,
        "--tunnel-address HOST:PORT",
        "address at which the agent reaches the proxy server. With a port from 30000 to 32767, the Service has this node "
        "port; otherwise it has type LoadBalancer",
    )
    add_flag(
        own,
        "--tunnel-images REPOSITORY",
        f"repository of the agent's image, proxy-agent ({tunnel.IMAGES}). For the proxy server, set tunnel.image in the "
        "chart's values",
        default="",
    )


def _add_dns_flags(parser: Parser) -> None:
    own = parser.add_argument_group("dns")
    add_switch(
        own, "--apply", "create or update the name server in the lower cluster, instead of printing it"
    )
    add_flag(own, "--config FILE", "configuration file with the cluster, for an installation without Helm")
    add_flag(
        own,
        "--dns-image IMAGE",
        f"image of CoreDNS ({name_server.IMAGE})",
        default=name_server.IMAGE,
    )
    add_flag(own, "--lower-dns ADDRESS", "the lower cluster's DNS server (its Service kube-system/kube-dns)")
    add_flag(
        own,
        "--lower-domain DOMAIN",
        "the lower cluster's DNS domain (from its kubelets or CoreDNS, otherwise cluster.local)",
    )
