"""Messages of the scheduler extender API: reads arguments with case-insensitive keys, and encodes results. No IO.

Source: k8s.io/kube-scheduler/extender/v1. Its types have no JSON tags, so keys are capitalised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from controller_runtime.apimachinery.decoding import decode, decoder

MAX_SCORE = 10
_LONGEST_REASON = 1024
"""Maximum characters of the reason for one node. There may be 500 nodes, and tenants choose parts of the text."""


class BadArgumentsError(ValueError):
    """The body is not valid extender arguments; the error text names the cause."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """A pod and its candidate nodes."""

    pod: Mapping[str, Any]
    names: Sequence[str]
    nodes: Mapping[str, Mapping[str, Any]] | None
    """Complete Node objects by name; None if the scheduler sent only names (nodeCacheCapable)."""


@dataclass(frozen=True, slots=True)
class Victims:
    """Pods to evict from one node."""

    uids: Sequence[str]
    pdb_violations: int


def candidates(body: bytes) -> Candidates:
    """Parse ExtenderArgs.

    Raises:
        BadArgumentsError: the body is not valid.
    """
    arguments = _decode(body, "pod", "nodes", "nodenames")
    pod = _pod(arguments)
    nodes = arguments.get("nodes")
    if isinstance(nodes, dict):
        items = {node["metadata"]["name"]: node for node in nodes.get("items") or ()}
        return Candidates(pod, list(items), items)
    names = arguments.get("nodenames")
    if not isinstance(names, list):
        raise BadArgumentsError("Nodes and NodeNames are missing")
    return Candidates(pod, [str(name) for name in names], None)


def filter_result(
    asked: Candidates, passing: Sequence[str], failed: Mapping[str, str], unresolvable: Mapping[str, str]
) -> bytes:
    """Return ExtenderFilterResult, with Node objects if the arguments had them, otherwise with names."""
    nodes = asked.nodes
    result = {
        "Nodes": None if nodes is None else {"metadata": {}, "items": [nodes[name] for name in passing]},
        "NodeNames": passing if nodes is None else None,
        "FailedNodes": _cut(failed),
        "FailedAndUnresolvableNodes": _cut(unresolvable),
        "Error": "",
    }
    return msgspec.json.encode(result)


def _cut(reasons: Mapping[str, str]) -> dict[str, str]:
    return {name: reason[:_LONGEST_REASON] for name, reason in reasons.items()}


def filter_error(message: str) -> bytes:
    """Return the ExtenderFilterResult of a failed call."""
    return msgspec.json.encode({"Nodes": None, "NodeNames": None, "FailedNodes": None, "Error": message})


def priorities(scores: Mapping[str, float]) -> bytes:
    """Return a HostPriorityList; scores from 0 to 1 become 0 to 10."""
    return msgspec.json.encode(
        [
            {"Host": name, "Score": round(min(1.0, max(0.0, score)) * MAX_SCORE)}
            for name, score in scores.items()
        ]
    )


def preemption(body: bytes) -> tuple[Mapping[str, Any], dict[str, Victims]]:
    """Parse ExtenderPreemptionArgs: return the pod, and the victims by node.

    Raises:
        BadArgumentsError: the body is not valid.
    """
    arguments = _decode(body, "pod", "nodenametometavictims", "nodenametovictims")
    found: dict[str, Victims] = {}
    for key in ("nodenametometavictims", "nodenametovictims"):
        for name, victims in (arguments.get(key) or {}).items():
            entry = _lowered(victims or {})
            pods = entry.get("pods") or ()
            is_meta = key == "nodenametometavictims"
            uids = [_lowered(pod).get("uid", "") if is_meta else pod["metadata"]["uid"] for pod in pods]
            found[name] = Victims(uids, int(entry.get("numpdbviolations") or 0))
    return _pod(arguments), found


def preemption_result(victims: Mapping[str, Victims]) -> bytes:
    """Return ExtenderPreemptionResult: the nodes where preemption would help, with their victims."""
    return msgspec.json.encode(
        {
            "NodeNameToMetaVictims": {
                name: {"Pods": [{"UID": uid} for uid in one.uids], "NumPDBViolations": one.pdb_violations}
                for name, one in victims.items()
            }
        }
    )


def binding(body: bytes) -> tuple[str, str, str, str]:
    """Parse ExtenderBindingArgs: return namespace, name, UID and node.

    Raises:
        BadArgumentsError: the body is not valid, or a value is missing.
    """
    members = ("podnamespace", "podname", "poduid", "node")
    arguments = _decode(body, *members)
    values = [str(arguments.get(key) or "") for key in members]
    if not all(values):
        raise BadArgumentsError("PodNamespace, PodName, PodUID and Node are required")
    return values[0], values[1], values[2], values[3]


def binding_result(error: str = "") -> bytes:
    """Return ExtenderBindingResult."""
    return msgspec.json.encode({"Error": error})


def _decode(body: bytes, *members: str) -> dict[str, Any]:
    """Return the members with these lower-case keys. Others stay undecoded, because decoding takes 30 times the memory."""
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
