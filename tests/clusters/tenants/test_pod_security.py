"""The presets judge pods as the Pod Security admission of a real API server does."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import pytest
import pytest_asyncio

from clusterset.model.policy.config import Policy, PresetName
from clusterset.model.policy.decision import violations
from clusterset.model.policy.rules import PolicySet
from controller_runtime import resources
from controller_runtime.auth import kubeconfig
from controller_runtime.client.client import Client, PatchType
from controller_runtime.errors import ApiError
from hack.sandbox import Cluster
from tests.clusters.pool import Lend
from tests.generated_pods import generate
from tests.waiting import make_namespace

pytestmark = pytest.mark.e2e
LEVELS = ("baseline", "restricted")
PODS = 400
SEED = 20260722
SAFE = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
DEBUGGERS: dict[str, dict[str, Any]] = {
    "safe": SAFE,
    "bare": {},
    "privileged": {"privileged": True},
    "sys-admin": {**SAFE, "capabilities": {"add": ["SYS_ADMIN"], "drop": ["ALL"]}},
    "traced": {**SAFE, "capabilities": {"add": ["SYS_PTRACE"], "drop": ["ALL"]}},
    "root": {**SAFE, "runAsUser": 0},
    "unconfined": {**SAFE, "seccompProfile": {"type": "Unconfined"}},
}
"""Security contexts of debug containers."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def cluster(alone: Lend) -> AsyncIterator[Cluster]:
    """One cluster, no nodes, a namespace for each level."""
    async with alone() as running:
        for level in LEVELS:
            labels = {
                "pod-security.kubernetes.io/enforce": level,
                "pod-security.kubernetes.io/enforce-version": "v1.34",
            }
            await make_namespace(running.upper, level, labels=labels)
        yield running.upper


@pytest_asyncio.fixture(loop_scope="session")
async def client(cluster: Cluster) -> AsyncIterator[Client]:
    """A client of an administrator."""
    async with Client(await kubeconfig.load(str(cluster.kubeconfig), in_cluster=False)) as made:
        yield made


def _ours(body: dict[str, Any], level: str) -> str:
    # The standards do not limit inline CSI drivers, and have no exception for debug containers.
    preset: PresetName = "baseline" if level == "baseline" else "restricted"
    policy = Policy(preset=preset, csi_drivers=["*"], debug_capabilities=[])
    found = violations(body, PolicySet(policy).of("shop"))
    return "refused" if found else "allowed"


def _admission(error: ApiError | None) -> str:
    """Return the verdict of Pod Security; "invalid" if another check of the API server failed before."""
    if error is None:
        return "allowed"
    return "refused" if "violates PodSecurity" in error.message else "invalid"


async def test_presets_and_pod_security_admission_agree_on_generated_pods(client: Client):
    """Hundreds of pods with random rights, created with dryRun in a namespace of each level."""
    random = Random(SEED)
    bodies = [generate(random) for _ in range(PODS)]
    verdicts: Counter[tuple[str, str]] = Counter()
    limit = asyncio.Semaphore(16)

    async def compare(body: dict[str, Any], level: str) -> dict[str, Any] | None:
        async with limit:
            error = None
            try:
                await client.create(resources.PODS, body, namespace=level, params={"dryRun": "All"})
            except ApiError as caught:
                error = caught
        ours, expected = _ours(body, level), _admission(error)
        verdicts[level, expected] += 1
        if expected in {"invalid", ours}:
            return None
        return {"level": level, "ours": ours, "theirs": expected, "why": error and error.message, "pod": body}

    compared = await asyncio.gather(*(compare(body, level) for body in bodies for level in LEVELS))
    assert [one for one in compared if one] == []
    for level in LEVELS:
        for verdict in ("allowed", "refused"):
            assert verdicts[level, verdict] > PODS / 10, verdicts
        assert verdicts[level, "invalid"] < PODS / 3, verdicts


async def test_presets_and_pod_security_admission_agree_on_debug_containers(client: Client):
    """They are added to existing pods."""
    container = {"name": "main", "image": "busybox", "securityContext": SAFE}
    spec: dict[str, Any] = {"containers": [container]}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": spec}
    for level in LEVELS:
        await client.create(resources.PODS, body, namespace=level)
        for name, context in DEBUGGERS.items():
            added = {"ephemeralContainers": [{"name": name, "image": "busybox", "securityContext": context}]}
            error = None
            try:
                await client.patch(
                    resources.PODS, "web", {"spec": added}, namespace=level, subresource="ephemeralcontainers",
                    patch_type=PatchType.STRATEGIC, params={"dryRun": "All"},
                )  # fmt: skip
            except ApiError as caught:
                error = caught
            judged = {**body, "spec": {**spec, **added}}
            assert (name, _ours(judged, level)) == (name, _admission(error)), error
