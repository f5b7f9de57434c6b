"""A pod has its tokens as long as it needs them, renewed in time."""

from __future__ import annotations

import asyncio

import pytest

from controller_runtime.api import names
from controller_runtime.errors import NotFound
from tests.unit.virtual_node.controllers.dependencies.token_controller_setup import (
    CLUSTER,
    KEY,
    UID,
    running,
    token_pod,
)

pytestmark = pytest.mark.looptime


async def test_a_pods_tokens_come_and_go_with_it():
    """The Secret is made with our labels, and deleted, that very one, when the pod is gone."""
    async with running() as scene:
        assert await scene.ensure() == []
        labels = scene.lower.secrets[KEY]["metadata"]["labels"]
        assert (labels[names.LABEL_UPPER_CLUSTER], labels[names.LABEL_TOKEN_OF]) == (CLUSTER, UID)
        scene.cached()
        await scene.release()
        assert scene.lower.deleted == ["s-1"]


async def test_a_pod_that_wants_no_token_gets_no_secret():
    """Nothing is asked of either cluster."""
    async with running() as scene:
        bare = {**scene.pod.to_dict(), "spec": {"nodeName": "vn", "containers": []}}
        assert await scene.controller.ensure(scene.pod, bare, scene.options) == []
        assert (scene.upper.tokens, scene.lower.secrets) == (0, {})


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
        scene.upper.pods[UID] = token_pod("Succeeded")
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
