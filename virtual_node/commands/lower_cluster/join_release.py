"""Finds and edits what ``lower-cluster join`` and ``leave`` change: the Helm release or a ``--values`` file."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from controller_runtime import resources
from controller_runtime.client.client import Client
from controller_runtime.client.reads import find
from controller_runtime.errors import ConfigError
from controller_runtime.process import terminal
from controller_runtime.process.flags import read_text
from virtual_node.commands.lower_cluster import helm_release, values_file
from virtual_node.commands.lower_cluster.helm_release import Release
from virtual_node.commands.lower_cluster.join_parts import say

_LEASES = "kube-node-lease"


async def find_release(upper: Client, options: argparse.Namespace) -> Release:
    """Return the Helm release, or a release made of the values in ``--values``.

    Raises:
        ConfigError: there is no release, or the file does not contain chart values.
    """
    if options.values:
        values = values_file.parse(read_values(options), source=options.values)
        say("values", f"{options.values}; no release is upgraded")
        return Release(options.release or "virtual-node", options.namespace, 0, values)
    release = await helm_release.find(upper, options.namespace, options.release)
    say("release", f"{release.name} in namespace {release.namespace}, revision {release.revision}")
    return release


def read_values(options: argparse.Namespace) -> str:
    """Return the text of the values file."""
    return read_text("--values", options.values)


def write_values(options: argparse.Namespace, text: str) -> None:
    """Write the values file and print the next step. A dry run prints the text instead.

    Raises:
        ConfigError: the file cannot be written.
    """
    if options.dry_run:
        say("values", f"would write {options.values}:")
        terminal.block(text.removesuffix("\n"))
        return
    try:
        Path(options.values).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--values {options.values}: {error.strerror}") from None
    say("values", f"{options.values} is changed. Apply it (helm upgrade --values, or commit it), then run this "
        "command again: it does the rest")  # fmt: skip


async def refuse_running(upper: Client, nodes: Sequence[str]) -> None:
    """Refuse to remove a cluster while one of its virtual nodes runs, which a held and renewed Lease shows.

    Raises:
        ConfigError: a virtual node still runs.
    """
    for node in nodes:
        spec = (await find(upper, resources.LEASES, node, namespace=_LEASES) or {}).get("spec") or {}
        if not spec.get("holderIdentity") or not spec.get("renewTime"):
            continue
        age = datetime.now(UTC) - datetime.fromisoformat(spec["renewTime"])
        if age < timedelta(seconds=spec.get("leaseDurationSeconds") or 40):
            raise ConfigError(
                f"virtual node {node} still works: apply the values file without it, then run the command again"
            )
