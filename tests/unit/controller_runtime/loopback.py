"""A scripted HTTP server on loopback, plain or TLS, that records its requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from controller_runtime.auth.credentials import Credentials
from controller_runtime.auth.kubeconfig import ConnectionConfig
from controller_runtime.client.client import Client
from controller_runtime.tls.key_pairs import make_ca, sign
from controller_runtime.tls.pem import KeyPair
from tests.serving import client_context, served, server_context

CA = make_ca("loopback-ca")

Answer = web.StreamResponse | Exception
Script = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Asked:
    """One request."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    connection: object

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


@dataclass
class Server:
    """The server's side of a test."""

    port: int = 0
    scheme: str = "http"
    asked: list[Asked] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    @property
    def connections(self) -> int:
        return len({id(asked.connection) for asked in self.asked})


def reply(body: Any = None, *, status: int = 200, **headers: str) -> web.Response:
    """An answer with a JSON body."""
    return web.Response(
        status=status,
        body=msgspec.json.encode({} if body is None else body),
        headers={"Content-Type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}},
    )


def failure(code: int, reason: str, message: str = "no", **headers: str) -> web.Response:
    status = {"kind": "Status", "code": code, "reason": reason, "message": message}
    return reply(status, status=code, **headers)


def answers(*replies: web.StreamResponse) -> Script:
    """Return a script of prepared responses, in order."""
    left = list(replies)

    async def script(request: web.Request) -> web.StreamResponse:
        return left.pop(0)

    return script


async def silence(_request: web.Request) -> web.StreamResponse:
    """Return a script that accepts every request and never answers."""
    await asyncio.Event().wait()
    raise AssertionError


async def send_chunks(request: web.Request, chunks: Iterable[bytes]) -> web.StreamResponse:
    """A streamed answer, each chunk a write of its own."""
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    for chunk in chunks:
        await response.write(chunk)
        await asyncio.sleep(0)
    await response.write_eof()
    return response


def intermediate(root: KeyPair, name: str) -> KeyPair:
    """Return a CA signed by another CA."""
    return _reissued(make_ca(name), root, x509.AuthorityKeyIdentifier)


def plain_chain(*hosts: str) -> tuple[KeyPair, KeyPair]:
    """Return a CA as EKS makes it, and a pair of this CA: without identifiers of their keys."""
    made = make_ca("kubernetes")
    authority = _reissued(made, made, *_IDENTIFIERS)
    return authority, _reissued(sign(made, "kube-apiserver", hosts=hosts), authority, *_IDENTIFIERS)


_IDENTIFIERS = (x509.AuthorityKeyIdentifier, x509.SubjectKeyIdentifier)


def _reissued(own: KeyPair, issuer: KeyPair, *without: type[x509.ExtensionType]) -> KeyPair:
    by = x509.load_pem_x509_certificate(issuer.certificate)
    issuer_key = serialization.load_pem_private_key(issuer.key, password=None)
    assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
    template = x509.load_pem_x509_certificate(own.certificate)
    builder = x509.CertificateBuilder(
        issuer_name=by.subject,
        subject_name=template.subject,
        public_key=template.public_key(),
        serial_number=template.serial_number,
        not_valid_before=template.not_valid_before_utc,
        not_valid_after=template.not_valid_after_utc,
    )
    for extension in template.extensions:
        if not isinstance(extension.value, without):
            builder = builder.add_extension(extension.value, critical=extension.critical)
    signed = builder.sign(issuer_key, hashes.SHA256())
    return KeyPair(signed.public_bytes(serialization.Encoding.PEM), own.key)


@asynccontextmanager
async def serve(
    script: Script, *, tls: bool = False, clients: bytes | None = None, pair: KeyPair | None = None
) -> AsyncIterator[Server]:
    """Serve a script on a free port; TLS with a certificate of ``CA``, or with ``pair``."""
    server = Server(scheme="https" if tls else "http")

    async def handle(request: web.Request) -> web.StreamResponse:
        sent = (dict(request.query), dict(request.headers), await request.read(), request.transport)
        server.asked.append(Asked(request.method, request.path, *sent))
        return await script(request)

    pair = pair or sign(CA, "loopback", hosts=["127.0.0.1", "inside.example"])
    context = server_context(pair, clients=clients) if tls else None
    route = web.route("*", "/{path:.*}", handle)
    async with served(route, tls=context, shutdown_timeout=0.1, handler_cancellation=True) as port:
        server.port = port
        yield server


def client_of(server: Server, *, credentials: Credentials | None = None, **options: Any) -> Client:
    """A client without a rate limit."""
    context = client_context(CA) if server.scheme == "https" else None
    config = ConnectionConfig(server.url, ssl_context=context, credentials=credentials)
    return Client(config, **{"qps": 0, **options})
