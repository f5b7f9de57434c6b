"""Certificates of scheduler and extender over years, and their Secrets."""

from __future__ import annotations

import asyncio
import base64
import copy
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import pytest
from structlog.testing import capture_logs

from controller_runtime.errors import AlreadyExists, Conflict, Forbidden, NotFound
from controller_runtime.tls.key_pairs import covers, is_issued_by, share_left
from controller_runtime.tls.reloader import CertificateReloader, KeyPair, make_ca, sign
from multi_scheduler.certificates.keeper import CertificateKeeper
from multi_scheduler.certificates.secrets import (
    ClientSide,
    ServerSide,
    read_client,
    read_server,
    renewed_client,
    renewed_server,
)
from multi_scheduler.extender.server import ExtenderServer
from tests.serving import client_context

HOSTS = ["extender.ns.svc", "127.0.0.1"]
START = datetime(2030, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


def _fresh(now: datetime = START) -> tuple[ServerSide, ClientSide]:
    server = renewed_server(None, HOSTS, now=now)
    return server, renewed_client(None, server, now=now)


def _trust(server: ServerSide, client: ClientSide, *, now: datetime) -> bool:
    """Report whether scheduler and extender accept each other, by CAs and dates."""
    names = {ca.certificate for ca in server.authorities}
    server_trusted = any(
        is_issued_by(server.serving.certificate, ca)
        for ca in _split(client.bundle)
        if share_left(ca, now) > 0
    )
    client_trusted = any(
        is_issued_by(client.client.certificate, ca) for ca in names if share_left(ca, now) > 0
    )
    alive = min(share_left(server.serving.certificate, now), share_left(client.client.certificate, now))
    return server_trusted and client_trusted and alive > 0


def _split(bundle: bytes) -> list[bytes]:
    end = b"-----END CERTIFICATE-----\n"
    return [one + end for one in bundle.split(end) if one.strip()]


def test_secrets_round_trip():
    """The scheduler's Secret has neither the CA's key nor the extender's."""
    server, client = _fresh()
    assert read_server(server.data()) == server
    assert read_client(client.data()) == client
    assert set(client.data()) == {"ca.crt", "tls.crt", "tls.key"}
    private = [server.serving.key, *(ca.key for ca in server.authorities)]
    for value in client.data().values():
        assert base64.b64decode(value) not in private


@pytest.mark.parametrize("missing", ["ca.crt", "ca.key", "tls.crt", "tls.key"])
def test_incomplete_secrets_are_not_used(missing):
    """Also those with a part that is not PEM, or belongs to another pair."""
    (server, client), (other, other_client) = _fresh(), _fresh()
    for broken in (None, "", "AAAA", "?", other.data()[missing]):
        assert read_server({**server.data(), missing: broken}) is None
    if missing.startswith("tls"):
        assert read_client({**client.data(), missing: other_client.data()[missing]}) is None
    assert read_server(None) is None
    assert read_client({}) is None


def test_renews_serving_certificate_without_restart_of_the_scheduler():
    """Every 60 days, by the same CA; missing names are added immediately."""
    server, client = _fresh()
    assert renewed_server(server, HOSTS, now=START + 59 * DAY) == server
    renewed = renewed_server(server, HOSTS, now=START + 61 * DAY)
    assert renewed.serving != server.serving
    assert renewed.authorities == server.authorities
    assert renewed_client(client, renewed, now=START + 61 * DAY) == client
    named = renewed_server(server, [*HOSTS, "more"], now=START)
    assert covers(named.serving.certificate, [*HOSTS, "more"])


def test_scheduler_restarted_every_two_years_is_always_accepted():
    """For thirty years; both sides trust a new CA before it serves."""
    server, held = _fresh()
    running = held
    restarted, authorities = START, {server.authorities[0].certificate}
    for month in range(30 * 12):
        now = START + month * 30 * DAY
        server = renewed_server(server, HOSTS, now=now)
        held = renewed_client(held, server, now=now)
        if now - restarted > 730 * DAY:
            running, restarted = held, now
        assert _trust(server, running, now=now), month
        assert _trust(server, held, now=now), month
        assert len(server.authorities) <= 2
        authorities |= {ca.certificate for ca in server.authorities}
    assert len(authorities) == 5


class _Api:
    """A fake API server with Secrets, which can refuse verbs."""

    def __init__(self, *names: str) -> None:
        self.secrets: dict[str, dict[str, Any]] = {}
        self.forbidden: set[str] = set()
        self.versions = 0
        for name in names:
            self._store({"metadata": {"name": name, "namespace": "ns"}})

    async def get(self, resource: Any, name: str, *, namespace: str | None = None) -> dict[str, Any]:
        await self._allow("get")
        if name not in self.secrets:
            raise NotFound("not found", code=404)
        return copy.deepcopy(self.secrets[name])

    async def create(
        self, resource: Any, body: Mapping[str, Any], *, namespace: str | None = None
    ) -> dict[str, Any]:
        await self._allow("create")
        if body["metadata"]["name"] in self.secrets:
            raise AlreadyExists("exists", code=409)
        return self._store(body)

    async def update(self, resource: Any, body: Mapping[str, Any]) -> dict[str, Any]:
        await self._allow("update")
        held = self.secrets[body["metadata"]["name"]]
        if body["metadata"]["resourceVersion"] != held["metadata"]["resourceVersion"]:
            raise Conflict("changed", code=409)
        return self._store(body)

    def _store(self, body: Mapping[str, Any]) -> dict[str, Any]:
        self.versions += 1
        metadata = {**body["metadata"], "resourceVersion": str(self.versions)}
        self.secrets[metadata["name"]] = {**body, "metadata": metadata}
        return copy.deepcopy(self.secrets[metadata["name"]])

    async def _allow(self, verb: str) -> None:
        await asyncio.sleep(0)
        if verb in self.forbidden:
            raise Forbidden(f"cannot {verb} secrets", code=403)


def _keeper(api: _Api, **options: Any) -> CertificateKeeper:
    return CertificateKeeper(
        api,
        namespace="ns",
        server_secret="server",
        client_secret="client",
        hosts=HOSTS,
        **options,
    )


async def test_empty_secrets_are_filled_once():
    """Replicas that start together use what the first one wrote."""
    api = _Api("server", "client")
    keepers = [_keeper(api) for _ in range(3)]
    for _ in range(3):
        await asyncio.gather(*(keeper.look() for keeper in keepers), return_exceptions=True)
    assert api.versions == 4
    assert {keeper.unready() for keeper in keepers} == {None}
    assert len({keeper._server for keeper in keepers}) == 1


async def test_emptied_secrets_get_the_same_certificates_again():
    """The running scheduler trusts no other CA."""
    api = _Api("server", "client")
    keeper = _keeper(api)
    await keeper.look()
    before = {name: secret["data"] for name, secret in api.secrets.items()}
    api.secrets.clear()
    await keeper.look()
    assert {name: secret["data"] for name, secret in api.secrets.items()} == before


@pytest.mark.looptime
async def test_reports_missing_rights():
    """Not ready until they are granted; the log names the Secrets once."""
    api = _Api("server", "client")
    api.forbidden = {"update"}
    keeper = _keeper(api)
    with capture_logs() as logs:
        task = asyncio.create_task(keeper.run())
        await asyncio.sleep(30)
        assert "server and client in namespace ns" in str(keeper.unready())
        assert [entry["log_level"] for entry in logs] == ["error"]
        api.forbidden = set()
        await asyncio.sleep(10)
    assert keeper.unready() is None
    api.forbidden = {"get"}
    await asyncio.sleep(200)
    assert keeper.unready() is None, "what is served goes on being served"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_accepts_the_scheduler_and_refuses_other_clients():
    """By the content of the Secrets; before they are read, all clients are refused."""
    api = _Api("server", "client")
    keeper = _keeper(api)

    class Nothing:
        """An extender that must not be called."""

    server = ExtenderServer("127.0.0.1", 0, tls=keeper.tls, extender=Nothing())  # type: ignore[arg-type]

    async def call(pair: KeyPair | None) -> int:
        context = client_context(KeyPair(client.bundle, b""), pair)
        url = f"https://127.0.0.1:{server.port}/filter"
        async with aiohttp.ClientSession() as session, session.post(url, data=b"{}", ssl=context) as answer:
            return answer.status

    async with server:
        _, client = _fresh(datetime.now(UTC))
        with pytest.raises(aiohttp.ClientError):
            await call(client.client)
        await keeper.look()
        held = read_client(api.secrets["client"]["data"])
        assert held is not None
        client = held
        assert await call(client.client) == 200
        assert await call(None) == 401
        stranger = sign(make_ca("virtual-node-extender-ca"), "virtual-node-scheduler", usage="client")
        with pytest.raises(aiohttp.ClientError):
            await call(stranger)
        serving = read_server(api.secrets["server"]["data"])
        assert serving is not None
        with pytest.raises(aiohttp.ClientError):
            await call(serving.serving)


async def test_names_of_client_certificates_can_be_limited():
    """For a CA that also signs other certificates."""
    authority, ca = make_ca("s"), make_ca("shared")
    pair = sign(authority, "s", hosts=["127.0.0.1"])
    tls = CertificateReloader.from_pair(pair, client_ca=ca.certificate)
    server = ExtenderServer("127.0.0.1", 0, tls=tls, extender=None, client_names=["scheduler"])  # type: ignore[arg-type]
    async with server, aiohttp.ClientSession() as session:
        for name, status in (("scheduler", 200), ("other", 401)):
            context = client_context(authority, sign(ca, name, usage="client"))
            url = f"https://127.0.0.1:{server.port}/filter"
            async with session.post(url, data=b"", ssl=context) as answer:
                assert answer.status == status
