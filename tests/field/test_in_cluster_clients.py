"""Programs in a pod use the API of the cluster that issued the pod's token."""

from __future__ import annotations

import asyncio
import json
import ssl

import pytest

from hack.sandbox import Cluster
from tests.clusters.virtual_nodes import pod
from tests.waiting import create, eventually, get, ready

pytestmark = [pytest.mark.e2e, pytest.mark.real_node]
MOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_WHO = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}


async def _run(upper: Cluster, namespace: str, name: str, script: str) -> str:
    return (await upper.kubectl("-n", namespace, "exec", name, "--", "sh", "-c", script)).stdout


async def _verify(authority: str, address: str, port: int, name: str) -> None:
    """Connect as a client in the pod does, with the CA and the address that the pod has."""
    context = ssl.create_default_context(cadata=authority)
    _, writer = await asyncio.open_connection(address, port, ssl=context, server_hostname=name)
    writer.close()


async def test_in_cluster_clients_use_the_upper_api_as_the_pods_account(upper: Cluster, namespace: str):
    """With the default settings, by the variables and by the name; with the pod's own CA and token."""
    await create(upper, namespace, pod("client", "sleep 3600"))
    await ready(upper, namespace, "client")
    # Busybox does not verify certificates, so the handshake is repeated here.
    script = (
        f'wget -q -O- --no-check-certificate --header "Authorization: Bearer $(cat {MOUNT}/token)" '
        f"--header 'Content-Type: application/json' --post-data '{json.dumps(_WHO)}' "
        "https://{host}/apis/authentication.k8s.io/v1/selfsubjectreviews"
    )
    for host in (
        "$KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
        "kubernetes.default",
    ):
        answer = json.loads(await _run(upper, namespace, "client", script.replace("{host}", host)))
        assert answer["status"]["userInfo"]["username"] == f"system:serviceaccount:{namespace}:default", host
    environment = dict(
        line.split("=", 1) for line in (await _run(upper, namespace, "client", "env")).splitlines()
    )
    authority = await _run(upper, namespace, "client", f"cat {MOUNT}/ca.crt")
    host, port = environment["KUBERNETES_SERVICE_HOST"], int(environment["KUBERNETES_SERVICE_PORT"])
    assert (host, port) == (upper.address, upper.port)
    await _verify(authority, host, port, host)
    await _verify(authority, host, port, "kubernetes.default.svc")
    assert upper.service_ip not in "".join(environment.values())
    assert environment["KUBERNETES_PORT_443_TCP"] == f"tcp://{host}:{port}"


async def test_a_pod_that_mixes_two_clusters_gets_an_event(upper: Cluster, namespace: str):
    """Lower API server, upper token: the event says so, once for the pods of a namespace."""
    key = "virtual-node.io/kubernetes-service"
    for name in ("mixed", "also"):
        await create(upper, namespace, pod(name, "sleep 3600", metadata={"annotations": {key: "lower"}}))
        await ready(upper, namespace, name)

    async def reported() -> bool:
        events = await get(upper, namespace, "events")
        found = [one for one in events["items"] if one["reason"] == "APIServerMismatch"]
        return len(found) == 1 and "which refuses the token" in found[0]["message"]

    await eventually(reported, what="one event")
