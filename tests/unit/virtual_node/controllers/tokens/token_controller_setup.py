"""The controller of pods' tokens between two clusters in memory. Its cache of lower Secrets is updated on request."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

from clusterset.model import names
from controller_runtime.apimachinery import timestamps
from tests.background import working
from tests.fakes.apiserver.storage import Body
from tests.unit.virtual_node.controllers import pod_controller_setup
from tests.unit.virtual_node.controllers.cluster import Cluster
from virtual_node.controllers.base.problems import Problem

CLUSTER, UID = pod_controller_setup.CLUSTER, "12345678-aaaa"
NAME = "web-token-12345678"
KEY = f"shop/{NAME}"


class Upper(Cluster):
    """An upper cluster whose tokens have numbers and expire after an hour."""

    tokens = 0

    async def create(self, *arguments: Any, **options: Any) -> Body:
        answer = await super().create(*arguments, **options)
        if options.get("subresource") == "token":
            self.tokens += 1
            expires = timestamps.rfc3339(datetime.now(UTC) + timedelta(hours=1))
            answer["status"] = {"token": f"token {self.tokens}", "expirationTimestamp": expires}
        return answer


class Scene(pod_controller_setup.Scene):
    """A token controller, its two clusters, and one upper pod."""

    upper: Upper

    def __init__(self) -> None:
        super().__init__(Upper("upper"), Cluster("lower"), enable_serviceaccount=True)
        self.lower.put("namespaces", pod_controller_setup.lower_namespace())
        self.lower.held.add("secrets")
        self.upper.feed(self.caches.upper["vn"])
        self.lower.feed(self.all_caches.lower_namespaces, self.all_caches.secrets, self.caches.lower)
        self.put_pod()

    def put_pod(self, phase: str = "Running") -> None:
        """Create the upper pod, which mounts a token, or change its phase."""
        source = {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}}
        volume = {"name": "kube-api-access-x", "projected": {"sources": [source]}}
        pod = pod_controller_setup.pod(
            "web", uid=UID, nodeName="vn", serviceAccountName="robot", volumes=[volume]
        )
        self.upper.put("pods", {**pod, "status": {"phase": phase}})

    def put_secret(
        self, name: str = NAME, *, token: str = "theirs", expires: str = "", **labels: str
    ) -> None:
        """Create or replace a lower Secret, unmanaged unless the labels differ."""
        data = {"token-0": base64.b64encode(token.encode()).decode()}
        annotations = {names.ANNOTATION_TOKEN_EXPIRES: expires} if expires else {}
        metadata = {"name": name, "namespace": "shop", "labels": labels, "annotations": annotations}
        self.lower.put("secrets", {"metadata": metadata, "data": data})

    def token(self) -> str:
        """Return the content of the pod's Secret; empty: it does not exist."""
        secret = self.lower.find("secrets", KEY)
        return base64.b64decode(secret["data"]["token-0"]).decode() if secret else ""

    async def problems(self) -> list[Problem]:
        """Request the pod's tokens; return the problems."""
        pod = self.caches.upper_pod(UID)
        assert pod is not None
        return await self.identities.ensure(pod, pod.to_dict(), self.context.options["vn"])

    async def ensure(self) -> list[str]:
        """Request the pod's tokens; return the reasons of the problems."""
        return [problem.event_reason for problem in await self.problems()]

    def show_secrets(self) -> None:
        """Update the cache of lower Secrets."""
        self.lower.release("secrets")
        self.lower.held.add("secrets")

    async def end_pod(self) -> None:
        """Delete the upper pod, and wait for the controller."""
        self.upper.remove("pods", "shop/web")
        self.identities.forget_pod(UID)
        await asyncio.sleep(5)


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[Scene]:
    """Run a controller. Not a fixture, because fixtures run outside of virtual time."""
    made = Scene()
    async with working(made.identities.controller.run()):
        yield made


def our_labels(**changed: str) -> dict[str, str]:
    """Return the labels of a Secret with that pod's tokens."""
    return {names.LABEL_UPPER_CLUSTER: CLUSTER, names.LABEL_TOKEN_OF: UID, **changed}
