"""Pods of a virtual node share a token that is bound to the Node (``identities.tokens: node``)."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from clusterset.model import names
from controller_runtime.apimachinery import timestamps
from tests.fakes.apiserver.storage import Body
from tests.thorough import size
from tests.unit.virtual_node.controllers.cluster import Cluster
from tests.unit.virtual_node.controllers.pod_controller_setup import CLUSTER, Scene, mirroring
from virtual_node.config.types import IdentitiesConfig
from virtual_node.controllers.pods.creator import PodCreator

pytestmark = pytest.mark.looptime

VOLUME = {"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}


class Upper(Cluster):
    """An upper cluster with tokens as a real one issues, which expire after an hour."""

    def __init__(self) -> None:
        super().__init__("upper")
        self.bound: list[dict[str, str]] = []
        """What each token is bound to."""
        self.put("namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}})
        self.recreate("nodes", "vn")
        self.recreate("serviceaccounts", "shop/robot")

    def recreate(self, plural: str, key: str) -> None:
        """Create the object, in place of one that exists."""
        if self.find(plural, key) is not None:
            self.remove(plural, key)
        namespace, _, name = key.rpartition("/")
        self.put(plural, {"metadata": {"name": name, **({"namespace": namespace} if namespace else {})}})

    def uid(self, plural: str, key: str) -> str:
        """Return an object's uid."""
        return str(self.the(plural, key)["metadata"]["uid"])

    async def create(self, *arguments: Any, **options: Any) -> Body:
        if options.get("subresource") != "token":
            return await super().create(*arguments, **options)
        self.bound.append(arguments[1]["spec"]["boundObjectRef"])
        await asyncio.sleep(0.1)
        ours = {
            "node": {"uid": self.uid("nodes", "vn")},
            "serviceaccount": {"uid": self.uid("serviceaccounts", "shop/robot")},
        }
        claims = json.dumps({"jti": len(self.bound), "kubernetes.io": ours}).encode()
        token = f"head.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.signature"
        expires = timestamps.rfc3339(datetime.now(UTC) + timedelta(hours=1))
        return {"status": {"token": token, "expirationTimestamp": expires}}


@contextlib.asynccontextmanager
async def mirrored(upper: Upper, lower: Cluster, *, tokens: str = "node") -> AsyncIterator[Scene]:
    """Run a virtual node."""
    identities = IdentitiesConfig(tokens=tokens)  # type: ignore[arg-type]
    async with mirroring(Scene(upper, lower, enable_serviceaccount=True, identities=identities)) as scene:
        yield scene


def bind(scene: Scene, *pods: str) -> None:
    """Bind pods of one account to the virtual node."""
    for name in pods:
        scene.bind(name, uid=f"u-{name}", serviceAccountName="robot", volumes=[VOLUME])


async def end(scene: Scene, name: str) -> None:
    """Delete a pod in both clusters."""
    scene.upper.remove("pods", f"shop/{name}")
    await asyncio.sleep(2)
    if scene.is_below(name):
        scene.lower.remove("pods", f"shop/{name}")
    await asyncio.sleep(2)


def secrets(lower: Cluster) -> list[str]:
    """Return the names of the lower Secrets."""
    return [body["metadata"]["name"] for body in lower.server.all("secrets")]


async def test_pods_that_start_together_cause_one_token():
    """The Secret belongs to the virtual node, and all pods mount it."""
    upper, lower = Upper(), Cluster("lower")
    async with mirrored(upper, lower) as scene:
        bind(scene, *(f"p-{number}" for number in range(20)))
        await asyncio.sleep(5)
        assert upper.bound == [{"apiVersion": "v1", "kind": "Node", "name": "vn"}]
        [secret] = lower.server.all("secrets")
        labels = secret["metadata"]["labels"]
        assert (labels[names.LABEL_UPPER_CLUSTER], labels[names.LABEL_NODE]) == (CLUSTER, "vn")
        mounted = [
            scene.below(f"p-{number}")["spec"]["volumes"][0]["projected"]["sources"][0]["secret"]["name"]
            for number in range(20)
        ]
        assert mounted == [secret["metadata"]["name"]] * 20


