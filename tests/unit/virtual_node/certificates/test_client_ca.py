"""The CA of the kubelet API's clients, over outages and changes of the upper cluster."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from controller_runtime.errors import ConfigError, Forbidden, Unavailable
from virtual_node.certificates import ClientAuthority

ONE, TWO = b"-----BEGIN CERTIFICATE-----one", b"-----BEGIN CERTIFICATE-----two"

pytestmark = pytest.mark.looptime


class _Upper:
    """An upper cluster that publishes its CA, or answers with an error."""

    def __init__(self, answer: bytes | Exception) -> None:
        self.answer = answer
        self.asked = 0

    async def get(self, *_: Any, **_more: Any) -> dict[str, Any]:
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return {"data": {"client-ca-file": self.answer.decode()}}


class _Servers:
    """Servers with certificates."""

    def __init__(self) -> None:
        self.trusted: list[bytes] = []
        self.error: ConfigError | None = None

    def trust(self, found: bytes) -> None:
        if self.error is not None:
            raise self.error
        self.trusted.append(found)


async def _followed(
    upper: Any, servers: _Servers, *, file: str = ""
) -> tuple[ClientAuthority, asyncio.Task[None]]:
    authority = ClientAuthority(file, upper=upper, changed=servers.trust)
    await authority.load()
    return authority, asyncio.create_task(authority.follow())


@pytest.mark.parametrize("error", [Unavailable("away"), Forbidden("not yet"), ConfigError("no token")])
async def test_client_ca_is_read_after_an_outage_at_the_start(error: Exception) -> None:
    """Otherwise logs would never work."""
    upper, servers = _Upper(error), _Servers()
    with capture_logs() as logs:
        authority, task = await _followed(upper, servers)
        assert authority.known == b""
        await asyncio.sleep(20)
        upper.answer = ONE
        await asyncio.sleep(20)
    task.cancel()
    assert authority.known == ONE
    assert servers.trusted == [ONE]
    # The outage is logged once, not every time.
    assert [one["event"] for one in logs if one["log_level"] == "warning"] == [
        "client CA not readable: only callers with bearer tokens are accepted"
    ]


async def test_a_changed_ca_is_used_and_an_outage_keeps_the_old_one() -> None:
    upper, servers = _Upper(ONE), _Servers()
    authority, task = await _followed(upper, servers)
    await asyncio.sleep(1000)
    assert servers.trusted == []
    upper.answer = Unavailable("away")
    await asyncio.sleep(1000)
    assert authority.known == ONE
    upper.answer = TWO
    await asyncio.sleep(1000)
    task.cancel()
    assert (authority.known, servers.trusted) == (TWO, [TWO])


async def test_an_unusable_ca_is_retried() -> None:
    """Servers that start later get the previous one."""
    upper, servers = _Upper(ONE), _Servers()
    authority, task = await _followed(upper, servers)
    upper.answer, servers.error = TWO, ConfigError("garbage")
    await asyncio.sleep(1000)
    assert authority.known == ONE
    servers.error = None
    await asyncio.sleep(1000)
    task.cancel()
    assert authority.known == TWO


async def test_a_ca_file_needs_no_request() -> None:
    """The server follows the file."""
    upper, servers = _Upper(ONE), _Servers()
    authority, task = await _followed(upper, servers, file="/ca.crt")
    await asyncio.sleep(1000)
    assert task.done()
    assert (authority.known, upper.asked) == ("/ca.crt", 0)
