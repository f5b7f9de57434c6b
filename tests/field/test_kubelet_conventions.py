"""What the e2e tests of Kubernetes expect of a kubelet beyond conformance."""

from __future__ import annotations

import pytest

from hack.sandbox import Cluster
from tests.clusters.virtual_nodes import REAL, SIMULATED, pod
from tests.waiting import create, get, ready
from virtual_node.controllers.node_lease import process_of

pytestmark = [pytest.mark.e2e, pytest.mark.real_node]
TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount/token"
CASES = {
    "none": ({}, "644"),
    "root": ({"runAsUser": 0}, "600"),
    "user": ({"runAsUser": 1000}, "644"),
    "user-in-root": ({"runAsUser": 1000, "runAsGroup": 0}, "640"),
    "fs-group": ({"runAsUser": 1000, "fsGroup": 10000}, "640"),
}
"""Security context of the pod, and the mode of its token file."""


async def test_a_node_holds_its_lease(upper: Cluster):
    """By its name; the process that renews it is in an annotation, which is how a second process recognizes it."""
    for node in (REAL, SIMULATED):
        lease = await get(upper, "kube-node-lease", "lease", node)
        assert lease["spec"]["holderIdentity"] == node
        assert process_of(lease, node)


async def test_token_files_are_as_narrow_as_their_containers_can_read(upper: Cluster, namespace: str):
    """On a real node the file belongs to the user; in the lower cluster to root, with or without the group."""
    await create(
        upper,
        namespace,
        *(pod(name, "sleep 3600", securityContext=context) for name, (context, _) in CASES.items()),
    )
    for name, (context, mode) in CASES.items():
        await ready(upper, namespace, name)
        script = f"stat -L -c '%a %g' {TOKEN}; test -s {TOKEN} && head -c 1 {TOKEN}"
        shown = (await upper.kubectl("-n", namespace, "exec", name, "--", "sh", "-c", script)).stdout
        assert shown == f"{mode} {context.get('fsGroup', 0)}\ne", name
