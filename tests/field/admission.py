"""A mutating admission webhook for the pods of one namespace of a sandbox's cluster."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from aiohttp import web

from controller_runtime.tls.key_pairs import self_signed
from hack.sandbox import Cluster
from hack.sandbox.cluster import LOOPBACK
from tests.serving import served, server_context

WEBHOOK = "gate.example.com"
_API = "admissionregistration.k8s.io/v1"


Change = Callable[[Mapping[str, Any]], Sequence[dict[str, Any]]]
"""Returns the JSON patch of a pod."""
Refusal = Callable[[Mapping[str, Any]], str]
"""Returns why a pod is refused; empty: it is accepted."""


@contextlib.asynccontextmanager
async def admission_webhook(
    cluster: Cluster,
    namespace: str,
    *,
    patch: Sequence[dict[str, Any]] | Change = (),
    refusal: str | Refusal = "",
) -> AsyncIterator[None]:
    """Change or refuse each new pod of a namespace until the block ends.

    Args:
        cluster: its API server calls the webhook.
        namespace: the namespace, which exists.
        patch: JSON patch of the pods, or a function that returns that of a pod.
        refusal: why they are refused, or a function that returns that of a pod; empty: they are accepted.
    """

    async def review(request: web.Request) -> web.Response:
        asked = (await request.json())["request"]
        why = refusal(asked["object"]) if callable(refusal) else refusal
        answer: dict[str, Any] = {"uid": asked["uid"], "allowed": not why, "status": {"message": why}}
        if changes := patch(asked["object"]) if callable(patch) else patch:
            encoded = base64.b64encode(json.dumps(list(changes)).encode()).decode()
            answer |= {"patchType": "JSONPatch", "patch": encoded}
        body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer}
        return web.json_response(body)

    pair = self_signed("webhook", hosts=[LOOPBACK])
    async with served(web.post("/", review), address=LOOPBACK, tls=server_context(pair)) as port:
        client = {
            "url": f"https://{LOOPBACK}:{port}/",
            "caBundle": base64.b64encode(pair.certificate).decode(),
        }
        configuration = {
            "apiVersion": _API,
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": namespace},
            "webhooks": [
                {
                    "name": WEBHOOK,
                    "admissionReviewVersions": ["v1"],
                    "sideEffects": "None",
                    "clientConfig": client,
                    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
                    "rules": [
                        {
                            "apiGroups": [""],
                            "apiVersions": ["v1"],
                            "resources": ["pods"],
                            "operations": ["CREATE"],
                        }
                    ],
                }
            ],
        }
        await cluster.kubectl("create", "-f", "-", input=json.dumps(configuration))
        try:
            yield
        finally:
            await cluster.kubectl("delete", "mutatingwebhookconfiguration", namespace)
