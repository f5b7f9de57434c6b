"""The flags and help of commands, in a module of their own: help and completion do not import the commands."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from datetime import timedelta

from clusterset.model import names
from controller_runtime import resources
from controller_runtime.process.flags import (
    DRY_RUN,
    add_boolean,
    add_duration,
    add_flag,
    add_switch,
    comma_list,
    duration,
    parse_duration,
)
from controller_runtime.process.terminal import Parser
from controller_runtime.resources import Resource
from virtual_node.commands.common import flags, output
from virtual_node.config import program

FAIL_ON = ("warning", "error", "never")
"""Values of ``inspect --fail-on``."""
_DAYS = re.compile(r"(\d+)d(.*)")


def check() -> Parser:
    """Return the parser of ``check``, with the daemon's flags."""
    from virtual_node.config import command_line  # noqa: PLC0415 - other commands do not have these flags

    own = Parser(
        program.name(),
        "check",
        about="Check kubeconfigs, versions, clocks, rights and connections of all clusters before the daemon "
        "is started with the same flags.",
        examples=(
            ("One lower cluster", "check --kubeconfig upper.yaml --client-kubeconfig tokyo.yaml"),
            ("All clusters of a configuration, for a script", "check --config clusters.yaml -o json"),
        ),
        notes="The other flags are those of the daemon; they select the clusters.",
        exit_codes="0 all checks pass, 1 a check fails, 2 usage or configuration",
    )
    add_flag(
        own,
        "--multi-scheduler-config FILE",
        "the multi-scheduler's own file, if it does not read the same one: report where the two differ",
    )
    output.add_flags(own, "table", *output.DATA)
    output.add_quiet(own)
    flags.add_impersonation(own)
    flags.add_request_timeout(own)
    command_line.PROGRAM.add_flags(own)
    return own


def status() -> Parser:
    """Return the parser of ``status``."""
    own = Parser(
        program.name(),
        "status",
        about="List the virtual nodes of an upper cluster: Ready, lower cluster and its version, pods "
        "running and in trouble, their requests, mirror lag and last heartbeat.",
        examples=(
            ("Every virtual node", "status"),
            ("With the virtual node's own version, address, taints and last error", "status -o wide"),
            (
                "The virtual nodes of one lower cluster, for a script",
                f"status -l {names.LABEL_LOWER_CLUSTER}=tokyo -o name",
            ),
            ("One virtual node, as JSON", "status vn-tokyo -o json"),
            ("During an upgrade", "status --watch"),
        ),
        exit_codes="0 every virtual node is Ready and no error is found, 1 otherwise or if there is none, 2 "
        "the virtual nodes could not be read",
        notes="What you may not see is shown as '?', and the missing rights are named; that does not change the exit "
        "code. TROUBLE counts pods that do not run and are not starting.",
    )
    own.add_argument("names", nargs="*", metavar="NODE", type=target, help="only these virtual nodes")
    flags.add_flags(own)
    add_flag(own, "-l --selector LABELS", "only virtual nodes with these labels")
    output.add_flags(own, "table", "wide", *output.DATA, "name")
    add_switch(own, "-w --watch", "keep running, and print a line for each virtual node that changes")
    return own


def doctor() -> Parser:
    """Return the parser of ``doctor``."""
    from virtual_node.examine.codes import Link  # noqa: PLC0415 - other commands do not need them

    own = Parser(
        program.name(),
        "doctor",
        about="Find why pods stay pending. Checks the chain by which a pod gets from the upper API to a "
        "running container "
        "in a lower cluster, and names its first broken link. Changes nothing: the one pod that it creates is a "
        "server-side dry run.",
        examples=(
            ("With data of the upper cluster only", "doctor"),
            (
                "With data of two lower clusters",
                "doctor --client-kubeconfig tokyo.yaml --client-kubeconfig paris.yaml",
            ),
            ("The broken link's name, for a script", "doctor -o json"),
        ),
        exit_codes="0 all links hold, 1 one is broken or could not be seen, 2 usage, or no usable kubeconfig",
    )
    flags.add_flags(own)
    own.add_argument(
        "--client-kubeconfig",
        default=[],
        action="append",
        metavar="FILE",
        help="kubeconfig of a lower cluster, to read it too; may be given more than once",
    )
    add_flag(
        own,
        "-n --namespace NS",
        "namespace in which a labelled pod is created as a dry run (default)",
        type=flags.label,
        default="default",
    )
    output.add_flags(own, "table", *output.DATA)
    output.add_quiet(own)
    own.add_argument(
        "--ignore",
        default=[],
        action="append",
        choices=[link.value for link in Link],
        metavar="LINK",
        help="omit a link from the verdict, by its name in the output of -o json; may be given more than once. "
        "`helm test` ignores capacity, scheduled, lowerVerdict and swarms: pods of users that do not run",
    )
    return own


