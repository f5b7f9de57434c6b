"""The key in a Secret: written once, the same for every process, and clear errors where it is unavailable."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest

from controller_runtime.auth.secret_key import SecretKey
from controller_runtime.errors import ConfigError, Forbidden
from tests.fakes.apiserver.client import MemoryClient
from tests.fakes.apiserver.server import Server


class Cluster(MemoryClient):
    """An API server, perhaps with the Secret; it refuses some verbs, and other processes run during each request."""

    def __init__(self, secret: dict[str, Any] | None = None, *, forbidden: str = "") -> None:
        super().__init__(Server(namespaces=["ns"]))
        if secret is not None:
            self.server.put("secrets", secret)
        error = Forbidden("no right to secrets", code=403)
        self.fault = lambda verb, _plural, _key: error if verb == forbidden else None
        self.before = self.server.version

    async def send(self, *request: Any, **options: Any) -> Any:
        await asyncio.sleep(0)
        return await super().send(*request, **options)

    @property
    def secret(self) -> dict[str, Any]:
        return self.server.get("secrets", "ns/key")

    @property
    def writes(self) -> int:
        return self.server.version - self.before


def _key(cluster: Any) -> SecretKey:
    return SecretKey(cluster, namespace="ns", name="key")


def _empty() -> dict[str, Any]:
    """Return the Secret as the chart makes it, with an unrelated field."""
    return {"metadata": {"name": "key", "namespace": "ns", "resourceVersion": "7"}, "data": {"note": "eA=="}}


@pytest.mark.parametrize("secret", [None, _empty()], ids=["no Secret", "empty Secret"])
async def test_writes_one_random_key_for_all_processes(secret):
    """Processes that start together all read the same key of 32 bytes; it is written once."""
    cluster = Cluster(secret)
    keys = await asyncio.gather(*(_key(cluster).read() for _ in range(5)))
    assert {len(key) for key in keys} == {32}
    assert len(set(keys)) == 1
    assert cluster.writes == 1
    assert (await _key(Cluster()).read()) != keys[0]


async def test_keeps_other_data_of_the_secret():
    cluster = Cluster(_empty())
    await _key(cluster).read()
    assert cluster.secret["data"]["note"] == "eA=="


async def test_needs_no_permission_to_create_if_the_secret_exists():
    """The chart makes the Secret, so that get and update on one name suffice."""
    assert len(await _key(Cluster(_empty(), forbidden="create")).read()) == 32


@pytest.mark.parametrize(
    ("secret", "verb"),
    [(None, "get"), (None, "create"), (_empty(), "update")],
    ids=["get", "create", "update"],
)
async def test_missing_permission_is_an_error_with_the_command(secret, verb):
    """The text names the Secret and the command that makes it."""
    with pytest.raises(ConfigError, match="kubectl -n ns create secret generic key"):
        await _key(Cluster(secret, forbidden=verb)).read()


@pytest.mark.parametrize("held", ["bm90IGEga2V5", "???"], ids=["too short", "not base64"])
async def test_content_that_is_no_key_is_not_replaced(held):
    """A new key would invalidate all hashes of the old one, so an administrator decides."""
    cluster = Cluster({**_empty(), "data": {"key": held}})
    with pytest.raises(ConfigError, match=r"data\.key is not a key"):
        await _key(cluster).read()
    assert cluster.writes == 0


async def test_uses_a_replaced_key_from_the_next_read_on():
    """Nothing is cached."""
    cluster = Cluster()
    key = _key(cluster)
    before = await key.read()
    cluster.server.change("secrets", "ns/key", data={"key": base64.b64encode(b"n" * 32).decode()})
    assert await key.read() == b"n" * 32 != before
