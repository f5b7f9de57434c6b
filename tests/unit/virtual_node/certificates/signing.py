"""An upper cluster's CertificateSigningRequests in memory, and a scripted signer."""

from __future__ import annotations

import asyncio
import base64
from collections import defaultdict
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from controller_runtime.errors import ApiError
from controller_runtime.resources import Resource
from controller_runtime.tls.key_pairs import make_ca
from tests.fakes.apiserver.client import MemoryClient
from tests.fakes.apiserver.server import Server
from tests.fakes.apiserver.storage import Body, Commit
from virtual_node import certificates

_PLURAL = "certificatesigningrequests"
START = datetime(2026, 1, 1, tzinfo=UTC)
YEAR = timedelta(days=365)
ADDRESSES = [
    {"type": "InternalIP", "address": "10.0.0.7"},
    {"type": "Hostname", "address": "vn-a"},
    {"type": "ExternalIP", "address": "2001:db8::7"},
]
EC_KEY = ec.generate_private_key(ec.SECP256R1())
CA = make_ca("cluster-ca", now=START)


def now() -> datetime:
    """Return the wall clock of the loop's virtual time."""
    return START + timedelta(seconds=asyncio.get_running_loop().time())


def certify(request: bytes, *, at: datetime, life: timedelta = YEAR) -> bytes:
    """Return a signer's certificate for a PKCS#10 request: backdated by five minutes, for its key."""
    asked = x509.load_pem_x509_csr(request)
    issuer = x509.load_pem_x509_certificate(CA.certificate)
    key = serialization.load_pem_private_key(CA.key, password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return (
        x509.CertificateBuilder()
        .subject_name(asked.subject)
        .issuer_name(issuer.subject)
        .public_key(asked.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(at - timedelta(minutes=5))
        .not_valid_after(at + life)
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )


GOOD = certify(certificates.signing_request("vn-a", ADDRESSES, EC_KEY), at=START)
"""A certificate for another key than that of any request."""


class FakeCluster(MemoryClient):
    """An upper cluster with a scripted signer of CertificateSigningRequests."""

    def __init__(self) -> None:
        super().__init__(Server("upper"))
        self.created: list[tuple[float, Mapping[str, str]]] = []
        """Time and headers of each request to create one."""
        self.on_create: Callable[[str], None] = lambda _name: None
        self.errors: defaultdict[str, list[ApiError]] = defaultdict(list)
        """Errors of the next requests, by verb."""
        self.fault = lambda verb, _plural, _key: self.errors[verb].pop(0) if self.errors[verb] else None
        self.life = YEAR
        self.server.observers.append(self._act)

    @property
    def requests(self) -> Mapping[str, Body]:
        return self.server.objects[_PLURAL]

    @property
    def approvals(self) -> list[str]:
        """Return the names of the approved requests."""
        return [commit.key for commit in self.server.history[_PLURAL] if commit.verb == "patch approval"]

    async def create(self, resource: Resource, body: Mapping[str, Any], **options: Any) -> Body:
        self.created.append((asyncio.get_running_loop().time(), options["headers"]))
        return await super().create(resource, body, **options)

    def _act(self, commit: Commit) -> None:
        if commit.verb == "create":
            self.on_create(commit.key)
        elif commit.verb == "patch approval":
            self.issue(commit.key)

    def issue(self, name: str, certificate: bytes | None = None) -> None:
        """Sign a request, or simulate it."""
        asked = base64.b64decode(self.requests[name]["spec"]["request"])
        made = certificate if certificate is not None else certify(asked, at=now(), life=self.life)
        self._set_status(name, certificate=base64.b64encode(made).decode())

    def condition(self, name: str, kind: str, message: str = "") -> None:
        """Approve, deny or fail a request."""
        before = self.requests[name].get("status", {}).get("conditions", [])
        self._set_status(name, conditions=[*before, {"type": kind, "status": "True", "message": message}])

    def _set_status(self, name: str, **status: Any) -> None:
        self.server.patch(_PLURAL, name, {"status": status}, subresource="status")
