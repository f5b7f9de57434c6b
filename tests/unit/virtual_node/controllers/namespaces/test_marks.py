"""The marks by which an installation knows its lower namespaces."""

from __future__ import annotations

import asyncio

import pytest

from clusterset.model import names
from tests.unit.virtual_node.controllers.pod_controller_setup import CLUSTER, running

pytestmark = pytest.mark.looptime


async def test_a_removed_label_of_a_lower_namespace_is_restored():
    """Without it the namespace is in no cache, so nothing would delete it together with the upper one."""
    async with running() as scene:
        scene.bind()
        await asyncio.sleep(10)
        labels = scene.lower.the("namespaces", "shop")["metadata"]["labels"]
        assert labels[names.LABEL_UPPER_CLUSTER] == CLUSTER
        scene.lower.change("namespaces", "shop", metadata={"labels": {names.LABEL_UPPER_CLUSTER: None}})
        await asyncio.sleep(10)
        labels = scene.lower.the("namespaces", "shop")["metadata"]["labels"]
        assert labels[names.LABEL_UPPER_CLUSTER] == CLUSTER
