"""Implements ``diagnose node``: reads one virtual node and judges it, by the health model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from clusterset.model import names
from clusterset.model.pod.conditions import is_true
from controller_runtime import resources
from controller_runtime.apimachinery.readable import count, some
from controller_runtime.errors import ApiError, ConfigError
from virtual_node.commands.diagnose.codes import Code
from virtual_node.commands.diagnose.facts import FINE, DiagnoseFinding
from virtual_node.config import program
from virtual_node.examine import probes
from virtual_node.examine.facts import known
from virtual_node.examine.finding import Finding
from virtual_node.examine.health import health as health_of
from virtual_node.examine.objects import Json, is_virtual, key, taints
from virtual_node.examine.path import INSTALLED, Probe
from virtual_node.examine.path_reading import installation
from virtual_node.examine.reader import NODE_LEASES, VIRTUAL_NODES, Reader
from virtual_node.examine.rules.apis import kubelet_trouble
from virtual_node.translate.pods.summary import pod_row


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
    leases = None if lease is None and reader.missing else {name: lease} if lease else {}
    now = await probes.clock(reader.client)
    snapshot = known(now, nodes=[node], leases=leases, bound=(), waiting=())
    try:
        snapshot.upper.put(INSTALLED, await installation(reader))
    except ApiError as error:
        snapshot.upper.refuse(INSTALLED, str(error))
    trouble = _trouble(health_of(snapshot).faults)
    probe = await probes.kubelet(reader.client, node, bound)
    found = [*_findings(node, trouble, probe), *_of_pods(bound)]
    if not found:
        title = (
            f"The virtual node is Ready; nothing is wrong with it, or with its {count(len(bound), 'pod')}."
        )
        return [DiagnoseFinding(Code.HEALTHY, title, rank=FINE)]
    return sorted(found, key=lambda one: one.rank)


def _trouble(faults: Sequence[Finding]) -> tuple[str, str] | None:
    """Return why a virtual node does not work, and the next step; None: it works."""
    found = [fault for fault in faults if fault.code.link == "nodeReady"]
    return ("; ".join([*map(str, found), *found[0].evidence]), found[0].next_step) if found else None


def _findings(node: Json, trouble: tuple[str, str] | None, probe: Probe) -> Iterator[DiagnoseFinding]:
    """Yield what is wrong with a virtual node.

    Args:
        node: the node.
        trouble: see ``_trouble``.
        probe: result of the request to its kubelet API.
    """
    name = node["metadata"]["name"]
    reached = kubelet_trouble(name, probe) if is_true(node.get("status"), "Ready") else None
    for found, code in ((trouble, Code.NODE_SILENT), (reached, Code.KUBELET_API)):
        if found is not None:
            yield DiagnoseFinding(code, f"{found[0]}.", next_steps=[found[1]])
    if (node.get("spec") or {}).get("unschedulable"):
        title, step = "It is cordoned: nothing new is bound to it.", f"kubectl uncordon {name}"
        yield DiagnoseFinding(Code.CORDONED, title, next_steps=[step], rank=1)
    if any(taint["key"] == names.TAINT_STALE_CLUSTER for taint in taints(node)):
        title = f"The descheduler keeps pods away from it ({names.TAINT_STALE_CLUSTER})."
        step = "it removes the taint 30 s after the lower cluster is healthy again"
        yield DiagnoseFinding(Code.TAINT, title, next_steps=[step], rank=1)


def _of_pods(bound: Sequence[Json]) -> Iterator[DiagnoseFinding]:
    """Yield a finding about the pods of a node that are in trouble."""
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
