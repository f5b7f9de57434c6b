"""An upper cluster's CertificateSigningRequests in memory, and a scripted signer."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from controller_runtime.errors import ApiError, NotFound
from controller_runtime.objects import WatchEvent, from_dict
from controller_runtime.tls.reloader import make_ca
from virtual_node.certificates import csr

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


GOOD = certify(csr.signing_request("vn-a", ADDRESSES, EC_KEY), at=START)
"""A certificate for another key than that of any request."""


class FakeCluster:
    """The CertificateSigningRequests of an upper cluster, with a scripted signer."""

    def __init__(self) -> None:
        self.requests: dict[str, dict[str, Any]] = {}
        self.created: list[tuple[float, dict[str, Any], Mapping[str, str]]] = []
        self.deleted: list[str] = []
        self.approvals: list[str] = []
        self.on_create: Callable[[str], None] = lambda _name: None
        self.on_approve: Callable[[str], None] = self.issue
        self.create_errors: list[ApiError] = []
        self.update_errors: list[ApiError] = []
        self.watch_errors: list[ApiError] = []
        self.life = YEAR
        self._version = 0
        self._watchers: list[asyncio.Queue[WatchEvent]] = []

    async def create(
        self, _resource: Any, body: Mapping[str, Any], *, headers: Mapping[str, str]
    ) -> dict[str, Any]:
        name = body["metadata"]["name"]
        self.created.append((asyncio.get_running_loop().time(), dict(body), headers))
        if self.create_errors:
            raise self.create_errors.pop(0)
        metadata = {"name": name, "uid": f"uid-{name}"}
        made = self._put({**body, "metadata": metadata, "status": {}})
        self.on_create(name)
        return made

    async def get(self, _resource: Any, name: str) -> dict[str, Any]:
        if name not in self.requests:
            raise NotFound("gone", code=404)
        return self.requests[name]

    async def update(self, _resource: Any, body: Mapping[str, Any], *, subresource: str) -> dict[str, Any]:
        assert subresource == "approval"
        if self.update_errors:
            raise self.update_errors.pop(0)
        name = body["metadata"]["name"]
        self.approvals.append(name)
        answer = self._put(dict(body))
        self.on_approve(name)
        return answer

    async def delete(self, _resource: Any, name: str, *, uid: str | None) -> None:
        found = self.requests.pop(name, None)
        if found is None:
            raise NotFound("gone", code=404)
        assert uid in {None, found["metadata"]["uid"]}
        self.deleted.append(name)
        self._tell("DELETED", found)

    async def watch(
        self, _resource: Any, *, field_selector: str, resource_version: str
    ) -> AsyncIterator[WatchEvent]:
        if self.watch_errors:
            raise self.watch_errors.pop(0)
        name = field_selector.removeprefix("metadata.name=")
        queue: asyncio.Queue[WatchEvent] = asyncio.Queue()
        self._watchers.append(queue)
        try:
            found = self.requests.get(name)
            if found is not None and int(found["metadata"]["resourceVersion"]) > int(resource_version):
                yield WatchEvent("MODIFIED", from_dict(found))
            while True:
                event = await queue.get()
                if event.object.name == name:
                    yield event
        finally:
            self._watchers.remove(queue)

    def issue(self, name: str, certificate: bytes | None = None) -> None:
        """Sign a request, or simulate it."""
        found = self.requests[name]
        asked = base64.b64decode(found["spec"]["request"])
        made = certificate if certificate is not None else certify(asked, at=now(), life=self.life)
        self.change(name, certificate=base64.b64encode(made).decode())

    def condition(self, name: str, kind: str, message: str = "") -> None:
        """Approve, deny or fail a request."""
        before = self.requests[name].get("status", {}).get("conditions", [])
        self.change(name, conditions=[*before, {"type": kind, "status": "True", "message": message}])

    def change(self, name: str, **status: Any) -> None:
        """Write a request's status and send it to watches."""
        found = self.requests[name]
        self._tell("MODIFIED", self._put({**found, "status": {**found.get("status", {}), **status}}))

    def _put(self, whole: dict[str, Any]) -> dict[str, Any]:
        self._version += 1
        stored = {**whole, "metadata": {**whole["metadata"], "resourceVersion": str(self._version)}}
        self.requests[stored["metadata"]["name"]] = stored
        return stored

    def _tell(self, kind: str, whole: dict[str, Any]) -> None:
        for queue in self._watchers:
            queue.put_nowait(WatchEvent(kind, from_dict(whole)))
