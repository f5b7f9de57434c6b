"""Certificates that a server keeps itself: their content over years, and several replicas on one Secret."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import pytest
from structlog.testing import capture_logs

from controller_runtime.errors import Forbidden
from controller_runtime.tls.key_pairs import covers, expiry, is_issued_by, make_ca, share_left, sign
from controller_runtime.tls.own_certificates import (
    SERVING_VALIDITY,
    CertificateKeeper,
    Certificates,
    read,
    renewed,
)
from controller_runtime.tls.pem import KeyPair
from tests.fakes.apiserver.client import MemoryClient, refusing
from tests.fakes.apiserver.server import Server

T = TypeVar("T")
HOSTS = ["server.ns.svc", "127.0.0.1"]
START = datetime(2030, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


def _renewed(current: Certificates | None, *, now: datetime = START) -> Certificates:
    return renewed(current, "server", HOSTS, now=now)


def test_secret_round_trip():
    created = _renewed(None)
    assert read(created.data()) == created
    assert created.signer == created.authorities[0].certificate
    assert expiry(created.serving.certificate) - START <= SERVING_VALIDITY


@pytest.mark.parametrize("part", ["ca.crt", "ca.key", "tls.crt", "tls.key"])
def test_incomplete_secrets_are_not_used(part):
    """Also those with a part that is not PEM, or belongs to another pair."""
    created, other = _renewed(None), _renewed(None)
    for broken in (None, 7, "", "AAAA", "?", other.data()[part]):
        assert read({**created.data(), part: broken}) is None
    assert read({key: value for key, value in created.data().items() if key != part}) is None
    assert read(None) is None


def test_reads_secret_with_the_key_of_the_newest_ca_only():
    """As earlier releases of the webhook wrote it during a change of the CA: the serving certificate is of the newest CA."""
    old, ca = make_ca("server-ca", now=START), make_ca("server-ca", now=START)
    serving = sign(ca, "server", hosts=HOSTS, validity=SERVING_VALIDITY, now=START)
    written = Certificates((ca, replace(old, key=b"")), serving)
    stored = read(written.data())
    assert stored == written
    assert _renewed(stored) == written
    later = _renewed(stored, now=START + 61 * DAY)
    assert (later.authorities, later.signer) == (written.authorities, ca.certificate)


def test_renews_serving_certificate_at_a_third_by_the_same_ca():
    created = _renewed(None)
    assert _renewed(created, now=START + 59 * DAY) == created
    fresh = _renewed(created, now=START + 61 * DAY)
    assert fresh.authorities == created.authorities
    assert expiry(fresh.serving.certificate) > expiry(created.serving.certificate)


def test_renews_serving_certificate_for_a_new_host_only():
    created = _renewed(None)
    named = renewed(created, "server", [*HOSTS, "more"], now=START)
    assert covers(named.serving.certificate, [*HOSTS, "more"])
    assert _renewed(named) == named


def test_keeps_certificates_of_a_replica_whose_clock_is_ahead():
    """Otherwise two replicas would replace each other's certificates."""
    created = _renewed(None)
    ahead = _renewed(created, now=START + 61 * DAY)
    assert ahead != created
    assert _renewed(ahead, now=START) == ahead


def test_new_ca_is_trusted_for_years_before_it_signs():
    certificates, changed = _renewed(None), {}
    for month in range(10 * 12):
        now = START + month * 30 * DAY
        fresh = _renewed(certificates, now=now)
        assert share_left(fresh.signer, now) > 0
        assert share_left(fresh.serving.certificate, now) > 0
        assert fresh.signer in certificates.bundle, "clients knew the CA before"
        if len(fresh.authorities) > len(certificates.authorities):
            changed["trusted"] = now
        if fresh.signer != certificates.signer:
            changed["signs"] = now
        certificates = fresh
    assert changed["signs"] - changed["trusted"] > 2 * 365 * DAY


class _Keeper(CertificateKeeper):
    """Keeps what it served."""

    name, restores = "server", True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.served: list[Certificates] = []

    async def use(self, certificates: Certificates) -> None:
        if certificates not in self.served:
            self.served.append(certificates)


class _NewCaKeeper(_Keeper):
    restores = False


class _Client(MemoryClient):
    """Lets other tasks run before each request."""

    async def send(self, verb: str, plural: str, key: str, action: Callable[[], T], **options: Any) -> T:
        await asyncio.sleep(0.01)
        return await super().send(verb, plural, key, action, **options)


