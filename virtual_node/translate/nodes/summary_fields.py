"""The fields of a lower kubelet's Summary (``/stats/summary``) that a virtual node's Summary may have.

A hostile lower cluster sends unknown fields, numbers that are none, and names with any content.

Source: k8s.io/kubelet/pkg/apis/stats/v1alpha1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from virtual_node.translate.base.fields import (
    Reader,
    fields,
    flag,
    is_name,
    listed,
    matching,
    moment,
    number,
    word,
)

_MOST_PODS, _MOST_PARTS = 10_000, 1_000
"""Maximum numbers of pods of a node, and of containers, volumes and interfaces of a pod."""
_LONGEST_NAME = 128
SUMMED = {
    "cpu": ("usageNanoCores", "usageCoreNanoSeconds"),
    "memory": (
        "availableBytes",
        "usageBytes",
        "workingSetBytes",
        "rssBytes",
        "pageFaults",
        "majorPageFaults",
    ),
    "fs": ("availableBytes", "capacityBytes", "usedBytes", "inodesFree", "inodes", "inodesUsed"),
}
"""Fields that are summed over the lower nodes, by part of a Summary."""
_psi = fields(
    {part: fields(dict.fromkeys(("total", "avg10", "avg60", "avg300"), number)) for part in ("full", "some")}
)


def _measured(*names: str) -> dict[str, Reader]:
    return {"time": moment, **dict.fromkeys(names, number)}


_FILES = _measured(*SUMMED["fs"])
_files = fields(_FILES)
_interface = {
    "name": word(_LONGEST_NAME),
    **dict.fromkeys(("rxBytes", "rxErrors", "txBytes", "txErrors"), number),
}
_USED: dict[str, Reader] = {
    "startTime": moment,
    "cpu": fields({**_measured(*SUMMED["cpu"]), "psi": _psi}),
    "memory": fields({**_measured(*SUMMED["memory"]), "psi": _psi}),
    "io": fields({"time": moment, "psi": _psi}),
    "swap": fields(_measured("swapAvailableBytes", "swapUsageBytes")),
}
_name = matching(is_name)
_container = fields({**_USED, "name": _name, "rootfs": _files, "logs": _files}, required=("name",))
_volume_usage = fields(
    {
        **_FILES,
        "name": _name,
        "pvcRef": fields({"name": _name, "namespace": _name}, required=("name",)),
        "volumeHealthStats": fields({"abnormal": flag}),
    },
    required=("name",),
)
_pod = fields(
    {
        **_USED,
        "podRef": fields({"name": _name, "namespace": _name}, required=("name", "namespace")),
        "containers": listed(_container, _MOST_PARTS),
        "network": fields(
            {"time": moment, **_interface, "interfaces": listed(fields(_interface), _MOST_PARTS)}
        ),
        "volume": listed(_volume_usage, _MOST_PARTS),
        "ephemeral-storage": _files,
        "process_stats": fields({"process_count": number}),
    },
    required=("podRef",),
)
_summary = fields(
    {"node": fields({**_USED, "fs": _files}), "pods": listed(_pod, _MOST_PODS)}, required=("node",)
)


def read(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return a lower kubelet's Summary with its known fields.

    Raises:
        ValueError: it has no node.
    """
    summary: dict[str, Any] | None = _summary(found)
    if summary is None:
        raise ValueError("a summary without a node")
    return summary
