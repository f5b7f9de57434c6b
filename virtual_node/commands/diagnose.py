"""``virtual-node diagnose pod NAMESPACE/NAME``: one readable verdict on why a pod is not running."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Console

from controller_runtime import kubeconfig, resources
from controller_runtime.api import names, timestamps
from controller_runtime.client import Client
from controller_runtime.errors import ApiError, ConfigError, NotFound
from virtual_node import program
from virtual_node.commands import output
from virtual_node.commands.diagnosing.facts import Facts, Finding
from virtual_node.commands.diagnosis import diagnose

_LEASES = "kube-node-lease"


def main(argv: Sequence[str]) -> int:
    """Run the command; 0 when nothing is wrong, 1 when something is, 2 for trouble of our own."""
    parser = argparse.ArgumentParser(prog=program.name("diagnose"), description=__doc__)
    parser.add_argument("kind", choices=("pod",), help="what to diagnose")
    parser.add_argument("name", metavar="[NAMESPACE/]NAME")
    parser.add_argument("-n", "--namespace", default="default", help="where NAME has none (default)")
    parser.add_argument(
        "--kubeconfig", default="", metavar="FILE", help="upper cluster's ($KUBECONFIG, ~/.kube/config)"
    )
    parser.add_argument("--context", default="", metavar="NAME", help="the kubeconfig's context")
    parser.add_argument(
        "--client-kubeconfig", default="", metavar="FILE", help="lower cluster's, to look there too"
    )
    parser.add_argument("-o", "--output", default="text", choices=("text", "json", "yaml"))
    options = parser.parse_args(argv)
    namespace, _, name = options.name.rpartition("/")
    namespace = namespace or options.namespace
    try:
        facts = asyncio.run(_gather(options, namespace, name))
    except NotFound:
        raise ConfigError(f"there is no pod {namespace}/{name} in the upper cluster") from None
    except ApiError as error:
        raise ConfigError(f"the upper cluster: {error}") from None
    findings = diagnose(facts)
    if options.output == "text":
        _print(namespace, name, findings)
    else:
        rows = [
            {"title": one.title, "evidence": list(one.evidence), "nextSteps": list(one.next_steps)}
            for one in findings
        ]
        output.data({"pod": f"{namespace}/{name}", "findings": rows}, options.output)
    return 0 if findings[0].rank == 9 and "running" in findings[0].title else 1


async def _gather(options: argparse.Namespace, namespace: str, name: str) -> Facts:
    config = await kubeconfig.load(options.kubeconfig or None, context=options.context or None)
    async with Client(config, user_agent="virtual-node-diagnose", cluster="upper") as upper:
        pod = await upper.get(resources.PODS, name, namespace=namespace)
        node_name = pod["spec"].get("nodeName", "")
        selector = f"{names.LABEL_NODE_TYPE}={names.NODE_TYPE_VIRTUAL}"
        involved = f"involvedObject.uid={pod['metadata']['uid']}"
        nodes, events = await asyncio.gather(
            upper.list(resources.NODES, label_selector=selector),
            upper.list(resources.EVENTS, namespace=namespace, field_selector=involved),
        )
        virtual = [node.to_dict() for node in nodes.items]
        node = next((one for one in virtual if one["metadata"]["name"] == node_name), None)
        heartbeat = await _heartbeat(upper, node_name) if node_name else None
        logs = await _logs(upper, pod)
    lower = await _lower(options.client_kubeconfig, pod) if options.client_kubeconfig else None
    listed = [event.to_dict() for event in events.items]
    listed.sort(key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""))
    return Facts(
        pod=pod,
        node=node,
        heartbeat_seconds=heartbeat,
        lower=lower,
        events=listed,
        virtual_nodes=virtual,
        now=datetime.now(UTC),
        asked_below=bool(options.client_kubeconfig),
        logs=logs,
    )


async def _heartbeat(upper: Client, node: str) -> float | None:
    try:
        lease = await upper.get(resources.LEASES, node, namespace=_LEASES)
    except ApiError:
        return None
    renewed = (lease.get("spec") or {}).get("renewTime")
    return (datetime.now(UTC) - timestamps.parse(renewed)).total_seconds() if renewed else None


async def _logs(upper: Client, pod: dict[str, Any]) -> list[str]:
    """The last words of the first container that has ended badly."""
    metadata = pod["metadata"]
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        previous = "terminated" in (status.get("lastState") or {})
        if not previous and "terminated" not in (status.get("state") or {}):
            continue
        params = {"container": status["name"], "tailLines": "5", "previous": "true" if previous else "false"}
        path = resources.PODS.path(namespace=metadata["namespace"], name=metadata["name"], subresource="log")
        try:
            return (await upper.request("GET", path, params=params)).decode("utf-8", "replace").splitlines()
        except ApiError:
            return []
    return []


async def _lower(path: str, pod: dict[str, Any]) -> dict[str, Any] | None:
    config = await kubeconfig.load(path, in_cluster=False)
    async with Client(config, user_agent="virtual-node-diagnose", cluster="lower") as client:
        selector = f"{names.LABEL_UPPER_UID}={pod['metadata']['uid']}"
        try:
            found = (await client.list(resources.PODS, label_selector=selector)).items
        except ApiError as error:
            raise ConfigError(f"--client-kubeconfig {path}: {error}") from None
    return found[0].to_dict() if found else None


def _print(namespace: str, name: str, findings: Sequence[Finding]) -> None:
    console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
    console.print(f"[bold]pod {namespace}/{name}[/]")
    for number, finding in enumerate(findings):
        mark, style = (
            ("✗", "bold red")
            if finding.rank == 0
            else ("•", "yellow")
            if finding.rank < 9
            else ("✓", "green")
        )
        console.print(f"{mark} {finding.title}", style=style if number == 0 else "", markup=False)
        for line in finding.evidence:
            console.print(f"    {line}", markup=False, style="dim")
        for step in finding.next_steps:
            console.print(f"    → {step}", markup=False)
