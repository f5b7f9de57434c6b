"""The flags and the help of commands, apart from what the commands import: help and completion need only these."""

from __future__ import annotations

import argparse

from clusterset.model import names
from controller_runtime.process.argparser import Parser
from controller_runtime.process.flags import add_duration, add_flag, add_switch, comma_list, duration
from virtual_node.commands.common import flags, output
from virtual_node.config import program


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
    own.add_argument("names", nargs="*", metavar="NODE", help="only these virtual nodes")
    flags.add_flags(own)
    add_flag(own, "-l --selector LABELS", "only virtual nodes with these labels")
    output.add_flags(own, "table", "wide", *output.DATA, "name")
    add_switch(own, "-w --watch", "keep running, and print a line for each virtual node that changes")
    return own


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
    add_switch(own, "--dry-run", "change nothing; list how each pod would move")
    add_duration(own, "--timeout", 0.0, "time after which the command stops waiting (0: never)")
    add_duration(own, "--pod-timeout", 300.0, "time in which the replacement of a pod must become Ready (5m)")
    add_switch(
        own,
        "--delete-emptydir-data",
        "also move pods with emptyDir or hostPath volumes, which lose this data",
    )
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


def _add_target(parser: argparse.ArgumentParser) -> None:
    """Declare the positional argument ``CLUSTER|NODE``."""
    parser.add_argument(
        "targets",
        nargs="+",
        metavar="CLUSTER|NODE",
        help="a lower cluster, which means all its virtual nodes, or a virtual node",
    )
