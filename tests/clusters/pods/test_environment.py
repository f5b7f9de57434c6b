"""A pod's environment (downward API, Services, token) is that of the upper cluster."""

from __future__ import annotations

import pytest

from hack.sandbox import Cluster
from tests.clusters.virtual_nodes import REAL, pod
from tests.waiting import create, eventually, get, ready

pytestmark = [pytest.mark.e2e, pytest.mark.real_node]


def _field(name: str, path: str) -> dict:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


async def run(upper: Cluster, namespace: str, name: str, *command: str) -> str:
    """Return the output of a command in a pod."""
    return (await upper.kubectl("-n", namespace, "exec", name, "--", *command)).stdout


async def test_the_downward_api_has_upper_values(upper: Cluster, namespace):
    """Variables and files: names, uid, node, labels without ours; and files follow labels."""
    variables = [
        _field("NAME", "metadata.name"), _field("NS", "metadata.namespace"), _field("POD_UID", "metadata.uid"),
        _field("NODE", "spec.nodeName"), _field("SA", "spec.serviceAccountName"), _field("IP", "status.podIP"),
        _field("HOST", "status.hostIP"), _field("APP", "metadata.labels['app']"),
        {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}},
    ]  # fmt: skip
    items = [
        {"path": name, "fieldRef": {"fieldPath": f"metadata.{name}"}}
        for name in ("labels", "annotations", "uid")
    ]
    body = pod(
        "told", "sleep 3600",
        metadata={"annotations": {"note": 'a "b"'}},
        volumes=[{"name": "info", "downwardAPI": {"items": items}}],
        container={
            "env": variables,
            "resources": {"limits": {"cpu": "250m"}},
            "volumeMounts": [{"name": "info", "mountPath": "/info"}],
        },
    )  # fmt: skip
    await create(upper, namespace, body)
    await ready(upper, namespace, "told")
    upper_pod = await get(upper, namespace, "pod", "told")
    environment = dict(
        line.split("=", 1)
        for line in (await run(upper, namespace, "told", "env")).splitlines()
        if "=" in line
    )
    assert (environment["NAME"], environment["NS"], environment["NODE"], environment["SA"], environment["APP"], environment["CPU"]) == (
        "told", namespace, REAL, "default", "told", "250",
    )  # fmt: skip
    assert environment["POD_UID"] == upper_pod["metadata"]["uid"]
    assert (environment["IP"], environment["HOST"]) == (
        upper_pod["status"]["podIP"],
        upper_pod["status"]["hostIP"],
    )
    assert await run(upper, namespace, "told", "cat", "/info/labels") == 'app="told"'
    assert await run(upper, namespace, "told", "cat", "/info/uid") == upper_pod["metadata"]["uid"]
    assert r'note="a \"b\""' in await run(upper, namespace, "told", "cat", "/info/annotations")
    await upper.kubectl("-n", namespace, "label", "pod", "told", "stage=late")

    async def followed() -> bool:
        return 'stage="late"' in await run(upper, namespace, "told", "cat", "/info/labels")

    await eventually(followed, what="the file follows the label")


async def test_service_variables_and_the_chosen_apiserver(upper: Cluster, namespace):
    """Upper Services at addresses that work in the lower cluster; the user's own variables win."""
    await upper.kubectl("-n", namespace, "create", "service", "clusterip", "shop-front", "--tcp=80:8080")
    env = [
        {"name": "SHOP_FRONT_SERVICE_PORT", "value": "mine"},
        {"name": "URL", "value": "$(SHOP_FRONT_PORT)"},
    ]
    plain = pod("plain", "sleep 3600", container={"env": env})
    asks = pod(
        "asks", "sleep 3600", metadata={"annotations": {"virtual-node.io/kubernetes-service": "lower"}}
    )
    alone = pod("alone", "sleep 3600", enableServiceLinks=False)
    await create(upper, namespace, plain, asks, alone)
    environment = {}
    for name in ("plain", "asks", "alone"):
        await ready(upper, namespace, name)
        lines = (await run(upper, namespace, name, "env")).splitlines()
        environment[name] = dict(line.split("=", 1) for line in lines if "=" in line)
    host = environment["plain"]["SHOP_FRONT_SERVICE_HOST"]
    assert environment["plain"]["URL"] == f"tcp://{host}:80"
    assert environment["plain"]["SHOP_FRONT_SERVICE_PORT"] == "mine"
    assert "SHOP_FRONT_SERVICE_HOST" not in environment["alone"]
    for name in ("plain", "alone"):
        assert environment[name]["KUBERNETES_SERVICE_HOST"] == upper.address
        assert environment[name]["KUBERNETES_SERVICE_PORT"] == str(upper.port)
    assert environment["asks"]["KUBERNETES_SERVICE_PORT"] == "443"


async def test_an_in_cluster_client_reaches_the_upper_apiserver(upper: Cluster, namespace):
    """With only the mounted files and variables: it lists what its upper rights allow, and no more."""
    await upper.kubectl("-n", namespace, "create", "role", "reader", "--verb=list", "--resource=pods")
    await upper.kubectl(
        "-n",
        namespace,
        "create",
        "rolebinding",
        "reader",
        "--role=reader",
        f"--serviceaccount={namespace}:default",
    )
    await create(upper, namespace, pod("client", "sleep 3600"))
    await ready(upper, namespace, "client")
    mount = "/var/run/secrets/kubernetes.io/serviceaccount"
    # Busybox' wget speaks TLS without verifying, so the mounted CA is compared separately.
    script = (
        f'wget -q -O- --no-check-certificate --header "Authorization: Bearer $(cat {mount}/token)" '
        f"https://$KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT/api/v1/namespaces/{namespace}"
    )
    listed = await run(upper, namespace, "client", "sh", "-c", f"{script}/pods")
    assert '"client"' in listed
    refused = await upper.kubectl(
        "-n", namespace, "exec", "client", "--", "sh", "-c", f"{script}/secrets", check=False
    )
    assert "403" in refused.stdout + refused.stderr
    assert await run(upper, namespace, "client", "cat", f"{mount}/ca.crt") == upper.ca.read_text(
        encoding="utf-8"
    )