def diagnose() -> Parser:
    """Return the parser of ``diagnose``."""
    own = Parser(
        program.name(),
        "diagnose",
        about="Find why a pod does not run, with evidence and the next step. For a workload: the verdicts of "
        "its pods. For a node: whether the virtual node runs and can be reached.",
        examples=(
            ("A pod", "diagnose pod web-7d4b9 -n shop"),
            (
                "The same, with data from its lower cluster",
                "diagnose pod/web-7d4b9 -n shop --client-kubeconfig tokyo.yaml",
            ),
            ("The scores of the multi-scheduler's agents, too", "diagnose pod web-7d4b9 -n shop --explain"),
            ("All pods of a Deployment", "diagnose deploy/web -n shop"),
            ("A virtual node", "diagnose node vn-tokyo"),
        ),
        exit_codes="0 nothing is wrong, 1 something is wrong, 2 the object does not exist or cannot be read",
    )
    own.add_argument(
        "kind",
        choices=Kinds(KINDS),
        metavar="TYPE[/NAME]",
        help=f"{', '.join(KINDS)}, or kubectl's short names",
    )
    own.add_argument("name", nargs="?", metavar="[NAMESPACE/]NAME", help="unless given as TYPE/NAME")
    add_flag(
        own, "-n --namespace NS", "its namespace (the context's, default)", type=flags.label, default=None
    )
    flags.add_flags(own)
    add_flag(own, "--client-kubeconfig FILE", "kubeconfig of the lower cluster, to read it too")
    add_boolean(
        own,
        "--explain",
        default=False,
        help_text="for a pod: show each agent's score of each virtual node, from the multi-scheduler's event (false)",
    )
    output.add_flags(own, "text", *output.DATA)
    return own


KINDS: Mapping[str, Resource] = {
    "pod": resources.PODS,
    "node": resources.NODES,
    "deployment": resources.DEPLOYMENTS,
    "statefulset": resources.STATEFUL_SETS,
    "daemonset": resources.DAEMON_SETS,
    "replicaset": resources.REPLICA_SETS,
    "job": resources.JOBS,
}
"""Kinds that can be diagnosed, by their full names."""
_SHORT = {"po": "pod", "no": "node", "deploy": "deployment", "sts": "statefulset", "ds": "daemonset",
          "rs": "replicaset"}  # fmt: skip


class Kinds(tuple[str, ...]):
    """Choices for argparse: completes full names, but also accepts kubectl's short names and ``TYPE/NAME``."""

    __slots__ = ()

    def __contains__(self, word: object) -> bool:
        return isinstance(word, str) and full(word.partition("/")[0]) in KINDS


def full(word: str) -> str:
    """Return a kind's full name: ``deployment`` for ``deploy``, ``deployments`` and ``deployment.apps``.

    Any other word is returned without a trailing s.
    """
    word = word.partition(".")[0].lower()
    return _SHORT.get(word, word if word in KINDS else word.removesuffix("s"))


def target(text: str) -> str:
    """Return the name in ``node/NAME``, which ``-o name`` of kubectl and of ``status`` prints; other texts unchanged."""
    kind, slash, name = text.partition("/")
    return name if slash and full(kind) == "node" else text


def inspect() -> Parser:
    """Return the parser of ``inspect``, with the daemon's flags."""
    from virtual_node.config import command_line  # noqa: PLC0415 - other commands do not have these flags
    from virtual_node.examine.codes import CHECKS  # noqa: PLC0415

    own = Parser(
        program.name(),
        "inspect",
        about="Find leaks, drift, version and clock skew, expiring certificates and missing capacity in all "
        "clusters, for people and for CI. Changes nothing except the history.",
        examples=(
            ("All clusters of a configuration", "inspect --config clusters.yaml"),
            ("One lower cluster", "inspect --client-kubeconfig tokyo.yaml --nodename vn-tokyo"),
            ("New, persisting and fixed findings", "inspect --config clusters.yaml --history history.json"),
            ("In CI: warnings fail, too", "inspect --config clusters.yaml --fail-on warning -o json"),
        ),
        notes="The other flags are those of the daemon; they select the clusters.",
        exit_codes="0 no findings that count (see --fail-on), 1 findings, 2 usage or configuration, 3 a "
        "cluster could not be read",
    )
    add_flag(own, "--context CONTEXT", "context of the upper kubeconfig")
    flags.add_impersonation(own)
    output.add_flags(own, "table", *output.DATA)
    flags.add_request_timeout(own)
    add_flag(
        own,
        "--history TARGET",
        "compare with the previous run, and store this one: a file, or configmap/NAMESPACE/NAME of the upper cluster",
    )
    own.add_argument(
        "--fail-on",
        default="error",
        choices=FAIL_ON,
        help="least severity that makes the exit code 1 (error)",
    )
    own.add_argument(
        "--ignore",
        default=[],
        action="append",
        choices=CHECKS,
        metavar="CHECK",
        help="omit the findings of a check; may be given more than once",
    )
    for flag, default, text in (
        ("--grace", "5m", "ignore differences that are younger than this"),
        ("--expiry-warning", "30d", "warn of certificates and tokens that expire within this time"),
        ("--expiry-error", "7d", "report an error for certificates and tokens that expire within this time"),
    ):
        own.add_argument(flag, type=_length, default=default, metavar="D", help=f"{text} ({default})")
    command_line.PROGRAM.add_flags(own)
    return own


