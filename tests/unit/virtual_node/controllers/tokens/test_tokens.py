"""A pod has valid tokens for its lifetime, renewed in time."""

from __future__ import annotations

import asyncio

import pytest

from clusterset.model import names
from controller_runtime.errors import NotFound
from tests.fakes.apiserver.client import refusing
from tests.unit.virtual_node.controllers.tokens.token_controller_setup import (
    CLUSTER,
    KEY,
    UID,
    running,
)

pytestmark = pytest.mark.looptime


async def test_a_pods_tokens_are_created_and_deleted_with_it():
    """The Secret has the ownership labels, and is deleted with a uid precondition."""
    async with running() as scene:
        assert await scene.ensure() == []
        labels = scene.lower.the("secrets", KEY)["metadata"]["labels"]
        assert (labels[names.LABEL_UPPER_CLUSTER], labels[names.LABEL_TOKEN_OF]) == (CLUSTER, UID)
        scene.show_secrets()
        await scene.end_pod()
        assert scene.lower.find("secrets", KEY) is None


async def test_a_pod_without_tokens_gets_no_secret():
    """And causes no request."""
    async with running() as scene:
        scene.upper.server.replace("pods", "shop/web", spec={"nodeName": "vn", "containers": []})
        assert await scene.ensure() == []
        assert (scene.upper.tokens, scene.lower.server.all("secrets")) == (0, [])


async def test_a_repeatedly_refused_pod_costs_one_token():
    """A lower quota refuses the pod every ten seconds; its tokens stay valid meanwhile."""
    async with running() as scene:
        await scene.ensure()
        scene.show_secrets()
        for _ in range(20):
            assert await scene.ensure() == []
        assert scene.upper.tokens == 1
        await asyncio.sleep(3600)
        assert scene.upper.tokens == 2


async def test_tokens_created_twice_are_renewed_in_time():
    """A refused pod is retried before the cache shows its Secret: two tokens, two times to renew.

    The earlier time counts, and finds tokens that are valid until the later one.
    """
    async with running() as scene:
        await scene.ensure()
        await asyncio.sleep(5)
        await scene.ensure()
        assert scene.upper.tokens == 2
        scene.show_secrets()
        await asyncio.sleep(3600)
        assert scene.upper.tokens == 3


async def test_tokens_of_a_recreated_secret_are_renewed_in_time():
    """Its new tokens are due later than the old ones were."""
    async with running() as scene:
        await scene.ensure()
        scene.show_secrets()
        await asyncio.sleep(600)
        scene.lower.remove("secrets", KEY)
        scene.show_secrets()
        await asyncio.sleep(5)
        scene.show_secrets()
        assert scene.upper.tokens == 2
        await asyncio.sleep(3000)
        assert scene.upper.tokens == 3


async def test_recreates_a_deleted_token_secret():
    """A pod that starts in that moment waits for it."""
    async with running() as scene:
        await scene.ensure()
        scene.show_secrets()
        scene.lower.remove("secrets", KEY)
        scene.show_secrets()
        await asyncio.sleep(5)
        assert scene.token() == "token 2"


async def test_a_finished_pod_needs_no_new_tokens():
    """Thousands of kept pods of Jobs cause no requests."""
    async with running() as scene:
        await scene.ensure()
        scene.show_secrets()
        scene.put_pod("Succeeded")
        await asyncio.sleep(24 * 3600)
        assert scene.upper.tokens == 1


async def test_a_missing_account_is_reported_like_by_a_kubelet():
    """In the event of the waiting pod."""
    async with running() as scene:
        refusal = NotFound('serviceaccounts "robot" not found', code=404)
        scene.upper.fault = refusing(refusal, "serviceaccounts/token")
        (problem,) = await scene.problems()
        assert problem.event_reason == "FailedMount"
        assert problem.message == (
            'MountVolume.SetUp failed for volume "kube-api-access-x" : '
            'failed to fetch token: serviceaccounts "robot" not found'
        )
