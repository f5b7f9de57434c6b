"""Token Secrets below: made, refreshed and removed for their pod, and never at the cost of somebody else's."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from controller_runtime import resources
from controller_runtime.api import names, timestamps
from controller_runtime.api.namespace_map import NamespaceMap
from controller_runtime.errors import AlreadyExists, Conflict, Invalid, NotFound
from controller_runtime.informer import Informer
from controller_runtime.objects import Object, from_dict
from tests.unit.background import working
from virtual_node.controllers.identities import IdentityController
from virtual_node.translate.ownership import Owner
from virtual_node.translate.pod_down import PodOptions

pytestmark = pytest.mark.looptime

CLUSTER, UID = "upper-1", "12345678-aaaa"
NAME = "web-token-12345678"
KEY = f"shop/{NAME}"


class Upper:
    """An upper apiserver that only makes tokens."""

    cluster = "upper"

    def __init__(self) -> None:
        self.tokens = 0
        self.refusal: Exception | None = None
        self.pods: dict[str, Object] = {}

    async def create(self, _resource, _body, *, namespace, name, subresource):
        assert (namespace, name, subresource) == ("shop", "robot", "token")
        if self.refusal is not None:
            raise self.refusal
        self.tokens += 1
        expires = timestamps.rfc3339(datetime.now(UTC) + timedelta(hours=1))
        return {"status": {"token": f"token {self.tokens}", "expirationTimestamp": expires}}


class Lower:
    """A lower apiserver: Secrets by key, with uids that count, and the preconditions of a real one."""

    cluster = "lower"

    def __init__(self) -> None:
        self.secrets: dict[str, dict[str, Any]] = {}
        self.deleted: list[str] = []
        self._made = 0

    def put(self, name: str = NAME, *, token: str = "theirs", **labels: str) -> dict[str, Any]:
        """Have a Secret there, somebody else's unless the labels say otherwise."""
        self._made += 1
        metadata = {
            "name": name, "namespace": "shop", "uid": f"s-{self._made}", "resourceVersion": "1", "labels": labels,
        }  # fmt: skip
        data = {"token-0": base64.b64encode(token.encode()).decode()}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}
        self.secrets[f"shop/{name}"] = secret
        return secret

    def token(self) -> str:
        """What the pod's Secret holds."""
        return base64.b64decode(self.secrets[KEY]["data"]["token-0"]).decode()

    async def get(self, _resource, name, *, namespace):
        try:
            return json.loads(json.dumps(self.secrets[f"{namespace}/{name}"]))
        except KeyError:
            raise NotFound("not found") from None

    async def create(self, _resource, body, *, namespace):
        metadata = body["metadata"]
        if f"{namespace}/{metadata['name']}" in self.secrets:
            raise AlreadyExists("exists")
        made = self.put(metadata["name"], **metadata["labels"])
        made["data"], made["metadata"]["annotations"] = body["data"], metadata["annotations"]

    async def patch(self, _resource, name, patch, *, namespace):
        there = self.secrets[f"{namespace}/{name}"]
        if patch["metadata"]["uid"] != there["metadata"]["uid"]:
            raise Invalid("immutable", status={"details": {"causes": [{"field": "metadata.uid"}]}})
        there["data"] |= patch["data"]

    async def delete(self, _resource, name, *, namespace, uid):
        if self.secrets[f"{namespace}/{name}"]["metadata"]["uid"] != uid:
            raise Conflict("the UID in the precondition does not match")
        del self.secrets[f"{namespace}/{name}"]
        self.deleted.append(uid)


class Scene:
    """An identity controller between two fakes, and one pod above."""

    def __init__(self) -> None:
        self.upper, self.lower = Upper(), Lower()
        self.events: list[tuple[str, str]] = []
        client: Any = self.lower
        self.options = PodOptions(
            owner=Owner(CLUSTER, "vn"), namespace_map=NamespaceMap(), service_accounts=True
        )
        recorder = SimpleNamespace(
            event=lambda _involved, _kind, reason, message: self.events.append((reason, message))
        )
        context: Any = SimpleNamespace(
            name="lower1", cluster_id=CLUSTER, upper=self.upper, lower=client, recorder=recorder,
            options={"vn": self.options}, nodes={"vn": None}, log=structlog.get_logger(),
        )  # fmt: skip
        self.cache = Informer(client, resources.SECRETS)
        self.controller = IdentityController(context, secrets=self.cache, find_upper=self.upper.pods.get)
        self.pod = _pod()
        self.upper.pods[UID] = self.pod

    async def ensure(self) -> list[str]:
        """Ask for the pod's tokens; the reasons why not."""
        found = await self.controller.ensure(self.pod, self.pod.to_dict(), self.options)
        return [problem.event_reason for problem in found]

    def cached(self) -> None:
        """The cache catches up with the Secret."""
        self.cache.store.put(KEY, from_dict(json.loads(json.dumps(self.lower.secrets[KEY]))))

    async def release(self) -> None:
        """The pod ends above."""
        del self.upper.pods[UID]
        self.controller.release(UID)
        await asyncio.sleep(5)


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[Scene]:
    """A controller that runs. Not a fixture: those live outside of virtual time."""
    made = Scene()
    async with working(made.controller.run()):
        yield made