async def test_the_secret_is_deleted_some_time_after_its_last_pod():
    """The next pod of a Job follows a few seconds later and needs no request."""
    upper, lower = Upper(), Cluster("lower")
    async with mirrored(upper, lower) as scene:
        bind(scene, "a", "b")
        await asyncio.sleep(5)
        await end(scene, "a")
        await asyncio.sleep(600)
        await end(scene, "b")
        await asyncio.sleep(30)
        bind(scene, "c")
        await asyncio.sleep(600)
        assert (len(upper.bound), len(secrets(lower))) == (1, 1)
        await end(scene, "c")
        await asyncio.sleep(120)
        assert secrets(lower) == []


async def test_the_token_is_renewed_in_time_and_for_running_pods_only():
    """Finished pods do not read it."""
    upper, lower = Upper(), Cluster("lower")
    async with mirrored(upper, lower) as scene:
        bind(scene, "a")
        await asyncio.sleep(3600)
        assert len(upper.bound) == 2
        lower.change("pods", "shop/a", status={"phase": "Succeeded"})
        await asyncio.sleep(size(3, 12) * 3600)
        assert (len(upper.bound), len(secrets(lower))) == (2, 1)


@pytest.mark.parametrize(
    ("plural", "key", "within"), [("serviceaccounts", "shop/robot", 5), ("nodes", "vn", 90)]
)
async def test_a_recreated_account_or_node_gets_a_new_token_soon(plural, key, within):
    """The old token is invalid, and would be for up to an hour."""
    upper, lower = Upper(), Cluster("lower")
    async with mirrored(upper, lower) as scene:
        bind(scene, "a")
        await asyncio.sleep(100)
        upper.recreate(plural, key)
        await asyncio.sleep(within)
        assert len(upper.bound) == 2


async def test_a_deleted_secret_is_recreated():
    """A pod that starts in that moment waits for it."""
    upper, lower = Upper(), Cluster("lower")
    async with mirrored(upper, lower) as scene:
        bind(scene, "a")
        await asyncio.sleep(5)
        [name] = secrets(lower)
        lower.remove("secrets", f"shop/{name}")
        await asyncio.sleep(5)
        assert secrets(lower) == [name]


@pytest.mark.parametrize(("before", "now"), [("node", "node"), ("node", "pod"), ("pod", "node")])
async def test_running_pods_keep_their_secrets_after_a_restart(before, now):
    """Also when the setting has changed; the Secret is deleted after the pod."""
    upper, lower = Upper(), Cluster("lower")
    async with mirrored(upper, lower, tokens=before) as first:
        bind(first, "a")
        await asyncio.sleep(60)
        [name] = secrets(lower)
    async with mirrored(upper, lower, tokens=now) as second:
        await asyncio.sleep(600)
        assert (len(upper.bound), secrets(lower)) == (1, [name])
        await asyncio.sleep(3000)
        assert (len(upper.bound), secrets(lower)) == (2, [name])
        await end(second, "a")
        await asyncio.sleep(120)
        assert secrets(lower) == []


async def test_secret_of_pods_that_were_not_adopted_is_kept(monkeypatch):
    """A restart with incomplete caches: the pods mount the Secret, and must find the same one until they are gone."""
    upper, lower = Upper(), Cluster("lower")
    async with mirrored(upper, lower) as first:
        bind(first, "a")
        await asyncio.sleep(60)
        uid = lower.server.all("secrets")[0]["metadata"]["uid"]
    monkeypatch.setattr(PodCreator, "found_at_start", lambda *_: None)
    async with mirrored(upper, lower) as second:
        await asyncio.sleep(3600)
        assert [body["metadata"]["uid"] for body in lower.server.all("secrets")] == [uid]
        assert len(upper.bound) == 2
        await end(second, "a")
        await asyncio.sleep(180)
        assert secrets(lower) == []
