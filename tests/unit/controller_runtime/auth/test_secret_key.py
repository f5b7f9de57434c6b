"""The key in a Secret: written once, the same for every process, and clear errors where it is unavailable."""

from __future__ import annotations

import asyncio
import base64
import copy
from collections.abc import Mapping
from typing import Any

import pytest

from controller_runtime.auth.secret_key import SecretKey
from controller_runtime.errors import AlreadyExists, ConfigError, Conflict, Forbidden, NotFound


class Server:
    """One Secret of an API server, and what it refuses."""

    def __init__(
        self, secret: dict[str, Any] | None = None, *, forbidden: frozenset[str] = frozenset()
    ) -> None:
        self.secret = secret
        self.forbidden = forbidden
        self.writes = 0

    async def get(self, resource: Any, name: str, *, namespace: str | None = None) -> dict[str, Any]:
        await self._allow("get")
        if self.secret is None:
            raise NotFound("gone", code=404)
        return copy.deepcopy(self.secret)

    async def create(
        self, resource: Any, body: Mapping[str, Any], *, namespace: str | None = None
    ) -> dict[str, Any]:
        await self._allow("create")
        if self.secret is not None:
            raise AlreadyExists("exists", code=409)
        return self._store(body, "1")

    async def update(self, resource: Any, body: Mapping[str, Any]) -> dict[str, Any]:
        await self._allow("update")
        assert self.secret is not None
        if body["metadata"]["resourceVersion"] != self.secret["metadata"]["resourceVersion"]:
            raise Conflict("changed", code=409)
        return self._store(body, str(int(body["metadata"]["resourceVersion"]) + 1))

    def _store(self, body: Mapping[str, Any], version: str) -> dict[str, Any]:
        self.writes += 1
        self.secret = {**body, "metadata": {**body["metadata"], "resourceVersion": version}}
        return copy.deepcopy(self.secret)

    async def _allow(self, verb: str) -> None:
        await asyncio.sleep(0)
        if verb in self.forbidden:
            raise Forbidden(f"cannot {verb} secrets", code=403)


def _key(server: Server) -> SecretKey:
    return SecretKey(server, namespace="ns", name="key")


def _empty() -> dict[str, Any]:
    """Return the Secret as the chart makes it, with an unrelated field."""
    return {"metadata": {"name": "key", "namespace": "ns", "resourceVersion": "7"}, "data": {"note": "eA=="}}


@pytest.mark.parametrize("secret", [None, _empty()], ids=["no Secret", "empty Secret"])
async def test_writes_one_random_key_for_all_processes(secret):
    """Processes that start together all read the same key of 32 bytes; it is written once."""
    server = Server(secret)
    keys = await asyncio.gather(*(_key(server).read() for _ in range(5)))
    assert {len(key) for key in keys} == {32}
    assert len(set(keys)) == 1
    assert server.writes == 1
    assert (await _key(Server()).read()) != keys[0]


async def test_keeps_other_data_of_the_secret():
    server = Server(_empty())
    await _key(server).read()
    assert server.secret is not None
    assert server.secret["data"]["note"] == "eA=="


async def test_needs_no_permission_to_create_if_the_secret_exists():
    """The chart makes the Secret, so that get and update on one name suffice."""
    assert len(await _key(Server(_empty(), forbidden=frozenset({"create"}))).read()) == 32


@pytest.mark.parametrize(
    ("secret", "verb"),
    [(None, "get"), (None, "create"), (_empty(), "update")],
    ids=["get", "create", "update"],
)
async def test_missing_permission_is_an_error_with_the_command(secret, verb):
    """The text names the Secret and the command that makes it."""
    with pytest.raises(ConfigError, match="kubectl -n ns create secret generic key"):
        await _key(Server(secret, forbidden=frozenset({verb}))).read()


@pytest.mark.parametrize("held", ["bm90IGEga2V5", "???"], ids=["too short", "not base64"])
async def test_content_that_is_no_key_is_not_replaced(held):
    """A new key would invalidate all hashes of the old one, so an administrator decides."""
    server = Server({**_empty(), "data": {"key": held}})
    with pytest.raises(ConfigError, match=r"data\.key is not a key"):
        await _key(server).read()
    assert server.writes == 0


async def test_uses_a_replaced_key_from_the_next_read_on():
    """Nothing is cached."""
    server = Server()
    key = _key(server)
    before = await key.read()
    assert server.secret is not None
    server.secret["data"]["key"] = base64.b64encode(b"n" * 32).decode()
    assert await key.read() == b"n" * 32 != before
