"""A token's Secret is written and deleted only after its ownership is verified."""

from __future__ import annotations

import asyncio
from unittest.mock import AsyncMock

import pytest

from clusterset.model import names
from controller_runtime.errors import Conflict, ConnectionFailed
from tests.unit.virtual_node.controllers.pod_controller_setup import lower_pod
from tests.unit.virtual_node.controllers.tokens.token_controller_setup import (
    CLUSTER,
    KEY,
    UID,
    our_labels,
    running,
)

pytestmark = pytest.mark.looptime
LATER = "2099-01-01T00:00:00Z"


async def test_an_own_secret_from_before_a_restart_is_refreshed():
    """It has the ownership label and the pod's uid."""
    async with running() as scene:
        scene.put_secret(token="old", **our_labels())
        assert await scene.ensure() == []
        assert scene.token() == "token 1"


@pytest.mark.parametrize(
    "labels",
    [
        {},
        our_labels(**{names.LABEL_UPPER_CLUSTER: "another"}),
        {names.LABEL_UPPER_CLUSTER: CLUSTER, names.LABEL_UPPER_UID: "u"},
    ],
    ids=["a stranger's", "another upper cluster's", "our copy of a Secret of that name"],
)
async def test_a_secret_of_others_is_never_overwritten(labels):
    """The pod gets the reason why it waits, and the Secret stays, also after further tries."""
    async with running() as scene:
        scene.put_secret(**labels)
        for _ in range(3):
            assert await scene.ensure() == ["DependencyConflict"]
        assert scene.token() == "theirs"
        assert scene.upper.tokens == 1  # no further useless token is made
        scene.lower.remove("secrets", KEY)
        assert await scene.ensure() == []
        assert scene.token() == "token 2"


async def test_a_secret_of_others_is_never_deleted():
    """Another user may create a Secret with the name of a deleted one."""
    async with running() as scene:
        await scene.ensure()
        scene.put_secret()
        await scene.end_pod()
        assert scene.token() == "theirs"


async def test_a_stale_cache_does_not_delete_a_secret_of_others():
    """The cache still shows the own one; the uid precondition protects the new one, and the next read shows it."""
    async with running() as scene:
        await scene.ensure()
        scene.show_secrets()
        scene.put_secret()
        await scene.end_pod()
        assert scene.token() == "theirs"
        scene.show_secrets()
        await asyncio.sleep(60)
        assert scene.token() == "theirs"


async def test_a_secret_that_is_too_new_for_the_cache_is_deleted():
    """A pod that ends at once leaves no token."""
    async with running() as scene:
        await scene.ensure()
        await scene.end_pod()
        assert scene.lower.find("secrets", KEY) is None


async def test_a_running_pod_with_a_replaced_secret_gets_one_event():
    """At the next refresh the event says that the tokens cannot be renewed; once, not every minute."""
    async with running() as scene:
        await scene.ensure()
        scene.put_secret()
        await asyncio.sleep(2 * 3600)
        assert [reason for reason, _ in scene.events] == ["DependencyConflict"]
        assert KEY in scene.events[0][1]
        assert scene.token() == "theirs"


async def test_a_secret_replaced_between_read_and_write_is_left_alone():
    """The patch has the uid that was read; the API server refuses it for the successor."""
    async with running() as scene:
        scene.put_secret(**our_labels())
        seen = scene.lower.the("secrets", KEY)
        scene.put_secret()
        scene.lower.get = AsyncMock(return_value=seen)  # type: ignore[method-assign]
        with pytest.raises(Conflict):
            await scene.ensure()
        assert scene.token() == "theirs"


async def test_secrets_of_another_process_are_left_alone():
    """Two virtual nodes of two processes share the lower cluster: one that restarts deletes none of the other's."""
    async with running() as scene:
        for node, uid in (("vn", UID), ("another", "99999999-bbbb")):
            labels = our_labels(**{names.LABEL_NODE: node, names.LABEL_TOKEN_OF: uid})
            scene.put_secret(f"web-token-{uid[:8]}", **labels)
        scene.show_secrets()
        scene.upper.remove("pods", "shop/web")
        await asyncio.sleep(24 * 3600)
        assert list(scene.lower.server.objects["secrets"]) == ["shop/web-token-99999999"]


async def test_a_secret_of_a_pod_deleted_during_downtime_is_deleted_soon():
    """Not only when its tokens would have to be renewed."""
    async with running() as scene:
        scene.put_secret(expires=LATER, **our_labels(**{names.LABEL_NODE: "vn"}))
        scene.upper.remove("pods", "shop/web")
        scene.show_secrets()
        await asyncio.sleep(120)
        assert scene.lower.find("secrets", KEY) is None


async def test_a_secret_with_an_unanswered_write_is_deleted_with_its_pod():
    """It may exist; the pod is deleted before the retry."""
    async with running() as scene:
        create = scene.lower.create

        async def lose(*what, **where):
            await create(*what, **where)
            raise ConnectionFailed("cut off")

        scene.lower.create = lose  # type: ignore[method-assign]
        with pytest.raises(ConnectionFailed):
            await scene.ensure()
        await scene.end_pod()
        await asyncio.sleep(25)
        assert scene.lower.find("secrets", KEY) is None


async def test_a_late_secret_of_a_killed_process_is_deleted_after_its_pod():
    """It is created after the successor has listed all Secrets."""
    async with running() as scene:
        scene.upper.remove("pods", "shop/web")
        scene.put_secret(**our_labels(**{names.LABEL_NODE: "vn"}))
        scene.show_secrets()
        await asyncio.sleep(120)
        assert scene.lower.find("secrets", KEY) is None


async def test_a_secret_found_at_start_stays_while_its_lower_pod_runs():
    """The upper cache may be behind and not show the pod yet, so its absence is no proof."""
    async with running() as scene:
        scene.upper.remove("pods", "shop/web")
        scene.lower.put("pods", lower_pod(UID))
        scene.put_secret(expires=LATER, **our_labels(**{names.LABEL_NODE: "vn"}))
        scene.show_secrets()
        await asyncio.sleep(24 * 3600)
        assert scene.token() == "theirs"
        scene.identities.forget_pod(UID)
        await asyncio.sleep(5)
        assert scene.lower.find("secrets", KEY) is None


@pytest.mark.parametrize("expires", [LATER, "no time at all"])
async def test_a_users_secret_labelled_as_anothers_tokens_has_no_effect(expires):
    """The attack (M2): earlier releases copied the label of a user's Secret, and it counted as the victim's."""
    async with running() as scene:
        scene.put_secret("harmless", expires=expires, **our_labels(**{names.LABEL_NODE: "vn"}))
        scene.show_secrets()
        assert await scene.ensure() == []
        assert scene.token() == "token 1"
        await scene.end_pod()
        assert list(scene.lower.server.objects["secrets"]) == ["shop/harmless"]
