"""A token's Secret is ours to write and to delete only when it is seen to be."""

from __future__ import annotations

import asyncio
import json

import pytest

from controller_runtime import resources
from controller_runtime.api import names
from controller_runtime.errors import Conflict, ConnectionFailed
from controller_runtime.objects import from_dict
from tests.unit.virtual_node.controllers.dependencies.token_controller_setup import (
    CLUSTER,
    KEY,
    NAME,
    UID,
    our_labels,
    running,
)

pytestmark = pytest.mark.looptime


async def test_a_secret_of_ours_from_before_a_restart_is_refreshed():
    """It carries our label and the pod's uid, so its content is ours to replace."""
    async with running() as scene:
        scene.lower.put(token="old", **our_labels())
        assert await scene.ensure() == []
        assert scene.lower.token() == "token 1"


@pytest.mark.parametrize(
    "labels",
    [
        {},
        our_labels(**{names.LABEL_UPPER_CLUSTER: "another"}),
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
        scene.lower.put(**our_labels())
        seen = await scene.lower.get(resources.SECRETS, NAME, namespace="shop")
        scene.lower.put()

        async def get(*_arguments, **_options):
            return seen

        scene.lower.get = get  # type: ignore[method-assign]
        with pytest.raises(Conflict):
            await scene.ensure()
        assert scene.lower.token() == "theirs"


async def test_the_secrets_of_another_process_are_its_own_business():
    """Two virtual nodes of two processes share the lower cluster: one that restarts deletes none of the other's."""
    async with running() as scene:
        for node, uid in (("vn", UID), ("another", "99999999-bbbb")):
            labels = our_labels(**{names.LABEL_NODE: node, names.LABEL_TOKEN_OF: uid})
            secret = scene.lower.put(f"web-token-{uid[:8]}", **labels)
            scene.cache._store(from_dict(json.loads(json.dumps(secret))), initial=True)
        del scene.upper.pods[UID]
        await asyncio.sleep(24 * 3600)
        assert scene.lower.deleted == ["s-1"]


async def test_a_secret_whose_pod_went_while_nobody_worked_goes_soon_after_the_start():
    """Not when its tokens would have to be renewed: nobody uses them."""
    async with running() as scene:
        expires = {names.ANNOTATION_TOKEN_EXPIRES: "2099-01-01T00:00:00Z"}
        secret = scene.lower.put(**our_labels(**{names.LABEL_NODE: "vn"}))
        secret["metadata"]["annotations"] = expires
        del scene.upper.pods[UID]
        scene.cache._store(from_dict(json.loads(json.dumps(secret))), initial=True)
        await asyncio.sleep(120)
        assert scene.lower.deleted == ["s-1"]


async def test_a_secret_whose_write_was_not_answered_goes_with_its_pod():
    """Whether it was made nobody has told us; the pod is gone before we try again."""
    async with running() as scene:
        create = scene.lower.create

        async def lose(*what, **where):
            await create(*what, **where)
            raise ConnectionFailed("cut off")

        scene.lower.create = lose  # type: ignore[method-assign]
        with pytest.raises(ConnectionFailed):
            await scene.ensure()
        del scene.upper.pods[UID]
        scene.controller.release(UID)
        await asyncio.sleep(30)
        assert scene.lower.deleted == ["s-1"]


async def test_a_secret_that_a_killed_process_had_on_its_way_goes_when_its_pod_has():
    """It arrives when its successor has read all Secrets already."""
    async with running() as scene:
        del scene.upper.pods[UID]
        secret = scene.lower.put(**our_labels(**{names.LABEL_NODE: "vn"}))
        scene.cache._store(from_dict(json.loads(json.dumps(secret))), initial=False)
        await asyncio.sleep(120)
        assert scene.lower.deleted == ["s-1"]


async def test_a_secret_found_at_start_stays_while_its_pod_runs_below():
    """The cache above may be behind and not show the pod yet: when that is gone is for somebody else to say."""
    async with running() as scene:
        upper = scene.upper.pods.pop(UID)
        scene.mirrored[UID] = upper
        expires = {names.ANNOTATION_TOKEN_EXPIRES: "2099-01-01T00:00:00Z"}
        secret = scene.lower.put(**our_labels(**{names.LABEL_NODE: "vn"}))
        secret["metadata"]["annotations"] = expires
        scene.cache._store(from_dict(json.loads(json.dumps(secret))), initial=True)
        await asyncio.sleep(24 * 3600)
        assert scene.lower.deleted == []
        scene.controller.release(UID)
        await asyncio.sleep(5)
        assert scene.lower.deleted == ["s-1"]


@pytest.mark.parametrize("expires", ["2099-01-01T00:00:00Z", "no time at all"])
async def test_a_users_secret_with_the_label_of_anothers_tokens_keeps_nobody_from_them(expires):
    """The attack (M2): earlier releases copied the label of a user's Secret, and it counted as the victim's."""
    async with running() as scene:
        forged = scene.lower.put("harmless", **our_labels(**{names.LABEL_NODE: "vn"}))
        forged["metadata"]["annotations"] = {names.ANNOTATION_TOKEN_EXPIRES: expires}
        scene.cache._store(from_dict(json.loads(json.dumps(forged))), initial=True)
        assert await scene.ensure() == []
        assert NAME in {secret["metadata"]["name"] for secret in scene.lower.secrets.values()}
        await scene.release()
        assert "shop/harmless" in scene.lower.secrets
