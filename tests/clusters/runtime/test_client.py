"""The client with a real apiserver, which the servers of unit tests imitate."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml

from controller_runtime import resources
from controller_runtime.auth import kubeconfig
from controller_runtime.auth.credentials import bearer
from controller_runtime.auth.kubeconfig import ConnectionConfig
from controller_runtime.client.client import Client, PatchType
from controller_runtime.errors import (
    AlreadyExists,
    BadRequest,
    Conflict,
    ConnectionFailed,
    Expired,
    Forbidden,
    Invalid,
    NotFound,
    Unauthorized,
)
from controller_runtime.resources import Resource
from hack.sandbox.cluster import Cluster
from tests.clusters.pool import Lend
from tests.waiting import PATIENCE

pytestmark = pytest.mark.e2e

SELF_SUBJECT_REVIEWS = Resource(
    "authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", namespaced=False
)
MAPS = resources.CONFIG_MAPS


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def cluster(alone: Lend) -> AsyncIterator[Cluster]:
    """A control plane without nodes."""
    async with alone() as sandbox:
        yield sandbox.upper


@pytest_asyncio.fixture(loop_scope="session")
async def client(cluster: Cluster) -> AsyncIterator[Client]:
    """An administrator's client."""
    async with Client(
        await kubeconfig.load(str(cluster.kubeconfig)), cluster="upper", qps=0, user_agent="tester/1"
    ) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="session")
async def namespace(client: Client, request: pytest.FixtureRequest) -> str:
    """A namespace of the test's own."""
    name: str = request.node.name.removeprefix("test_").replace("_", "-").replace("[", "-").rstrip("]")[:60]
    await client.create(resources.NAMESPACES, {"metadata": {"name": name}})
    return name


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def token(cluster: Cluster) -> str:
    """A token of a service account without rights."""
    async with Client(await kubeconfig.load(str(cluster.kubeconfig))) as client:
        await client.create(
            resources.SERVICE_ACCOUNTS, {"metadata": {"name": "nobody", "namespace": "kube-public"}}
        )
        answer = await client.create(
            resources.SERVICE_ACCOUNTS,
            {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}},
            namespace="kube-public",
            name="nobody",
            subresource="token",
        )
    found: str = answer["status"]["token"]
    return found


async def who_am_i(config: ConnectionConfig) -> str:
    """Return the user name that the server sees."""
    async with Client(config) as client:
        review = await client.create(SELF_SUBJECT_REVIEWS, {})
    name: str = review["status"]["userInfo"]["username"]
    return name


async def test_create_read_update_patch_delete(client: Client, namespace: str) -> None:
    made = await client.create(MAPS, {"metadata": {"name": "a", "namespace": namespace}, "data": {"k": "1"}})
    assert made["metadata"]["managedFields"][0]["manager"] == "tester"
    read = await client.get(MAPS, "a", namespace=namespace)
    assert read["data"] == {"k": "1"}
    read["data"]["k"] = "2"
    updated = await client.update(MAPS, read)
    assert updated["metadata"]["resourceVersion"] != made["metadata"]["resourceVersion"]
    patched = await client.patch(MAPS, "a", {"data": {"k": None, "l": "3"}}, namespace=namespace)
    assert patched["data"] == {"l": "3"}
    patched = await client.patch(
        MAPS,
        "a",
        [{"op": "add", "path": "/data/m", "value": "4"}],
        namespace=namespace,
        patch_type=PatchType.JSON,
    )
    assert patched["data"] == {"l": "3", "m": "4"}
    await client.delete(MAPS, "a", namespace=namespace)
    with pytest.raises(NotFound, match=r'configmaps "a" not found \(404 NotFound\)'):
        await client.get(MAPS, "a", namespace=namespace)


