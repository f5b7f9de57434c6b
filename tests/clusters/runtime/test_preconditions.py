"""Requests of which unit tests assume the answers, sent to a real API server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from controller_runtime import resources
from controller_runtime.auth import kubeconfig
from controller_runtime.client.client import Client
from controller_runtime.errors import Conflict, Invalid
from tests.clusters.pool import Lend
from tests.fakes.apiserver.case_runner import run
from tests.fakes.apiserver.cases import CASES
from virtual_node.controllers.base.preconditions import patch_only

pytestmark = pytest.mark.e2e


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def client(alone: Lend) -> AsyncIterator[Client]:
    """An administrator's client of a control plane without nodes."""
    async with alone() as sandbox:
        config = await kubeconfig.load(str(sandbox.upper.kubeconfig))
        async with Client(config, cluster="upper", qps=0, user_agent="tester/1") as client:
            yield client


async def test_only_the_object_of_that_uid_is_patched(client):
    """A successor of the same name gives a Conflict."""
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}, "immutable": True}
    made = await client.create(resources.SECRETS, body, namespace="default")
    label = {"metadata": {"labels": {"a": "b"}}}
    successor = {"metadata": {**made["metadata"], "uid": "another"}}
    with pytest.raises(Conflict):
        await patch_only(client, resources.SECRETS, successor, label)
    await patch_only(client, resources.SECRETS, made, label)
    there = await client.get(resources.SECRETS, "a", namespace="default")
    assert there["metadata"]["labels"] == {"a": "b"}
    with pytest.raises(Invalid):
        await patch_only(client, resources.SECRETS, made, {"stringData": {"a": "b"}})


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_real_server_answers_as_the_one_in_memory(case, client):
    """tests/unit/fakes runs the same cases on the server in memory."""
    await run(case, client)
