"""The controller of pods' tokens between two clusters in memory."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import structlog

from controller_runtime import resources
from controller_runtime.api import names, timestamps
from controller_runtime.api.namespace_map import NamespaceMap
from controller_runtime.cache.informer import Informer
from controller_runtime.errors import AlreadyExists, Conflict, Invalid, NotFound
from controller_runtime.objects import Object, from_dict
from tests.unit.background import working
from virtual_node.controllers.dependencies.service_account_tokens import IdentityController
from virtual_node.translate.base.options import PodOptions
from virtual_node.translate.base.ownership import Owner

CLUSTER, UID = "upper-1", "12345678-aaaa"


NAME = "web-token-12345678"


KEY = f"shop/{NAME}"


class Upper:
    """An upper apiserver that only issues tokens."""

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
        """Create a Secret, unmanaged unless the labels differ."""
        self._made += 1
        metadata = {
            "name": name, "namespace": "shop", "uid": f"s-{self._made}", "resourceVersion": "1", "labels": labels,
        }  # fmt: skip
        data = {"token-0": base64.b64encode(token.encode()).decode()}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}
        self.secrets[f"shop/{name}"] = secret
        return secret

    def token(self) -> str:
        """Return the content of the pod's Secret."""
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
    """A token controller between two fake clusters, and one upper pod."""

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
            lower_namespace=self.options.namespace_map,
        )  # fmt: skip
        self.cache = Informer(client, resources.SECRETS)
        self.mirrored: dict[str, Object] = {}
        """Lower pods, by the uid of the upper ones."""
        self.controller = IdentityController(
            context, secrets=self.cache, find_upper=self.upper.pods.get, find_lower=self.mirrored.get
        )
        self.pod = token_pod()
        self.upper.pods[UID] = self.pod

    async def ensure(self) -> list[str]:
        """Request the pod's tokens; return the problems."""
        found = await self.controller.ensure(self.pod, self.pod.to_dict(), self.options)
        return [problem.event_reason for problem in found]

    def cached(self) -> None:
        """Update the cache with the Secret."""
        self.cache.store.put(KEY, from_dict(json.loads(json.dumps(self.lower.secrets[KEY]))))

    async def release(self) -> None:
        """End the upper pod."""
        del self.upper.pods[UID]
        self.controller.forget_pod(UID)
        await asyncio.sleep(5)


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[Scene]:
    """Run a controller. Not a fixture, because fixtures run outside of virtual time."""
    made = Scene()
    async with working(made.controller.run()):
        yield made


def token_pod(phase: str = "Running") -> Object:
    """Return an upper pod that mounts a token."""
    source = {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}}
    spec = {
        "nodeName": "vn", "serviceAccountName": "robot", "containers": [],
        "volumes": [{"name": "kube-api-access-x", "projected": {"sources": [source]}}],
    }  # fmt: skip
    metadata = {"name": "web", "namespace": "shop", "uid": UID, "resourceVersion": "1"}
    return from_dict(
        {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": phase}}
    )


def our_labels(**changed: str) -> dict[str, str]:
    """Return the labels of a Secret with that pod's tokens."""
    return {names.LABEL_UPPER_CLUSTER: CLUSTER, names.LABEL_TOKEN_OF: UID, **changed}