async def test_unknown_fields_survive(client: Client, namespace: str) -> None:
    """Strategic merge into a status subresource, and a field that typed clients may not know."""
    pod = {
        "metadata": {"name": "p", "namespace": namespace},
        "spec": {
            "containers": [
                {
                    "name": "c",
                    "image": "x",
                    "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}],
                }
            ],
            "serviceAccountName": "default",
            "automountServiceAccountToken": False,
        },
    }
    async with asyncio.timeout(PATIENCE):
        async for event in client.watch(
            resources.SERVICE_ACCOUNTS, namespace=namespace, resource_version="0", timeout_seconds=150
        ):
            if event.object.name == "default":
                break
    await client.create(resources.PODS, pod)
    changed = await client.patch(
        resources.PODS,
        "p",
        {"status": {"conditions": [{"type": "example.com/Gate", "status": "True"}]}},
        namespace=namespace,
        subresource="status",
        patch_type=PatchType.STRATEGIC,
    )
    assert {item["type"] for item in changed["status"]["conditions"]} >= {"example.com/Gate"}
    (found,) = (await client.list(resources.PODS, namespace=namespace)).items
    assert found.to_dict()["spec"]["containers"][0]["resizePolicy"]
    assert (found.api_version, found.kind) == ("v1", "Pod")


async def test_server_side_apply(client: Client, namespace: str) -> None:
    """Apply creates, conflicts with another manager's field, and takes it over by force."""
    wanted = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "a", "namespace": namespace},
        "data": {"k": "mine"},
    }

    async def apply(**params: str) -> dict[str, Any]:
        return await client.patch(
            MAPS, "a", wanted, namespace=namespace, patch_type=PatchType.APPLY, params=params
        )

    assert (await apply())["data"] == {"k": "mine"}
    async with Client(client.config, user_agent="other") as other:
        await other.patch(MAPS, "a", {"data": {"k": "theirs"}}, namespace=namespace)
    with pytest.raises(Conflict, match="other"):
        await apply()
    assert (await apply(force="true"))["data"] == {"k": "mine"}


async def test_refusals_are_typed_exceptions(client: Client, namespace: str) -> None:
    body = {"metadata": {"name": "a", "namespace": namespace}}
    made = await client.create(MAPS, body)
    with pytest.raises(AlreadyExists, match='configmaps "a" already exists'):
        await client.create(MAPS, body)
    await client.patch(MAPS, "a", {"data": {"k": "v"}}, namespace=namespace)
    with pytest.raises(Conflict, match="the object has been modified"):
        await client.update(MAPS, made)
    with pytest.raises(Invalid, match=r"metadata\.name: Invalid value") as invalid:
        await client.create(MAPS, {"metadata": {"name": "A_b", "namespace": namespace}})
    assert invalid.value.status["details"]["causes"][0]["field"] == "metadata.name"
    with pytest.raises(BadRequest):
        await client.create(MAPS, {"metadata": "a"}, namespace=namespace)
    with pytest.raises(Conflict, match="the UID in the precondition"):
        await client.delete(MAPS, "a", namespace=namespace, uid="another")
    await client.delete(MAPS, "a", namespace=namespace, uid=made["metadata"]["uid"])


async def test_users_without_rights(cluster: Cluster, token: str, tmp_path: Path) -> None:
    """An invalid token is Unauthorized; a valid one without rights is Forbidden, and may still ping."""
    bad = await kubeconfig.load(kubeconfig_for(cluster, {"token": "x.y.z"}, tmp_path / "bad"))
    async with Client(bad) as client:
        with pytest.raises(Unauthorized):
            await client.get(MAPS, "a", namespace="default")
    nobody = await kubeconfig.load(kubeconfig_for(cluster, {"token": token}, tmp_path / "nobody"))
    async with Client(nobody) as client:
        with pytest.raises(Forbidden, match="nobody"):
            await client.get(MAPS, "a", namespace="default")
        with pytest.raises(Forbidden):
            await client.list(MAPS)
        await client.ping(timeout=60)


async def test_list_in_pages(client: Client, namespace: str) -> None:
    """It equals the list at once, and a watch can start from its version."""
    for number in range(12):
        await client.create(
            MAPS, {"metadata": {"name": f"m{number}", "namespace": namespace, "labels": {"mine": "yes"}}}
        )
    paged = await client.list(MAPS, namespace=namespace, label_selector="mine=yes", page_size=5)
    whole = await client.list(MAPS, namespace=namespace, label_selector="mine", page_size=0)
    assert {item.key for item in paged.items} == {item.key for item in whole.items}
    assert len(paged.items) == len(whole.items) == 12
    one = await client.list(MAPS, namespace=namespace, field_selector="metadata.name=m3")
    assert [item.name for item in one.items] == ["m3"]
    await client.delete(MAPS, "m0", namespace=namespace)
    # By label, because kube-root-ca.crt is created in a new namespace some time later.
    async for event in client.watch(
        MAPS,
        namespace=namespace,
        label_selector="mine=yes",
        resource_version=paged.resource_version,
        timeout_seconds=150,
    ):
        assert (event.type, event.object.name) == ("DELETED", "m0")
        break


