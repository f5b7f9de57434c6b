"""Rotated certificates of a worker: it uses new files without a restart, because it would stop its jobs otherwise."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web
from cryptography.hazmat.primitives import serialization

from controller_runtime.tls.key_pairs import make_ca, sign
from controller_runtime.tls.pem import KeyPair
from swarm.worker.certificates import Certificates
from swarm.worker.client import connected
from swarm.worker.identity import Settings, SetupError
from tests.unit.controller_runtime.loopback import CA, Server, reply, serve

OTHER = make_ca("earlier")
CLIENTS = make_ca("clients")


async def _common_name(request: web.Request) -> web.StreamResponse:
    """Answer with the name in the client's certificate."""
    assert request.transport is not None
    peer = request.transport.get_extra_info("peercert") or {}
    names = [value for part in peer.get("subject", ()) for key, value in part if key == "commonName"]
    return reply({"client": names})


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Server]:
    async with serve(_common_name, tls=True, clients=CLIENTS.certificate) as served:
        yield served


def _settings(folder: Path, server: Server) -> Settings:
    return Settings(
        api_server=server.url,
        ca_file=_write(folder / "ca.crt", CA.certificate),
        client_cert_file=str(folder / "tls.crt"),
        client_key_file=str(folder / "tls.key"),
    )


def _write(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return str(path)


def _client(folder: Path, name: str) -> KeyPair:
    pair = sign(CLIENTS, name, usage="client")
    pair.write(folder / "tls.crt", folder / "tls.key")
    return pair


async def test_a_renewed_client_certificate_is_used(tmp_path: Path, server: Server):
    """Requests on connections with an expired certificate are refused."""
    _client(tmp_path, "first")
    async with connected(_settings(tmp_path, server)) as api:
        assert await api.get("/a") == {"client": ["first"]}
        _client(tmp_path, "second")
        assert await api.get("/a") == {"client": ["second"]}


async def test_a_new_ca_of_the_api_server_is_trusted(tmp_path: Path, server: Server):
    _client(tmp_path, "worker")
    settings = _settings(tmp_path, server)
    _write(tmp_path / "ca.crt", OTHER.certificate)
    async with connected(settings) as api:
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await api.get("/a")
        _write(tmp_path / "ca.crt", OTHER.certificate + CA.certificate)
        assert await api.get("/a") == {"client": ["worker"]}


async def test_incomplete_files_change_nothing(tmp_path: Path, server: Server):
    """A certificate and its key are written one after the other."""
    _client(tmp_path, "worker")
    async with connected(_settings(tmp_path, server)) as api:
        _write(tmp_path / "tls.crt", sign(CLIENTS, "next", usage="client").certificate)
        assert await api.get("/a") == {"client": ["worker"]}
        (tmp_path / "ca.crt").unlink()
        assert await api.get("/a") == {"client": ["worker"]}


async def test_unchanged_files_keep_their_connections(tmp_path: Path, server: Server):
    _client(tmp_path, "worker")
    certificates = Certificates(_settings(tmp_path, server))
    assert certificates.current() is certificates.current()


def test_a_worker_does_not_start_without_its_certificate(tmp_path: Path):
    with pytest.raises(SetupError, match="certificates cannot be read"):
        Certificates(Settings(client_cert_file=str(tmp_path / "missing")))


def test_an_encrypted_key_is_an_error(tmp_path: Path):
    """OpenSSL would ask for its password on the terminal, and the worker would wait for ever."""
    pair = _client(tmp_path, "worker")
    key = serialization.load_pem_private_key(pair.key, password=None)
    encrypted = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    _write(tmp_path / "tls.key", encrypted)
    settings = Settings(client_cert_file=str(tmp_path / "tls.crt"), client_key_file=str(tmp_path / "tls.key"))
    with pytest.raises(SetupError, match="encrypted"):
        Certificates(settings)