def _length(text: str) -> timedelta:
    """Convert a Go duration that may begin with days (``30d``, ``1d12h``, ``90s``), for argparse."""
    days, rest = 0, text
    if found := _DAYS.fullmatch(text):
        days, rest = int(found[1]), found[2] or "0"
    try:
        return timedelta(days=days, seconds=parse_duration(rest))
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration such as 30d, 12h or 90s") from None


def drain() -> Parser:
    """Return the parser of ``drain``."""
    own = Parser(
        program.name(),
        "drain",
        about="Move all pods off the virtual nodes of a lower cluster without disruption, and keep new pods off. "
        "The descheduler starts the replacement of a pod of a Deployment first, and evicts the pod when the "
        "replacement is Ready. Disruption budgets are respected.",
        examples=(
            ("Show how each pod would move, and which pods would stay", "drain tokyo --dry-run"),
            ("Empty a lower cluster before its maintenance", "drain tokyo --timeout 30m"),
        ),
        exit_codes="0 no pod is left that must move, 1 pods are left, 2 nothing was changed, or the drain was "
        "cancelled",
        notes="The drain continues when the command ends. To cancel it, run uncordon. Pods of DaemonSets are ignored.",
    )
    _add_target(own)
    flags.add_flags(own)
    add_switch(own, "--dry-run", "change nothing; list how each pod would move", words=DRY_RUN)
    add_duration(own, "--timeout", 0.0, "time after which the command stops waiting (0: never)")
    add_duration(own, "--pod-timeout", 300.0, "time in which the replacement of a pod must become Ready (5m)")
    add_switch(
        own,
        "--delete-emptydir-data",
        "also move pods with emptyDir or hostPath volumes, which lose this data",
    )
    # Flags with which scripts call kubectl drain.
    add_switch(own, "--ignore-daemonsets", "no effect: pods of DaemonSets are always ignored")
    add_switch(own, "--force", "no effect: pods without a controller are always re-created elsewhere")
    return own


def cordon() -> Parser:
    """Return the parser of ``cordon``."""
    own = Parser(
        program.name(),
        "cordon",
        about="Keep new pods off the virtual nodes of a lower cluster. Running pods stay.",
        examples=(("All virtual nodes of a lower cluster", "cordon tokyo"),),
        exit_codes="0 cordoned, 2 there is no such virtual node, or a right is missing",
    )
    _add_target(own)
    flags.add_flags(own)
    return own


def uncordon() -> Parser:
    """Return the parser of ``uncordon``."""
    own = Parser(
        program.name(),
        "uncordon",
        about="Let the virtual nodes of a lower cluster take new pods again, and cancel their drain. A pod "
        "whose replacement is not Ready yet stays. Moved pods do not return.",
        examples=(("After the maintenance of a lower cluster", "uncordon tokyo"),),
        exit_codes="0 uncordoned, 2 there is no such virtual node, or a right is missing",
    )
    _add_target(own)
    flags.add_flags(own)
    return own


def cleanup() -> Parser:
    """Return the parser of ``cleanup``."""
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
    add_switch(
        own,
        "--dry-run",
        "change nothing in any cluster, and print what would be deleted and changed",
        words=DRY_RUN,
    )
    add_flag(own, "--namespace NS", "namespace of the components (none: started by hand)")
    add_flag(own, "--selector SELECTOR", "label selector of their Deployments, which are stopped")
    add_switch(
        own,
        "--as-hook",
        "do nothing unless Helm or Argo CD installed what --selector finds, because other tools run "
        "hooks at any time",
    )
    add_flag(own, "--kubeconfig FILE", "kubeconfig of the upper cluster")
    flags.add_impersonation(own)
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


def _add_target(parser: argparse.ArgumentParser) -> None:
    """Declare the positional argument ``CLUSTER|NODE``."""
    parser.add_argument(
        "targets",
        nargs="+",
        metavar="CLUSTER|NODE",
        type=target,
        help="a lower cluster, which means all its virtual nodes, or a virtual node",
    )