async def test_watch_ends_after_its_timeout(client: Client, namespace: str) -> None:
    """It first delivers all events since its version."""
    listed = await client.list(MAPS, namespace=namespace)
    await client.create(MAPS, {"metadata": {"name": "a", "namespace": namespace}})
    await client.delete(MAPS, "a", namespace=namespace)
    events = [
        (event.type, event.object.name)
        async for event in client.watch(
            MAPS,
            namespace=namespace,
            field_selector="metadata.name=a",
            resource_version=listed.resource_version,
            timeout_seconds=3,
            allow_bookmarks=False,
        )
    ]
    assert events == [("ADDED", "a"), ("DELETED", "a")]


async def test_apiserver_restart(cluster: Cluster, client: Client) -> None:
    """Meanwhile requests raise ConnectionFailed; afterwards the same client works.

    The new server has no history, so a watch from an old version is Expired.
    """
    await cluster.apiserver.kill()
    with pytest.raises(ConnectionFailed):
        await client.get(resources.NAMESPACES, "default")
    await cluster.restore()
    assert (await client.get(resources.NAMESPACES, "default"))["kind"] == "Namespace"

    async def follow() -> None:
        async for _ in client.watch(resources.NAMESPACES, resource_version="1", timeout_seconds=10):
            pass

    with pytest.raises(Expired, match="too old resource version"):
        await follow()


def kubeconfig_for(cluster: Cluster, user: dict[str, Any], path: Path) -> str:
    """The cluster's kubeconfig with another user."""
    whole = yaml.safe_load(cluster.kubeconfig.read_text())
    for entry in whole["users"]:
        entry["user"] = user
    path.write_text(yaml.safe_dump(whole))
    return str(path)


def plugin(path: Path, **status: Any) -> dict[str, Any]:
    """An exec user whose program prints this."""
    answer = {"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1", "status": status}
    path.write_text(f"#!{sys.executable}\nprint({json.dumps(json.dumps(answer))})\n")
    path.chmod(0o755)
    return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": f"./{path.name}"}}


async def test_plugin_with_a_token(cluster: Cluster, token: str, tmp_path: Path) -> None:
    """The server sees the user of a credential plugin's token."""
    user = plugin(tmp_path / "plugin", token=token)
    config = await kubeconfig.load(kubeconfig_for(cluster, user, tmp_path / "k"))
    assert await who_am_i(config) == "system:serviceaccount:kube-public:nobody"


async def test_plugin_with_a_certificate(cluster: Cluster, tmp_path: Path) -> None:
    """The server sees the user of a credential plugin's client certificate."""
    own = yaml.safe_load(cluster.kubeconfig.read_text())["users"][0]["user"]

    def pem(name: str) -> str:
        return base64.b64decode(own[f"{name}-data"]).decode()

    user = plugin(
        tmp_path / "plugin",
        clientCertificateData=pem("client-certificate"),
        clientKeyData=pem("client-key"),
    )
    config = await kubeconfig.load(kubeconfig_for(cluster, user, tmp_path / "k"))
    assert await who_am_i(config) == await who_am_i(await kubeconfig.load(str(cluster.kubeconfig)))


async def test_renewed_token_file_is_read_after_a_refusal(
    cluster: Cluster, token: str, tmp_path: Path
) -> None:
    """Within the same request."""
    (tmp_path / "token").write_text("not.good.any-more")
    config = await kubeconfig.load(kubeconfig_for(cluster, {"tokenFile": "token"}, tmp_path / "k"))
    assert await config.headers() == bearer("not.good.any-more")
    (tmp_path / "token").write_text(token)
    assert await who_am_i(config) == "system:serviceaccount:kube-public:nobody"