def _pod(phase: str = "Running") -> Object:
    source = {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}}
    spec = {
        "nodeName": "vn", "serviceAccountName": "robot", "containers": [],
        "volumes": [{"name": "kube-api-access-x", "projected": {"sources": [source]}}],
    }  # fmt: skip
    metadata = {"name": "web", "namespace": "shop", "uid": UID, "resourceVersion": "1"}
    return from_dict(
        {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": phase}}
    )


def _ours(**changed: str) -> dict[str, str]:
    return {names.LABEL_UPPER_CLUSTER: CLUSTER, names.LABEL_TOKEN_OF: UID, **changed}


async def test_a_pods_tokens_come_and_go_with_it():
    """The Secret is made with our labels, and deleted, that very one, when the pod is gone."""
    async with running() as scene:
        assert await scene.ensure() == []
        labels = scene.lower.secrets[KEY]["metadata"]["labels"]
        assert (labels[names.LABEL_UPPER_CLUSTER], labels[names.LABEL_TOKEN_OF]) == (CLUSTER, UID)
        scene.cached()
        await scene.release()
        assert scene.lower.deleted == ["s-1"]


async def test_a_secret_of_ours_from_before_a_restart_is_refreshed():
    """It carries our label and the pod's uid, so its content is ours to replace."""
    async with running() as scene:
        scene.lower.put(token="old", **_ours())
        assert await scene.ensure() == []
        assert scene.lower.token() == "token 1"


@pytest.mark.parametrize(
    "labels",
    [
        {},
        _ours(**{names.LABEL_UPPER_CLUSTER: "another"}),
        {names.LABEL_UPPER_CLUSTER: CLUSTER, names.LABEL_UPPER_UID: "u"},
    ],
    ids=["a stranger's", "another upper cluster's", "our copy of a Secret of that name"],
)
async def test_a_secret_that_is_not_the_pods_is_never_overwritten(labels):
    """The pod is told why it has to wait, and what is there stays as it is, also on the next tries."""
    async with running() as scene:
        scene.lower.put(**labels)
        for _ in range(3):
            assert await scene.ensure() == ["DependencyConflict"]
        assert scene.lower.token() == "theirs"
        assert scene.upper.tokens == 1  # no further token is made that could go nowhere
        del scene.lower.secrets[KEY]
        assert await scene.ensure() == []
        assert scene.lower.token() == "token 2"


async def test_a_secret_that_is_not_the_pods_is_never_deleted():
    """A stranger who took the name after ours had gone keeps his Secret when the pod ends."""
    async with running() as scene:
        await scene.ensure()
        scene.lower.put()
        await scene.release()
        assert scene.lower.deleted == []
        assert scene.lower.token() == "theirs"


async def test_a_stale_cache_does_not_delete_a_strangers_secret():
    """The cache still shows ours; the uid in the precondition keeps the new one safe, and the next look knows."""
    async with running() as scene:
        await scene.ensure()
        scene.cached()
        scene.lower.put()
        await scene.release()
        assert scene.lower.deleted == []
        scene.cache.store.remove(KEY)
        await asyncio.sleep(60)
        assert (scene.lower.deleted, scene.lower.token()) == ([], "theirs")


async def test_a_secret_that_is_too_new_for_the_cache_goes_too():
    """A pod that ends at once leaves no token behind."""
    async with running() as scene:
        await scene.ensure()
        await scene.release()
        assert scene.lower.deleted == ["s-1"]


async def test_a_running_pod_whose_secret_was_replaced_gets_one_event():
    """At the next refresh its owner learns that the tokens cannot be renewed; once, not every minute."""
    async with running() as scene:
        await scene.ensure()
        scene.lower.put()
        await asyncio.sleep(2 * 3600)
        assert [reason for reason, _ in scene.events] == ["DependencyConflict"]
        assert KEY in scene.events[0][1]
        assert scene.lower.token() == "theirs"


async def test_a_secret_that_is_replaced_between_look_and_write_is_left_alone():
    """The patch names the uid that was looked at; the API server refuses it for the successor."""
    async with running() as scene:
        scene.lower.put(**_ours())
        seen = await scene.lower.get(resources.SECRETS, NAME, namespace="shop")
        scene.lower.put()

        async def get(*_arguments, **_options):
            return seen

        scene.lower.get = get  # type: ignore[method-assign]
        with pytest.raises(Conflict):
            await scene.ensure()
        assert scene.lower.token() == "theirs"


async def test_a_pod_that_wants_no_token_gets_no_secret():
    """Nothing is asked of either cluster."""
    async with running() as scene:
        bare = {**scene.pod.to_dict(), "spec": {"nodeName": "vn", "containers": []}}
        assert await scene.controller.ensure(scene.pod, bare, scene.options) == []
        assert (scene.upper.tokens, scene.lower.secrets) == (0, {})


async def test_the_secrets_of_another_process_are_its_own_business():
    """Two virtual nodes of two processes share the lower cluster: one that restarts deletes none of the other's."""
    async with running() as scene:
        for node, uid in (("vn", UID), ("another", "99999999-bbbb")):
            labels = _ours(**{names.LABEL_NODE: node, names.LABEL_TOKEN_OF: uid})
            secret = scene.lower.put(f"web-token-{uid[:8]}", **labels)
            scene.cache._store(from_dict(json.loads(json.dumps(secret))), initial=True)
        del scene.upper.pods[UID]
        await asyncio.sleep(24 * 3600)
        assert scene.lower.deleted == ["s-1"]


async def test_a_pod_that_is_tried_again_and_again_costs_one_token():
    """A quota below refuses the pod every ten seconds; its tokens stay good meanwhile."""
    async with running() as scene:
        await scene.ensure()
        scene.cached()
        for _ in range(20):
            assert await scene.ensure() == []
        assert scene.upper.tokens == 1
        await asyncio.sleep(3600)
        assert scene.upper.tokens == 2


async def test_tokens_that_were_made_twice_in_a_row_are_renewed_in_time():
    """A pod that is refused below is tried again before the cache shows its Secret: two tokens, two times to renew.

    The earlier time counts, and finds tokens that are good until the later one.
    """
    async with running() as scene:
        await scene.ensure()
        await asyncio.sleep(5)
        await scene.ensure()
        assert scene.upper.tokens == 2
        scene.cached()
        await asyncio.sleep(3600)
        assert scene.upper.tokens == 3


async def test_tokens_of_a_secret_that_came_back_are_renewed_in_time():
    """Its new tokens are due later than the old ones were."""
    async with running() as scene:
        await scene.ensure()
        scene.cached()
        await asyncio.sleep(600)
        del scene.lower.secrets[KEY]
        scene.cache._remove(KEY, None)
        await asyncio.sleep(5)
        scene.cached()
        assert scene.upper.tokens == 2
        await asyncio.sleep(3000)
        assert scene.upper.tokens == 3


async def test_a_secret_that_somebody_deletes_comes_back():
    """A pod that starts below in that moment waits for it."""
    async with running() as scene:
        await scene.ensure()
        scene.cached()
        del scene.lower.secrets[KEY]
        scene.cache._remove(KEY, None)
        await asyncio.sleep(5)
        assert scene.lower.token() == "token 2"


async def test_a_finished_pod_needs_no_new_tokens():
    """Thousands of Jobs' pods that are kept to be read ask the upper cluster for nothing."""
    async with running() as scene:
        await scene.ensure()
        scene.cached()
        scene.upper.pods[UID] = _pod("Succeeded")
        await asyncio.sleep(24 * 3600)
        assert scene.upper.tokens == 1


async def test_a_missing_account_is_told_in_the_kubelets_words():
    """The user reads what is missing, where it is missing, on the pod that waits for it."""
    async with running() as scene:
        scene.upper.refusal = NotFound('serviceaccounts "robot" not found', code=404)
        (problem,) = await scene.controller.ensure(scene.pod, scene.pod.to_dict(), scene.options)
        assert problem.event_reason == "FailedMount"
        assert problem.message == (
            'MountVolume.SetUp failed for volume "kube-api-access-x" : '
            'failed to fetch token: serviceaccounts "robot" not found'
        )
