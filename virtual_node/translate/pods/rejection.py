"""Translates the lower scheduler's message about an unschedulable pod to the reason of a kubelet's rejection."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from clusterset.model.pod.conditions import condition

OTHER = "UnexpectedAdmissionError"
"""The kubelet's reason for all other failures."""
_CAUSES = (
    (re.compile(r"(\d{1,9}) Insufficient ([-./a-zA-Z0-9]{0,100}[a-zA-Z0-9])"), r"OutOf\2"),
    (re.compile(r"(\d{1,9}) Too many pods"), "OutOfpods"),
    (re.compile(r"(\d{1,9}) node\(s\) didn't have free ports"), "NodePorts"),
    (re.compile(r"(\d{1,9}) node\(s\) didn't match Pod's node affinity/selector"), "NodeAffinity"),
    (re.compile(r"(\d{1,9}) node\(s\) had untolerated taint"), "TaintToleration"),
)
"""Messages of kube-scheduler's plugins, each after the number of nodes, and the kubelet's reasons. The number of digits is
limited, because every user who may write a pod's status can write the message."""
_LONGEST = 4096
"""Characters of the message that are read and copied."""


def rejection(lower: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the reason and message with which a kubelet would reject a pod that is unschedulable.

    The reason is the one that applies to the most lower nodes. None: the pod is not unschedulable, is being deleted, or
    preempts others.

    Args:
        lower: the lower pod.
    """
    spec, status = lower.get("spec") or {}, lower.get("status") or {}
    scheduled = condition(status, "PodScheduled")
    is_refused = scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable"
    if (
        not is_refused
        or spec.get("nodeName")
        or status.get("nominatedNodeName")
        or lower["metadata"].get("deletionTimestamp")
    ):
        return None
    message = str(scheduled.get("message") or "")[:_LONGEST]
    # The part after "preemption:" is about nodes on which evictions would not help.
    found = [
        (int(match[1]), match.expand(reason))
        for pattern, reason in _CAUSES
        for match in pattern.finditer(message.partition("preemption:")[0])
    ]
    return max(found, key=lambda cause: cause[0], default=(0, OTHER))[1], f"Pod was rejected: {message}"
