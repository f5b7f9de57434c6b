"""Certificates of scheduler and extender over years, and their Secrets."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import aiohttp
import pytest

from controller_runtime.tls.key_pairs import is_issued_by, make_ca, share_left, sign
from controller_runtime.tls.own_certificates import Certificates, encode, read, renewed
from controller_runtime.tls.pem import KeyPair
from controller_runtime.tls.reloader import CertificateReloader
from multi_scheduler.certificates import ClientParts, ExtenderCertificates, read_client, renewed_client
from multi_scheduler.extender.server import ExtenderServer
from tests.fakes.apiserver.client import MemoryClient
from tests.fakes.apiserver.server import Server
from tests.serving import client_context

HOSTS = ["extender.ns.svc", "127.0.0.1"]
START = datetime(2030, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


def _renewed(current: Certificates | None, now: datetime = START) -> Certificates:
    return renewed(current, ExtenderCertificates.name, HOSTS, now=now)


def _fresh(now: datetime = START) -> tuple[Certificates, ClientParts]:
    server = _renewed(None, now)
    return server, renewed_client(None, server, now=now)


def _trust(server: Certificates, client: ClientParts, *, now: datetime) -> bool:
    """Report whether scheduler and extender accept each other, by CAs and dates."""
    names = {ca.certificate for ca in server.authorities}
    server_trusted = any(
        is_issued_by(server.serving.certificate, ca)
        for ca in _split(client["ca.crt"])
        if share_left(ca, now) > 0
    )
    client_trusted = any(is_issued_by(client["tls.crt"], ca) for ca in names if share_left(ca, now) > 0)
    alive = min(share_left(server.serving.certificate, now), share_left(client["tls.crt"], now))
    return server_trusted and client_trusted and alive > 0


def _split(bundle: bytes) -> list[bytes]:
    end = b"-----END CERTIFICATE-----\n"
    return [one + end for one in bundle.split(end) if one.strip()]


def test_secret_of_the_scheduler_has_no_key_of_the_extender():
    server, client = _fresh()
    assert read_client(encode(client)) == client
    assert set(client) == {"ca.crt", "tls.crt", "tls.key"}
    private = [server.serving.key, *(ca.key for ca in server.authorities)]
    assert not any(value in private for value in client.values())


@pytest.mark.parametrize("missing", ["ca.crt", "tls.crt", "tls.key"])
def test_incomplete_secrets_of_the_scheduler_are_not_used(missing):
    """Also those with a part that belongs to another pair."""
    (_, client), (_, other) = _fresh(), _fresh()
    assert read_client({key: value for key, value in encode(client).items() if key != missing}) is None
    if missing.startswith("tls"):
        for broken in (b"", b"x", other[missing]):
            assert read_client(encode({**client, missing: broken})) is None
    assert read_client({}) is None


def test_renews_serving_certificate_without_restart_of_the_scheduler():
    server, client = _fresh()
    fresh = _renewed(server, START + 61 * DAY)
    assert fresh.serving != server.serving
    assert renewed_client(client, fresh, now=START + 61 * DAY) == client


def test_scheduler_restarted_every_two_years_is_always_accepted():
    """For thirty years; both sides trust a new CA before it serves."""
    server, stored = _fresh()
    running = stored
    restarted, authorities = START, {server.authorities[0].certificate}
    for month in range(30 * 12):
        now = START + month * 30 * DAY
        server = _renewed(server, now)
        stored = renewed_client(stored, server, now=now)
        if now - restarted > 730 * DAY:
            running, restarted = stored, now
        assert _trust(server, running, now=now), month
        assert _trust(server, stored, now=now), month
        assert len(server.authorities) <= 2
        authorities |= {ca.certificate for ca in server.authorities}
    assert len(authorities) == 5


def _api(*names: str) -> MemoryClient:
    """Return a client of a cluster with empty Secrets, as the chart creates them."""
    server = Server(namespaces=["ns"])
    for name in names:
        server.put("secrets", {"metadata": {"name": name, "namespace": "ns"}, "type": "Opaque"})
    return MemoryClient(server)


def _keeper(api: MemoryClient) -> ExtenderCertificates:
    return ExtenderCertificates(
        client=api, namespace="ns", secret="server", client_secret="client", hosts=HOSTS
    )


def _data(api: MemoryClient, name: str) -> dict[str, str]:
    data: dict[str, str] = api.server.get("secrets", f"ns/{name}").get("data") or {}
    return data


async def test_fills_both_secrets_once():
    api = _api("server", "client")
    for keeper in (_keeper(api), _keeper(api)):
        await keeper.check()
        await keeper.check()
        assert keeper.unready() is None
    assert api.asked("update", "secrets") == ["ns/server", "ns/client"]
    server, client = read(_data(api, "server")), read_client(_data(api, "client"))
    assert server is not None
    assert client is not None
    assert client["ca.crt"] == server.bundle


async def test_restores_deleted_secrets_with_the_same_certificates():
    """The running scheduler trusts no other CA."""
    api = _api("server", "client")
    keeper = _keeper(api)
    await keeper.check()
    before = {name: _data(api, name) for name in ("server", "client")}
    for name in before:
        api.server.delete("secrets", f"ns/{name}")
    await keeper.check()
    assert {name: _data(api, name) for name in before} == before


async def test_accepts_the_scheduler_and_refuses_other_clients():
    """By the content of the Secrets; before they are read, all clients are refused."""
    api = _api("server", "client")
    keeper = _keeper(api)

    class Nothing:
        """An extender that must not be called."""

    server = ExtenderServer("127.0.0.1", 0, tls=keeper.tls, extender=Nothing())  # type: ignore[arg-type]

    async def call(pair: KeyPair | None) -> int:
        context = client_context(KeyPair(client["ca.crt"], b""), pair)
        url = f"https://127.0.0.1:{server.port}/filter"
        async with aiohttp.ClientSession() as session, session.post(url, data=b"{}", ssl=context) as answer:
            return answer.status

    async with server:
        _, client = _fresh(datetime.now(UTC))
        with pytest.raises(aiohttp.ClientError):
            await call(KeyPair(client["tls.crt"], client["tls.key"]))
        await keeper.check()
        stored = read_client(_data(api, "client"))
        assert stored is not None
        client = stored
        assert await call(KeyPair(client["tls.crt"], client["tls.key"])) == 200
        assert await call(None) == 401
        stranger = sign(make_ca("virtual-node-extender-ca"), "virtual-node-scheduler", usage="client")
        with pytest.raises(aiohttp.ClientError):
            await call(stranger)
        serving = read(_data(api, "server"))
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
