"""Requests of API servers and schedulers to the webhook, the extender and the kubelet port's authentication."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import msgspec

from controller_runtime.apimachinery import decoding
from controller_runtime.client.limits import CacheBudget
from controller_runtime.errors import ApiError
from multi_scheduler.agent import AgentContext
from multi_scheduler.extender import protocol
from multi_scheduler.extender.extender import Extender, Weighted
from multi_scheduler.virtual_node import VirtualNode
from tests.fuzz.target import MALFORMED, Target
from tests.unit.multi_scheduler.lower_pods import fit_agent, mark_synced
from tests.unit.webhook.pods import VIRTUAL
from virtual_node.kubelet.auth import review_token
from webhook import server
from webhook.server import review_pod, review_workload

_AFFINITY = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
    {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}, {"key": "clusterID", "operator": "Exists"}]},
]}, "preferredDuringSchedulingIgnoredDuringExecution": [
    {"weight": 5, "preference": {"matchExpressions": [{"key": "ssd", "operator": "Exists"}]}}]}}  # fmt: skip
_POD = {
    "metadata": {"name": "web", "namespace": "shop", "uid": "u-1", "labels": {"virtual-pod": "true"}, "annotations": {
        "clusterSelector": '{"nodeSelector": {"gpu": "yes"}}'}},
    "spec": {"nodeSelector": {"a": "b"}, "affinity": _AFFINITY, "tolerations": [{"key": "x", "operator": "Exists"}],
        "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}]},
}  # fmt: skip
_TEMPLATE = {
    "metadata": {"name": "web"},
    "spec": {"template": _POD, "selector": {"matchLabels": {"virtual-pod": "true"}}},
}


def _review(kind: str, subject: dict[str, Any], old: dict[str, Any] | None = None) -> bytes:
    request = {"uid": "r", "operation": "UPDATE" if old else "CREATE", "kind": {"kind": kind}, "namespace": "shop",
               "name": "web", "object": subject, "oldObject": old}  # fmt: skip
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    return json.dumps(review).encode()


_KNOWLEDGE: Any = SimpleNamespace(surroundings=lambda _pod, _namespace: VIRTUAL)


def _checked(answer: bytes) -> None:
    response = msgspec.json.decode(answer)["response"]
    assert response["uid"]
    assert response["allowed"] or response["status"]["message"]


async def _fit(raw: bytes) -> None:
    fake: Any = SimpleNamespace(cluster="test", caches=CacheBudget(0, cluster="test"))
    agent = fit_agent(AgentContext("fit", {}, upper=fake, lower={"a": fake}))
    node = {"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "9"}}}
    agent.state.clusters["a"].index.upsert_node(node)
    mark_synced(agent.state)
    directory: Any = SimpleNamespace(
        wait=AsyncMock(return_value=True),
        find=lambda name, _node: VirtualNode(name, "a", {}, {}) if name.startswith("vn-") else None,
        refusal=lambda _name, _node: "",
    )
    extender = Extender([Weighted("fit", agent, 1.0)], directory, upper=fake)
    asked = protocol.candidates(raw)
    if len(asked.names) > 10:
        return
    answer = await extender.filter(asked)
    protocol.filter_result(asked, answer.passing, answer.failed, answer.unresolvable)
    protocol.priorities(await extender.prioritize(asked))


async def _token_review(raw: bytes) -> None:
    found = decoding.decode(raw)
    if not isinstance(found, dict):
        return  # the client gives objects only
    client: Any = SimpleNamespace(create=AsyncMock(return_value=found))
    user = await review_token(client, "token")
    assert user is None or (user.name and hash(user))


_REQUEST = json.dumps({"Pod": _POD, "NodeNames": ["vn-a", "real"]}).encode()
_TOKEN = {"status": {"authenticated": True, "user": {
    "username": "u", "uid": "1", "groups": ["a"], "extra": {"k": ["v"]}}}}  # fmt: skip

TARGETS = (
    Target("pod-review", lambda raw: _checked(review_pod(server.parse(raw), _KNOWLEDGE.surroundings)), (_review("Pod", _POD),)),
    Target("workload-review", lambda raw: _checked(review_workload(server.parse(raw))), (
        _review("Deployment", _TEMPLATE), _review("Deployment", _TEMPLATE, _TEMPLATE),
        _review("CronJob", {"spec": {"jobTemplate": {"spec": {"template": _POD}}}}))),
    Target("fit", lambda raw: asyncio.run(_fit(raw)), (_REQUEST,), MALFORMED),
    Target("token-review", lambda raw: asyncio.run(_token_review(raw)), (json.dumps(_TOKEN).encode(),), (ValueError, ApiError)),
)  # fmt: skip