@pytest.fixture
def client() -> _Client:
    """Return a client of a cluster with an empty Secret, as the chart creates it."""
    server = Server(namespaces=["ns"])
    server.put(
        "secrets", {"metadata": {"name": "s", "namespace": "ns", "labels": {"a": "b"}}, "type": "Opaque"}
    )
    return _Client(server)


def _keeper(client: MemoryClient, kind: type[_Keeper] = _Keeper, now: datetime = START) -> _Keeper:
    return kind(client=client, namespace="ns", secret="s", hosts=HOSTS, now=lambda: now)


def _stored(client: MemoryClient) -> Certificates | None:
    return read((client.server.find("secrets", "ns/s") or {}).get("data"))


@pytest.mark.looptime
async def test_replicas_that_start_together_use_the_first_write(client: _Client):
    keepers = [_keeper(client) for _ in range(3)]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(keeper.run()) for keeper in keepers]
        await asyncio.sleep(5)
        for task in tasks:
            task.cancel()
    assert [keeper.served for keeper in keepers] == [[_stored(client)]] * 3
    assert {keeper.unready() for keeper in keepers} == {None}
    secret = client.server.find("secrets", "ns/s")
    assert secret is not None
    assert secret["metadata"]["labels"] == {"a": "b"}


async def test_creates_missing_secret(client: _Client):
    client.server.delete("secrets", "ns/s")
    await _keeper(client).check()
    assert _stored(client) is not None


async def test_valid_secret_of_a_user_is_used_and_not_written(client: _Client):
    keeper = _keeper(client)
    await keeper.check()
    other = _renewed(None)
    client.server.patch("secrets", "ns/s", {"data": {**other.data(), "more": "eA=="}})
    await keeper.check()
    assert keeper.served[-1] == _stored(client) == other
    assert len(client.asked("update", "secrets")) == 1


@pytest.mark.parametrize("change", ["delete", "empty", "damage"])
async def test_restores_lost_certificates_for_clients_that_read_the_ca_once(client: _Client, change):
    keeper = _keeper(client)
    await keeper.check()
    before = _stored(client)
    _lose(client, change)
    await keeper.check()
    assert _stored(client) == before
    assert keeper.served == [before]


@pytest.mark.parametrize("change", ["delete", "empty", "damage"])
async def test_replaces_lost_certificates_by_those_of_a_new_ca(client: _Client, change):
    """The lost key signs no more, and its CA stays trusted because other replicas still serve its certificate."""
    keeper = _keeper(client, _NewCaKeeper)
    await keeper.check()
    (before,) = keeper.served
    _lose(client, change)
    await keeper.check()
    after = _stored(client)
    assert after == keeper.served[-1]
    assert after is not None
    ca, old = after.authorities
    assert old == KeyPair(before.signer, b"")
    assert after.signer == ca.certificate != before.signer
    assert is_issued_by(before.serving.certificate, old.certificate)


def _lose(client: _Client, change: str) -> None:
    if change == "delete":
        client.server.delete("secrets", "ns/s")
    else:
        lost = None if change == "empty" else base64.b64encode(b"x").decode()
        client.server.patch("secrets", "ns/s", {"data": {"tls.crt": lost, "ca.key": lost}})


@pytest.mark.looptime
async def test_reports_missing_rights_until_they_are_granted(client: _Client):
    """One error in the log; later failures are warnings, because the certificate is still served."""
    forbidden = refusing(Forbidden("cannot get secrets", code=403), "secrets")
    client.fault, granted = forbidden, client.fault
    keeper = _keeper(client)
    assert "not been read yet" in str(keeper.unready())
    with capture_logs() as logs:
        task = asyncio.create_task(keeper.run())
        await asyncio.sleep(30)
        assert "cannot get secrets" in str(keeper.unready())
        assert "Secret ns/s" in str(keeper.unready())
        assert [entry["log_level"] for entry in logs] == ["error"]
        client.fault = granted
        await asyncio.sleep(10)
        assert keeper.unready() is None
        client.fault = forbidden
        await asyncio.sleep(200)
    assert keeper.unready() is None
    assert logs[-1]["log_level"] == "warning"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.looptime
async def test_recheck_reads_the_secret_at_once(client: _Client):
    keeper = _keeper(client)
    task = asyncio.create_task(keeper.run())
    await asyncio.sleep(2)
    reads = len(client.asked("get", "secrets"))
    keeper.recheck()
    await asyncio.sleep(2)
    assert len(client.asked("get", "secrets")) == reads + 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
