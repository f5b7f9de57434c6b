"""``virtual-node doctor``: the broken link of "everything is pending" in a running installation.

Walks the chain by which a pod gets from the upper API to a running container in a lower cluster. Changes nothing: the
one pod that it creates is a server-side dry run.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import sys
from collections.abc import Sequence

from rich.console import Console

from controller_runtime import kubeconfig
from controller_runtime.client import Client
from virtual_node import program
from virtual_node.commands import doctor_probes, output
from virtual_node.commands.doctoring.chain import examine, first_broken, sentence
from virtual_node.commands.doctoring.facts import Facts
from virtual_node.commands.doctoring.links import Link

_COLUMNS = ("LINK", "STATE", "DETAIL", "NEXT")
_TIMEOUT = 10.0


def main(argv: Sequence[str]) -> int:
    """Run the command; 0 when all links hold, 1 when one is broken, 2 for trouble of our own."""
    parser = argparse.ArgumentParser(prog=program.name("doctor"), description=__doc__)
    parser.add_argument(
        "--kubeconfig", default="", metavar="FILE", help="upper cluster's ($KUBECONFIG, ~/.kube/config)"
    )
    parser.add_argument("--context", default="", metavar="NAME", help="the kubeconfig's context")
    parser.add_argument(
        "--client-kubeconfig",
        default=[],
        action="append",
        metavar="FILE",
        help="a lower cluster's, to look there too; may be given more than once",
    )
    parser.add_argument(
        "-n",
        "--namespace",
        default="default",
        metavar="NS",
        help="where a labelled pod is created on trial, by dry run (default)",
    )
    parser.add_argument(
        "-o", "--output", default="table", choices=("table", "json", "yaml"), help="table, json or yaml"
    )
    options = parser.parse_args(argv)
    links = examine(asyncio.run(_look(options)))
    broken = first_broken(links)
    if options.output == "table":
        _print(links)
    else:
        rows = [
            {"name": one.name, "state": one.state.value, "detail": one.detail, "next": one.next}
            for one in links
        ]
        output.data({"brokenLink": broken.name if broken else None, "links": rows}, options.output)
    return 0 if broken is None else 1


async def _look(options: argparse.Namespace) -> Facts:
    config = await kubeconfig.load(options.kubeconfig or None, context=options.context or None)
    files: list[str] = options.client_kubeconfig
    below = [await kubeconfig.load(file, in_cluster=False) for file in files]
    async with contextlib.AsyncExitStack() as stack:
        upper, *lower = [
            await stack.enter_async_context(
                Client(one, user_agent="virtual-node-doctor", cluster=cluster, timeout=_TIMEOUT)
            )
            for cluster, one in zip(("upper", *files), (config, *below), strict=True)
        ]
        async with asyncio.TaskGroup() as group:
            above = group.create_task(doctor_probes.look(upper, namespace=options.namespace))
            seen = [
                group.create_task(doctor_probes.look_below(client, file))
                for client, file in zip(lower, files, strict=True)
            ]
    return dataclasses.replace(above.result(), lower=[task.result() for task in seen])


def _print(links: Sequence[Link]) -> None:
    output.table(_COLUMNS, [(one.title, one.state.value, one.detail, one.next) for one in links])
    Console(file=sys.stdout, highlight=False, soft_wrap=True).print(
        sentence(links), style="bold", markup=False
    )
