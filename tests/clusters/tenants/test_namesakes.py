"""An upper pod and an unmanaged lower pod with the same name are independent."""

from __future__ import annotations

import pytest

from hack.sandbox import Cluster, Sandbox
from tests.clusters.virtual_nodes import REAL, pod
from tests.waiting import create, eventually, make_namespace, ready

pytestmark = [pytest.mark.e2e, pytest.mark.real_node]


async def test_no_stream_reaches_an_unmanaged_pod(sandbox: Sandbox, upper: Cluster, namespace: str) -> None:
    """Logs, exec and port-forward of the upper pod are refused with a message."""
    lower = sandbox.lower[0]
    await make_namespace(lower, namespace)
    script = "echo theirs; sleep 3600"
    container = pod("taken", script)["spec"]["containers"]
    await create(
        lower,
        namespace,
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "taken"},
            "spec": {"terminationGracePeriodSeconds": 1, "containers": container},
        },
    )
    await ready(lower, namespace, "taken")

    async def is_logged() -> bool:
        return "theirs" in (await lower.kubectl("-n", namespace, "logs", "taken")).stdout

    await eventually(is_logged, what="the unmanaged pod's log")
    await create(upper, namespace, pod("taken", script, node=REAL))

    async def bound() -> bool:
        described = await upper.kubectl("-n", namespace, "describe", "pod", "taken")
        return "not ours" in described.stdout

    await eventually(bound, what="the conflict explained in describe")
    for arguments in (
        ("logs", "taken"),
        ("exec", "taken", "--", "echo", "theirs"),
        ("attach", "taken"),
        ("port-forward", "taken", ":8080"),
    ):
        done = await upper.kubectl("-n", namespace, *arguments, check=False)
        output = done.stdout + done.stderr
        assert done.returncode, output
        assert "theirs" not in output, arguments
        if arguments[0] != "port-forward":
            assert (
                'pod \\"taken\\" is not in cluster' in output or 'pod "taken" is not in cluster' in output
            ), output
