"""Implements ``diagnose node``: reads one virtual node and judges it, also by rules of ``doctor``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from clusterset.model import names
from controller_runtime import resources
from controller_runtime.apimachinery.readable import count, some
from controller_runtime.errors import ApiError, ConfigError
from virtual_node.commands.common import probes
from virtual_node.commands.common.probes import Probe
from virtual_node.commands.common.reader import NODE_LEASES, VIRTUAL_NODES, Reader
from virtual_node.commands.diagnose.codes import Code
from virtual_node.commands.diagnose.facts import FINE, DiagnoseFinding
from virtual_node.commands.doctor import nodes, presence, read_installation
from virtual_node.commands.doctor.facts import DoctorFacts, Installation
from virtual_node.commands.doctor.links import State
from virtual_node.config import program
from virtual_node.health.objects import Json, is_virtual, key, taints
from virtual_node.translate.printers.pods import pod_row


async def examine(reader: Reader, name: str) -> list[DiagnoseFinding]:
    """Return the findings about a virtual node, the most severe first; never empty.

    Raises:
        ConfigError: there is no such virtual node, or reading it is forbidden.
        ApiError: the cluster does not answer.
    """
    node = await _find(reader, name)
    lease = await reader.get(resources.LEASES, name, namespace=NODE_LEASES)
    bound = [
        pod.to_dict()
        for pod in await reader.all(resources.PODS, field_selector=f"spec.nodeName={name}") or ()
    ]
    unread = {"leases": "forbidden"} if lease is None and reader.missing else {}
    try:
        installation = await read_installation.read(reader.client)
    except ApiError as error:
        installation, unread["installation"] = Installation(), str(error)
    facts = DoctorFacts(
        now=await probes.clock(reader.client),
        server=reader.client.config.server,
        answer=Probe(200),
        unread=unread,
        nodes=[node],
        leases={name: lease} if lease else {},
        kubelets={name: await probes.kubelet(reader.client, node, bound)},
        installation=installation,
    )
    return judge(facts, node, bound)


def judge(facts: DoctorFacts, node: Json, bound: Sequence[Json]) -> list[DiagnoseFinding]:
    """Return the findings about a virtual node, the most severe first; never empty.

    Args:
        facts: facts for rules of ``doctor``, with this node as the only one.
        node: the node.
        bound: the pods that are bound to the node.
    """
    if found := sorted(_findings(facts, node, bound), key=lambda one: one.rank):
        return found
    title = f"The virtual node is Ready; nothing is wrong with it, or with its {count(len(bound), 'pod')}."
    return [DiagnoseFinding(Code.HEALTHY, title, rank=FINE)]


def _findings(facts: DoctorFacts, node: Json, bound: Sequence[Json]) -> Iterator[DiagnoseFinding]:
    name = node["metadata"]["name"]
    for rule, code in ((presence.heartbeat, Code.NODE_SILENT), (nodes.kubelet_api, Code.KUBELET_API)):
        outcome = rule(facts)
        if outcome.state is State.BROKEN:
            yield DiagnoseFinding(code, f"{outcome.detail}.", next_steps=[outcome.next])
    if (node.get("spec") or {}).get("unschedulable"):
        title, step = "It is cordoned: nothing new is bound to it.", f"kubectl uncordon {name}"
        yield DiagnoseFinding(Code.CORDONED, title, next_steps=[step], rank=1)
    if any(taint["key"] == names.TAINT_STALE_CLUSTER for taint in taints(node)):
        title = f"The descheduler keeps pods away from it ({names.TAINT_STALE_CLUSTER})."
        step = "it removes the taint 30 s after the lower cluster is healthy again"
        yield DiagnoseFinding(Code.TAINT, title, next_steps=[step], rank=1)
    if troubled := [key(pod) for pod in bound if pod_row(pod, None)["trouble"]]:
        title = f"{len(troubled)} of its {count(len(bound), 'pod')} in trouble."
        step = program.name(f"diagnose pod {troubled[0]}")
        yield DiagnoseFinding(Code.PODS_IN_TROUBLE, title, [some(troubled)], [step], rank=1)


async def _find(reader: Reader, name: str) -> dict[str, Any]:
    why = f"{program.name('doctor')} says why"
    node = await reader.find(resources.NODES, name, label_selector=VIRTUAL_NODES, otherwise=why)
    if not is_virtual(node):
        raise ConfigError(
            f"{name} is a node of the upper cluster itself, not a virtual one ({VIRTUAL_NODES})"
        )
    return node
