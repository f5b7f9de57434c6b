"""Which process mirrors a virtual node, according to the Node's Lease in ``kube-node-lease``. No IO.

``spec.holderIdentity`` is the node's name, as a kubelet writes it, because other programs read it. The process is in
annotation ``virtual-node.io/process``, together with the Lease's ``leaseTransitions``. Earlier releases write the process
to ``holderIdentity``, increase ``leaseTransitions`` when they take the Lease, and keep annotations that they do not know.
So the annotation counts only while both fields are as its process wrote them.

An earlier release treats a Lease with the node's name as free, because that is how both releases leave a released Lease.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from clusterset.model import names
from controller_runtime import leaderelection
from controller_runtime.apimachinery import timestamps

_LONG_AGO = 3
"""Number of lease durations after renewTime after which the holder counts as gone, even if the clocks of the
two machines differ by a minute."""


def process_of(lease: Mapping[str, Any], node: str) -> str:
    """Return the process that holds the Lease of a node; empty: it was released, or never held."""
    holder = leaderelection.holder_of(lease)
    if holder not in {"", node}:
        return holder  # an earlier release
    annotations = (lease.get("metadata") or {}).get("annotations") or {}
    process, _, transitions = str(annotations.get(names.ANNOTATION_PROCESS) or "").rpartition(" ")
    return process if holder and transitions == _transitions(lease) else ""


def held(
    lease: Mapping[str, Any], *, process: str, node: str, duration: float, now: datetime
) -> dict[str, Any]:
    """Return the Lease as a process writes it to take or renew it; other content is kept.

    Args:
        lease: as read, or a new one.
        process: identity of the process.
        node: name of the node.
        duration: seconds for which the Lease is valid, rounded up.
        now: wall clock, timezone-aware.
    """
    if spec := leaderelection.spec_of(lease):
        # So that the transitions are counted by processes.
        lease = {**lease, "spec": {**spec, "holderIdentity": process_of(lease, node)}}
    made = leaderelection.held(lease, identity=process, duration=duration, now=now)
    spec = {**made["spec"], "holderIdentity": node}
    return _annotated({**made, "spec": spec}, f"{process} {_transitions(made)}")


def released(lease: Mapping[str, Any], node: str) -> dict[str, Any]:
    """Return the Lease without a process. The times stay, because other components use them to judge the node."""
    spec = {**leaderelection.spec_of(lease), "holderIdentity": node}
    return _annotated({**lease, "spec": spec}, None)


def may_hold(
    lease: Mapping[str, Any], *, process: str, node: str, unchanged_for: float, now: datetime
) -> bool:
    """Report whether a process may take a node's Lease.

    Args:
        lease: as read.
        process: identity of the process.
        node: name of the node and of its Lease.
        unchanged_for: seconds for which the process has not seen a renewal.
        now: wall clock, timezone-aware.
    """
    if process_of(lease, node) in {"", process}:
        return True
    spec = leaderelection.spec_of(lease)
    duration = float(spec.get("leaseDurationSeconds") or 0)
    if unchanged_for >= duration:
        return True
    try:
        age = (now - timestamps.parse(str(spec.get("renewTime")))).total_seconds()
    except ValueError:
        return False
    return age >= _LONG_AGO * duration


def _transitions(lease: Mapping[str, Any]) -> str:
    return str(leaderelection.spec_of(lease).get("leaseTransitions") or 0)


def _annotated(lease: Mapping[str, Any], value: str | None) -> dict[str, Any]:
    metadata = lease.get("metadata") or {}
    annotations = {**(metadata.get("annotations") or {}), names.ANNOTATION_PROCESS: value}
    kept = {key: text for key, text in annotations.items() if text is not None}
    return {**lease, "metadata": {**metadata, "annotations": kept}}
