"""The virtual nodes of the shared clusters, and pods for them."""

from __future__ import annotations

from typing import Any

from tests import workloads

REAL, SIMULATED = "vn-lower1", "vn-lower2"
"""The virtual node of the lower cluster with a real node, and of the simulated lower cluster."""


def pod(name: str, script: str, *, node: str = REAL, **spec: Any) -> dict[str, Any]:
    """Return a busybox pod on a virtual node that runs a shell script."""
    container = {"command": ["sh", "-c", script], **spec.pop("container", {})}
    selected = {"nodeSelector": {"kubernetes.io/hostname": node}}
    return workloads.pod(name, container, **{**selected, **spec})
