"""Requests a virtual node's serving certificate by CertificateSigningRequest, as kubelets do, and renews it.

The request is made *as* the node, by impersonation, because approvers compare ``spec.username`` with the
common name. All other requests use our own name. Keys and certificates exist only in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from controller_runtime import log
from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError, ConfigError, Conflict, Expired, Forbidden, NotFound
from controller_runtime.resources import CERTIFICATE_SIGNING_REQUESTS
from controller_runtime.tls.pem import KeyPair
from controller_runtime.util.backoff import ExponentialBackoff
from virtual_node.certificates import csr
from virtual_node.certificates.csr import RequestFailed

ROTATE_BETWEEN = (0.7, 0.9)
"""Fractions of a certificate's lifetime between which it is renewed, as in client-go's certificate manager."""

RecordEvent = Callable[[str, str], None]
"""Called with a reason (CamelCase) and a message, for an Event on the Node."""

_PATIENCE = 3600.0
"""Seconds that one request may wait for its certificate, because a person may have to approve it. A kubelet
makes a new request every 15 minutes, and its old requests pile up."""
_RETRY = (2.0, 600.0)
"""First and longest pause after a failure, in seconds."""
_APPROVER = 10.0
"""Seconds for an approver in the cluster before an Event asks for a manual approval."""
_WATCH_PAUSE = 2.0
"""Seconds between a watch's end and the next one; servers end watches after minutes."""
_LOOK = 3600.0
"""Longest sleep, in seconds: certificates expire by wall clock, which the loop's clock does not follow during
suspend."""
_DELETE_TIMEOUT = 3.0
"""Seconds that removing our requests may take."""
_APPROVAL_TRIES = 5


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate in use and when to renew it (timezone-aware)."""

    pair: KeyPair
    rotate_at: datetime


@dataclass(eq=False, repr=False)
class ServingCertificate:
    """Requests a virtual node's certificate and renews it while ``run`` runs."""

    client: Client
    """Client of the upper cluster."""
    node_name: str
    addresses: Sequence[Mapping[str, str]]
    """``status.addresses`` of the virtual node."""
    install: Callable[[Issued], None]
    """Makes the server use a certificate from the next connection on; may raise ConfigError."""
    record_event: RecordEvent
    """Writes Events on the Node."""
    approve: bool = False
    """Whether to approve our own requests."""
    issued: Issued | None = None
    """The certificate that an earlier instance in this process installed; None: none."""
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    """Returns the wall-clock time; tests replace it."""
    _made: dict[str, str] = field(default_factory=dict)
    """UIDs by name of our requests that are not deleted yet; an empty UID: the response was lost."""

    def __post_init__(self) -> None:
        """Continue with the certificate of the earlier instance."""
        self._rotate_at = self.issued.rotate_at if self.issued is not None else None
        self._log = log.get_logger(component="serving certificate", node=self.node_name)

    async def run(self) -> None:
        """Keep a valid certificate installed until cancelled; retry after every error."""
        backoff = ExponentialBackoff(*_RETRY)
        try:
            while True:
                await self._wait_until_due()
                try:
                    await self._renew()
                except (ApiError, ConfigError, RequestFailed, TimeoutError) as error:
                    pause = backoff.when("") * random.uniform(1, 1.1)  # noqa: S311 - spreads nodes out
                    self._failed(error, pause)
                    await asyncio.sleep(pause)
                except Exception:  # noqa: BLE001 - logged
                    # A programming error. No task awaits this one, so it would end unnoticed, and the
                    # certificate would expire.
                    pause = backoff.when("")
                    self._log.exception("no serving certificate", retry_in=round(pause, 1))
                    await asyncio.sleep(pause)
                else:
                    backoff.forget("")
        finally:
            await self._delete_requests()

    async def _wait_until_due(self) -> None:
        while self._rotate_at is not None and (left := self._rotate_at - self.now()) > timedelta():  # noqa: ASYNC110 - it waits for the wall clock
            await asyncio.sleep(min(max(left.total_seconds(), 1.0), _LOOK))

    async def _renew(self) -> None:
        """Make one request, wait for its certificate and install it.

        Raises:
            ApiError: the upper cluster refuses a mandatory request.
            ConfigError: the issued certificate cannot be served.
            RequestFailed: the request was denied, failed or was deleted, or the certificate has expired.
            TimeoutError: the request was not approved or signed in time.
        """
        # Delete a denied request only now; until now it can be inspected.
        await self._delete_requests()
        key = ec.generate_private_key(ec.SECP256R1())
        name = f"virtual-node-{self.node_name}-{secrets.token_hex(4)}"
        try:
            body = csr.request_object(name, self.node_name, self.addresses, key)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        self._made[name] = ""
        headers = csr.impersonation(self.node_name)
        request = await self.client.create(CERTIFICATE_SIGNING_REQUESTS, body, headers=headers)
        self._made[name] = request["metadata"]["uid"]
        async with asyncio.timeout(_PATIENCE):
            certificate = await self._approved_and_signed(request)
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        share = random.uniform(*ROTATE_BETWEEN)  # noqa: S311 - spreads nodes out
        rotate_at = csr.rotation_time(certificate, now=self.now(), share=share)
        self.install(Issued(KeyPair(certificate, private), rotate_at))
        self._rotate_at = rotate_at
        self._log.info("serving certificate issued", request=name, renewed_at=rotate_at.isoformat())
        await self._delete_requests()

    async def _approved_and_signed(self, request: Mapping[str, Any]) -> bytes:
        if self.approve and await self._approve_own(request):
            return await self._certificate(request)
        name = request["metadata"]["name"]
        people = asyncio.get_running_loop().call_later(_APPROVER, self._ask_for_approval, name)
        try:
            return await self._certificate(request)
        finally:
            people.cancel()

    async def _approve_own(self, request: Mapping[str, Any]) -> bool:
        """Approve our own request unless it is decided; return False if others must approve it."""
        name = request["metadata"]["name"]
        for _ in range(_APPROVAL_TRIES):
            if csr.has_condition(request, "Approved") or csr.has_condition(request, "Denied"):
                return True  # approved or denied by another client
            try:
                await self.client.update(
                    CERTIFICATE_SIGNING_REQUESTS, csr.approved(request), subresource="approval"
                )
            except Conflict:
                request = await self.client.get(CERTIFICATE_SIGNING_REQUESTS, name)
            except Forbidden as error:
                self._log.warning(
                    "no permission to approve our own certificate request", request=name, why=str(error)
                )
                return False
            else:
                return True
        return False

    def _ask_for_approval(self, name: str) -> None:
        command = f"kubectl certificate approve {name}"
        self._log.warning("serving certificate waits for approval", request=name, run=command)
        self.record_event(
            "ServingCertificatePending", f"The serving certificate waits for approval: {command}"
        )

    async def _certificate(self, request: Mapping[str, Any]) -> bytes:
        """Wait until a request has a certificate, and return it.

        Raises:
            RequestFailed: the request will not get one.
            ApiError: we may not read the request.
        """
        name = request["metadata"]["name"]
        while True:
            certificate = csr.certificate_of(request)
            if certificate is not None:
                return certificate
            try:
                certificate = await self._watch(name, request["metadata"]["resourceVersion"])
                if certificate is not None:
                    return certificate
            except Forbidden:
                raise
            except Expired:
                pass
            except ApiError as error:
                self._log.debug("watch of the certificate request failed", request=name, error=str(error))
            await asyncio.sleep(_WATCH_PAUSE)
            with contextlib.suppress(ApiError):
                request = await self._read(name)

    async def _read(self, name: str) -> dict[str, Any]:
        try:
            return await self.client.get(CERTIFICATE_SIGNING_REQUESTS, name)
        except NotFound:
            raise RequestFailed("the certificate request was deleted") from None

    async def _watch(self, name: str, version: str) -> bytes | None:
        events = self.client.watch(
            CERTIFICATE_SIGNING_REQUESTS,
            field_selector=f"metadata.name={name}",
            resource_version=version,
        )
        async with contextlib.aclosing(events):
            async for event in events:
                if event.type == "DELETED":
                    raise RequestFailed("the certificate request was deleted")
                if event.type != "BOOKMARK":
                    certificate = csr.certificate_of(event.object.to_dict())
                    if certificate is not None:
                        return certificate
        return None

    def _failed(self, error: Exception, pause: float) -> None:
        text = str(error) or f"neither issued nor denied within {_PATIENCE:.0f} s"
        fix = "virtual-node check says which rights are missing" if isinstance(error, Forbidden) else None
        self._log.warning(
            "no serving certificate", error=text, retry_in=round(pause, 1), **({"fix": fix} if fix else {})
        )
        self.record_event("ServingCertificateFailed", f"No serving certificate from {csr.SIGNER}: {text}")

    async def _delete_requests(self) -> None:
        """Delete the requests that we made; a later call retries the deletions that fail."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DELETE_TIMEOUT):
                for name, uid in list(self._made.items()):
                    try:
                        await self.client.delete(CERTIFICATE_SIGNING_REQUESTS, name, uid=uid or None)
                    except (NotFound, Conflict):
                        pass  # already deleted, or another request has this name now
                    except ApiError as error:
                        self._log.debug("certificate request not deleted", request=name, error=str(error))
                        continue
                    del self._made[name]
