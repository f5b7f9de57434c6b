"""Reads summaries of the pods of virtual nodes: from the processes that run them, otherwise from lists of the pods.

A process answers for all its virtual nodes, so one node of each process is asked first. It names pods only of the node that was
asked, because the API server authorizes the caller for this node alone. So other nodes with faulty pods are asked, too.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from clusterset.model import names
from controller_runtime import resources
from controller_runtime.apimachinery.decoding import decoder
from controller_runtime.errors import ApiError, Forbidden, NotFound
from controller_runtime.objects import Object
from virtual_node.commands.status import rows
from virtual_node.commands.status.rows import PodFields
from virtual_node.config import program
from virtual_node.examine.finding import Finding
from virtual_node.examine.objects import Json, annotations_of
from virtual_node.examine.reader import Need, Reader
from virtual_node.node_summary import PATH, Lag, NodeSummary, Summaries, summarize, summary_of

_TIMEOUT = 3.0
"""Seconds to wait for a process. The API server may wait far longer for one that has ended."""
_REFUSED = "cannot get resource"
"""Part of the error if the API server refuses the caller; other 403 errors come from the virtual node."""
PROXY_RIGHT = Need("get", resources.NODES, subresource="proxy")
_decode = decoder(Summaries)


class _Failure(enum.Enum):
    """Why a virtual node has not answered."""

    REFUSED = "the caller may not ask it"
    OLD = "its process is of an earlier release"
    SILENT = "its process does not answer"


@dataclass(eq=False, slots=True)
class _Answers:
    """What the processes have answered."""

    summaries: dict[str, NodeSummary] = field(default_factory=dict)
    """By virtual node; only with findings."""
    failures: dict[str, _Failure] = field(default_factory=dict)
    """By virtual node that was asked."""


async def read(
    reader: Reader, nodes: Sequence[Object], leases: Mapping[str, Json]
) -> list[tuple[NodeSummary | None, Lag | None]]:
    """Return the summary of each virtual node, and its lag; None: unknown, or for the summary: the caller may not list pods.

    Args:
        reader: of the upper cluster; missing rights are recorded in it.
        nodes: the virtual nodes.
        leases: those of their Leases that the caller may read, by name.

    Raises:
        ApiError: the pods cannot be listed for another reason.
    """
    groups: dict[str, list[Object]] = {}
    for node in nodes:
        replica = (
            annotations_of(leases[node.name]).get(names.ANNOTATION_REPLICA) if node.name in leases else ""
        )
        groups.setdefault(replica or f"node/{node.name}", []).append(node)
    answers = _Answers()
    await _ask(reader, [group[0] for group in groups.values()], answers)
    again: list[Object] = []
    for first, *others in groups.values():
        failure = answers.failures.get(first.name)
        for node in others:
            if failure in {_Failure.OLD, _Failure.SILENT}:
                answers.failures[node.name] = failure
            elif node.name not in answers.summaries:
                again.append(node)
    await _ask(reader, again, answers)
    left = [node for node in nodes if node.name not in answers.summaries]
    listed = await asyncio.gather(*(_list(reader, node, answers.failures.get(node.name)) for node in left))
    found = {node.name: pair for node, pair in zip(left, listed, strict=True)}
    found |= {name: (summary, summary.lag) for name, summary in answers.summaries.items()}
    return [found[node.name] for node in nodes]


async def _ask(reader: Reader, nodes: Sequence[Object], answers: _Answers) -> None:
    """Ask virtual nodes for summaries, at the same time."""
    for node, found in zip(
        nodes, await asyncio.gather(*(_answer(reader, node) for node in nodes)), strict=True
    ):
        if isinstance(found, _Failure):
            answers.failures[node.name] = found
            continue
        # The answer for the asked node is newer, or has findings that others have not.
        answers.summaries.update(
            (name, each)
            for name, each in found.items()
            if each.findings is not None and (name == node.name or name not in answers.summaries)
        )


async def _answer(reader: Reader, node: Object) -> Mapping[str, NodeSummary] | _Failure:
    path = resources.NODES.path(name=node.name, subresource=f"proxy{PATH}")
    try:
        found = _decode(await reader.client.request("GET", path, timeout=_TIMEOUT)).nodes
    except Forbidden as error:
        if _REFUSED not in error.message:
            return _Failure.SILENT
        reader.missing[PROXY_RIGHT] = None
        return _Failure.REFUSED
    except NotFound:
        return _Failure.OLD
    except ApiError:
        return _Failure.SILENT
    except msgspec.DecodeError:
        # The endpoint may belong to another program or another version.
        return _Failure.OLD
    if (name := program.name()) != program.NAME:
        for each in found.values():
            each.findings = each.findings and [_named(finding, name) for finding in each.findings]
    return found


def _named(finding: Finding, name: str) -> Finding:
    """Return a finding whose next steps are commands of the program as the user calls it."""
    steps = [
        name + step.removeprefix(program.NAME) if step.startswith(program.NAME) else step
        for step in finding.next_steps
    ]
    return replace(finding, next_steps=steps)


async def _list(
    reader: Reader, node: Object, failure: _Failure | None
) -> tuple[NodeSummary | None, Lag | None]:
    """Return the summary of a virtual node from a list of its pods, and its lag from its metrics."""
    pods = await reader.fields(resources.PODS, PodFields, field_selector=f"spec.nodeName={node.name}")
    found = None if pods is None else summarize(map(summary_of, pods))
    # Metrics are read after the list, which could delay them beyond their short timeout.
    return found, await lag(reader, node) if failure in {None, _Failure.OLD} else None


async def lag(reader: Reader, node: Object) -> Lag | None:
    """Return the lag of a virtual node from its metrics; None: not readable, or nothing was mirrored."""
    try:
        return await rows.lag_of_node(reader.client, node)
    except Forbidden as error:
        if _REFUSED in error.message:
            reader.missing[PROXY_RIGHT] = None
        return None
