"""When replicas serve a certificate of another CA, and which CAs the webhook configurations have meanwhile."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from controller_runtime.errors import Forbidden
from controller_runtime.tls.key_pairs import is_issued_by
from controller_runtime.tls.own_certificates import Certificates, read, renewed
from controller_runtime.tls.pem import KeyPair
from tests.fakes.apiserver.client import MemoryClient
from tests.fakes.apiserver.server import Server
from tests.fakes.apiserver.storage import Commit
from webhook.certificates import Registrar, WebhookCertificates

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOSTS = ("webhook.ns.svc", "10.0.0.1")


class _Cluster:
    """An API server with an empty Secret, and the replicas of the webhook; the first one leads."""

    def __init__(self, replicas: int) -> None:
        self.server = Server(namespaces=["ns"])
        self.server.put("secrets", {"metadata": {"name": "s", "namespace": "ns"}, "type": "Opaque"})
        self.server.observers.append(self._check_trust)
        self.clients = [MemoryClient(self.server, who=str(number)) for number in range(replicas)]
        self.registrars: list[Registrar] = []
        self.replicas: list[WebhookCertificates] = []
        self.served: list[KeyPair | None] = [None] * replicas
        self.untrusted: list[int] = []
        """Replicas whose certificate was not trusted after a change of the configurations."""

    @property
    def stored(self) -> Certificates | None:
        return read(self.server.get("secrets", "ns/s").get("data"))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        tasks = []
        for number, client in enumerate(self.clients):
            found: Any = client
            registrar = Registrar(
                found, name="vn", client_config=lambda path, bundle: {"url": path, **_ca(bundle)}
            )
            replica = WebhookCertificates(
                client=client, registrar=registrar, namespace="ns", secret="s", hosts=HOSTS, now=lambda: NOW
            )
            replica.tls.replace = lambda pair, number=number: self._serve(number, pair)  # type: ignore[method-assign,misc]
            self.replicas.append(replica)
            tasks += [asyncio.create_task(informer.run()) for informer in registrar.informers]
            tasks.append(asyncio.create_task(replica.run()))
        tasks.append(asyncio.create_task(self.replicas[0].lead()))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _serve(self, number: int, pair: KeyPair) -> None:
        is_first = self.served[number] is None
        self.served[number] = pair
        if not is_first and not self._trusts(pair):
            self.untrusted.append(number)

    def _check_trust(self, commit: Commit) -> None:
        if commit.plural == "mutatingwebhookconfigurations" and commit.old is not None:
            self.untrusted += [
                number
                for number, pair in enumerate(self.served)
                if pair is not None and not self._trusts(pair)
            ]

    def _trusts(self, pair: KeyPair) -> bool:
        return any(is_issued_by(pair.certificate, ca) for ca in self.bundle())

    def bundle(self) -> list[bytes]:
        """Return the CAs that the API server trusts."""
        configuration = self.server.get("mutatingwebhookconfigurations", "vn")
        pem = base64.b64decode(configuration["webhooks"][0]["clientConfig"]["caBundle"])
        return [ca.public_bytes(Encoding.PEM) for ca in x509.load_pem_x509_certificates(pem)]


def _ca(bundle: bytes) -> dict[str, str]:
    return {"caBundle": base64.b64encode(bundle).decode()}


@pytest.mark.looptime
async def test_replicas_serve_the_same_certificate_and_the_leader_announces_its_ca():
    cluster = _Cluster(2)
    async with cluster.running():
        await asyncio.sleep(70)
        assert [replica.unready() for replica in cluster.replicas] == [None, None]
    stored = cluster.stored
    assert stored is not None
    assert cluster.served == [stored.serving] * 2
    assert cluster.bundle() == [stored.signer]
    assert cluster.clients[1].asked("create", "mutatingwebhookconfigurations") == []


@pytest.mark.looptime
async def test_is_unready_until_the_api_server_trusts_its_ca():
    cluster = _Cluster(1)
    cluster.clients[0].fault = lambda verb, plural, _key: (
        Forbidden("no", code=403) if (verb, plural) == ("create", "mutatingwebhookconfigurations") else None
    )
    async with cluster.running():
        assert cluster.replicas[0].unready() == "there is no certificate yet"
        await asyncio.sleep(30)
        assert cluster.served[0] is not None
        assert "has not been created yet" in str(cluster.replicas[0].unready())
        cluster.clients[0].fault = lambda *_: None
        await asyncio.sleep(30)
        assert cluster.replicas[0].unready() is None


@pytest.mark.looptime
@pytest.mark.parametrize("change", ["delete", "replace", "expire"])
async def test_certificate_in_use_is_trusted_while_the_ca_changes(change):
    """The Secret is deleted, a user replaces it, or its CA is near its end."""
    cluster = _Cluster(1)
    async with cluster.running():
        await asyncio.sleep(70)
        (before,) = cluster.bundle()
        match change:
            case "delete":
                cluster.server.delete("secrets", "ns/s")
            case "replace":
                _write(cluster, renewed(None, "user", HOSTS, now=NOW))
            case _:
                _write(cluster, renewed(None, "user", HOSTS, now=NOW - timedelta(days=3600)))
        await asyncio.sleep(140)
        stored = cluster.stored
        assert stored is not None
        assert cluster.served == [stored.serving]
        assert stored.signer != before
        assert stored.signer in cluster.bundle()
        assert cluster.bundle() == [ca.certificate for ca in stored.authorities]
    assert cluster.untrusted == []


@pytest.mark.looptime
async def test_followers_serve_a_new_ca_only_after_it_is_announced():
    cluster = _Cluster(3)
    async with cluster.running():
        await asyncio.sleep(70)
        fault = cluster.clients[0].fault
        cluster.clients[0].fault = lambda _verb, plural, _key: (
            Forbidden("no", code=403) if plural == "secrets" else None
        )
        before = cluster.served[:]
        _write(cluster, renewed(None, "user", HOSTS, now=NOW))
        await asyncio.sleep(70)
        assert cluster.served == before, "the leader cannot read the Secret"
        cluster.clients[0].fault = fault
        await asyncio.sleep(70)
        stored = cluster.stored
        assert stored is not None
        assert cluster.served == [stored.serving] * 3
    assert cluster.untrusted == []


def _write(cluster: _Cluster, certificates: Certificates) -> None:
    cluster.server.patch("secrets", "ns/s", {"data": certificates.data()})
