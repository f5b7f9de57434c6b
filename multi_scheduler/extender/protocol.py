"""The scheduler extender's wire: arguments read in any case, results written as kube-scheduler reads them. Pure.

Source: k8s.io/kube-scheduler/extender/v1. Its types carry no JSON tags, so members are capitalised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from controller_runtime.api.decoding import decode, decoder

MAX_SCORE = 10


class BadArgumentsError(ValueError):
    """What came are no extender arguments; the text says why."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """A pod and the nodes that may take it."""

    pod: Mapping[str, Any]
    names: Sequence[str]
    nodes: Mapping[str, Mapping[str, Any]] | None
    """Whole Node objects by name; None when the scheduler knows that we have them (nodeCacheCapable)."""


@dataclass(frozen=True, slots=True)
class Victims:
    """Pods that would have to go from one node."""

    uids: Sequence[str]
    pdb_violations: int


def candidates(body: bytes) -> Candidates:
    """ExtenderArgs.

    Raises:
        BadArgumentsError: they cannot be read.
    """
    arguments = _decode(body, "pod", "nodes", "nodenames")
    pod = _pod(arguments)
    nodes = arguments.get("nodes")
    if isinstance(nodes, dict):
        items = {node["metadata"]["name"]: node for node in nodes.get("items") or ()}
        return Candidates(pod, list(items), items)
    names = arguments.get("nodenames")
    if not isinstance(names, list):
        raise BadArgumentsError("neither Nodes nor NodeNames is there")
    return Candidates(pod, [str(name) for name in names], None)


def filter_result(
    asked: Candidates, passing: Sequence[str], failed: Mapping[str, str], unresolvable: Mapping[str, str]
) -> bytes:
    """ExtenderFilterResult, in the form in which it was asked."""
    result: dict[str, Any] = {
        "Nodes": None,
        "NodeNames": None,
        "FailedNodes": dict(failed),
        "FailedAndUnresolvableNodes": dict(unresolvable),
        "Error": "",
    }
    if asked.nodes is not None:
        result["Nodes"] = {"metadata": {}, "items": [asked.nodes[name] for name in passing]}
    else:
        result["NodeNames"] = list(passing)
    return msgspec.json.encode(result)


def filter_error(message: str) -> bytes:
    """ExtenderFilterResult of a call that failed."""
    return msgspec.json.encode({"Nodes": None, "NodeNames": None, "FailedNodes": None, "Error": message})


def priorities(scores: Mapping[str, float]) -> bytes:
    """HostPriorityList; scores between 0 and 1 become 0 to 10."""
    return msgspec.json.encode(
        [
            {"Host": name, "Score": round(min(1.0, max(0.0, score)) * MAX_SCORE)}
            for name, score in scores.items()
        ]
    )


def preemption(body: bytes) -> tuple[Mapping[str, Any], dict[str, Victims]]:
    """ExtenderPreemptionArgs: the pod, and the victims by node.

    Raises:
        BadArgumentsError: they cannot be read.
    """
    arguments = _decode(body, "pod", "nodenametometavictims", "nodenametovictims")
    found: dict[str, Victims] = {}
    for name, victims in (arguments.get("nodenametometavictims") or {}).items():
        entry = _lowered(victims or {})
        uids = [_lowered(pod).get("uid", "") for pod in entry.get("pods") or ()]
        found[name] = Victims(uids, int(entry.get("numpdbviolations") or 0))
    for name, victims in (arguments.get("nodenametovictims") or {}).items():
        entry = _lowered(victims or {})
        uids = [pod["metadata"]["uid"] for pod in entry.get("pods") or ()]
        found[name] = Victims(uids, int(entry.get("numpdbviolations") or 0))
    return _pod(arguments), found


def preemption_result(victims: Mapping[str, Victims]) -> bytes:
    """ExtenderPreemptionResult: the nodes where preemption would help, with their victims."""
    return msgspec.json.encode(
        {
            "NodeNameToMetaVictims": {
                name: {"Pods": [{"UID": uid} for uid in one.uids], "NumPDBViolations": one.pdb_violations}
                for name, one in victims.items()
            }
        }
    )


def binding(body: bytes) -> tuple[str, str, str, str]:
    """ExtenderBindingArgs: namespace, name, uid, node.

    Raises:
        BadArgumentsError: they cannot be read, or one is missing.
    """
    members = ("podnamespace", "podname", "poduid", "node")
    arguments = _decode(body, *members)
    values = [str(arguments.get(key) or "") for key in members]
    if not all(values):
        raise BadArgumentsError("PodNamespace, PodName, PodUID and Node are needed")
    return values[0], values[1], values[2], values[3]


def binding_result(error: str = "") -> bytes:
    """ExtenderBindingResult."""
    return msgspec.json.encode({"Error": error})


def _decode(body: bytes, *members: str) -> dict[str, Any]:
    """Read members of a call, named in lower case. Others stay unread: decoded they may take 30 times the memory."""
    try:
        found = _decode_members(body)
        return {key.lower(): decode(value) for key, value in found.items() if key.lower() in members}
    except msgspec.DecodeError as error:
        raise BadArgumentsError(f"not a JSON object: {error}") from None


def _pod(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    pod = arguments.get("pod")
    if not isinstance(pod, dict) or "metadata" not in pod or "spec" not in pod:
        raise BadArgumentsError("Pod is missing")
    return pod


def _lowered(members: Mapping[str, Any]) -> dict[str, Any]:
    return {key.lower(): value for key, value in members.items()}


_decode_members = decoder(dict[str, msgspec.Raw])
