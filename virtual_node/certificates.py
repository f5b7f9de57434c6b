"""Requests a virtual node's serving certificate by CertificateSigningRequest, as kubelets do, and renews it.

The request is made *as* the node, by impersonation, because approvers compare ``spec.username`` with the
common name. All other requests use our own name. Keys and certificates exist only in memory.

The serving certificates of virtual nodes: from files, self-signed, or signed by the upper cluster.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import random
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from clusterset.model.pod.conditions import condition
from controller_runtime import log
from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError, ConfigError, Conflict, Expired, Forbidden, NotFound
from controller_runtime.resources import CERTIFICATE_SIGNING_REQUESTS
from controller_runtime.tls import key_pairs
from controller_runtime.tls.key_pairs import PrivateKey, alternative_name
from controller_runtime.tls.pem import KeyPair
from controller_runtime.tls.reloader import CertificateReloader
from controller_runtime.util.rate_limiter import ExponentialBackoff
from virtual_node.config.types import KubeletConfig
from virtual_node.kubelet.auth import load_client_ca

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
SIGNER = "kubernetes.io/kubelet-serving"
GROUP = "system:nodes"

NOT_RENEWED = "ServingCertificateFailed"
"""Reason of the event about a certificate that was not issued."""


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
            body = request_object(name, self.node_name, self.addresses, key)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        self._made[name] = ""
        headers = impersonation(self.node_name)
        request = await self.client.create(CERTIFICATE_SIGNING_REQUESTS, body, headers=headers)
        self._made[name] = request["metadata"]["uid"]
        async with asyncio.timeout(_PATIENCE):
            certificate = await self._approved_and_signed(request)
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        share = random.uniform(*ROTATE_BETWEEN)  # noqa: S311 - spreads nodes out
        rotate_at = rotation_time(certificate, now=self.now(), share=share)
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
            if has_condition(request, "Approved") or has_condition(request, "Denied"):
                return True  # approved or denied by another client
            try:
                await self.client.update(
                    CERTIFICATE_SIGNING_REQUESTS, approved(request), subresource="approval"
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
            certificate = certificate_of(request)
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
                    certificate = certificate_of(event.object.to_dict())
                    if certificate is not None:
                        return certificate
        return None

    def _failed(self, error: Exception, pause: float) -> None:
        text = str(error) or f"neither issued nor denied within {_PATIENCE:.0f} s"
        fix = "virtual-node check says which rights are missing" if isinstance(error, Forbidden) else None
        self._log.warning(
            "no serving certificate", error=text, retry_in=round(pause, 1), **({"fix": fix} if fix else {})
        )
        self.record_event(NOT_RENEWED, f"No serving certificate from {SIGNER}: {text}")

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


class RequestFailed(Exception):  # noqa: N818 - a result of a request, not a program error
    """A request will not lead to a certificate; the message says why."""


def user_name(node_name: str) -> str:
    """Return a node's user name, which is also its certificate's common name."""
    return f"system:node:{node_name}"


def impersonation(node_name: str) -> dict[str, str]:
    """Return the headers that make a request as the node."""
    return {"Impersonate-User": user_name(node_name), "Impersonate-Group": GROUP}


def signing_request(node_name: str, addresses: Iterable[Mapping[str, str]], key: PrivateKey) -> bytes:
    """Return a PKCS#10 request (PEM) for a node, as the signer requires it.

    Args:
        node_name: at most 52 characters, otherwise the common name is too long for X.509.
        addresses: ``status.addresses`` of the Node; all of them become alternative names.
        key: private key of the certificate.

    Raises:
        ValueError: the name is too long, or there is no address.
    """
    hosts = dict.fromkeys(address["address"] for address in addresses)
    if not hosts:
        raise ValueError(f"node {node_name} has no address to certify")
    names = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, GROUP)]
    names.append(x509.NameAttribute(NameOID.COMMON_NAME, user_name(node_name)))
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(names))
    alternatives = x509.SubjectAlternativeName([alternative_name(host) for host in hosts])
    request = builder.add_extension(alternatives, critical=False).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM)


def usages(key: PrivateKey) -> list[str]:
    """Return ``spec.usages`` of a request; the signer accepts exactly these."""
    encipherment = ["key encipherment"] if isinstance(key, rsa.RSAPrivateKey) else []
    return ["digital signature", *encipherment, "server auth"]


def request_object(
    name: str, node_name: str, addresses: Iterable[Mapping[str, str]], key: PrivateKey
) -> dict[str, Any]:
    """Return the CertificateSigningRequest to create.

    Raises:
        ValueError: as ``signing_request``.
    """
    return {
        "metadata": {"name": name},
        "spec": {
            "request": base64.b64encode(signing_request(node_name, addresses, key)).decode(),
            "signerName": SIGNER,
            "usages": usages(key),
        },
    }


def has_condition(request: Mapping[str, Any], kind: str) -> bool:
    """Report whether a CertificateSigningRequest has a condition: Approved, Denied or Failed."""
    found = condition(request.get("status"), kind)
    return bool(found) and found.get("status") != "False"


def approved(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the CertificateSigningRequest with our approval."""
    status = request.get("status") or {}
    approval = {
        "type": "Approved",
        "status": "True",
        "reason": "ApprovedByVirtualNode",
        "message": "The virtual node approved its own request (kubelet.approveServingCertificate).",
    }
    return {**request, "status": {**status, "conditions": [*(status.get("conditions") or []), approval]}}


def certificate_of(request: Mapping[str, Any]) -> bytes | None:
    """Return the certificate (PEM, with its chain) issued for a CertificateSigningRequest; None: not yet.

    Raises:
        RequestFailed: no certificate will be issued, or what was issued is not a certificate.
    """
    for kind in ("Denied", "Failed"):
        if has_condition(request, kind):
            found = condition(request.get("status"), kind)
            why = found.get("message") or found.get("reason") or "no reason given"
            raise RequestFailed(f"{kind.lower()}: {why}")
    encoded = (request.get("status") or {}).get("certificate")
    if not encoded:
        return None
    try:
        certificate = base64.b64decode(encoded)
        x509.load_pem_x509_certificate(certificate)
    except ValueError as error:
        raise RequestFailed(f"status.certificate is not a certificate: {error}") from None
    return certificate


def rotation_time(certificate: bytes, *, now: datetime, share: float) -> datetime:
    """Return when to renew a certificate (PEM).

    Signers backdate certificates by minutes. The time before ``now`` does not count, because otherwise
    short-lived certificates would be due at once.

    Args:
        certificate: the certificate just issued.
        now: timezone-aware current time.
        share: fraction of the remaining lifetime after which to renew the certificate; 0.7 to 0.9.

    Raises:
        RequestFailed: the certificate has already expired.
    """
    leaf = x509.load_pem_x509_certificate(certificate)
    begin, end = max(leaf.not_valid_before_utc, now), leaf.not_valid_after_utc
    if end <= now:
        raise RequestFailed(f"the certificate expired at {end:%Y-%m-%dT%H:%M:%SZ}")
    return begin + (end - begin) * share


_REFRESH_SECONDS = 300.0
"""Seconds between two reads of the published CA, which changes once in years. A watch would need two more
rights in every installation."""
_FIRST_RETRY = 15.0
"""Seconds between two reads while the CA is unknown, because users cannot read logs without it."""
_log = log.get_logger(component="kubelet")


@dataclass(eq=False, repr=False)
class NodeCertificates:
    """Creates and renews the certificates of virtual nodes."""

    config: KubeletConfig
    upper: Client
    """The upper cluster, which signs the certificates if their source is ``CSR``."""
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _reloaders: dict[str, CertificateReloader] = field(default_factory=dict)
    """The newest reloader of each node; an older one that ends must not remove the newer one's metric."""
    _issued: dict[str, Issued] = field(default_factory=dict)
    """Certificates issued by the upper cluster and in use, by node; a lower cluster that restarts keeps
    them."""

    def reloader(
        self, node_name: str, addresses: Sequence[Mapping[str, str]], *, client_ca: str | bytes
    ) -> CertificateReloader:
        """Return a reloader with the first certificate that a node's kubelet API serves.

        Args:
            node_name: the virtual node.
            addresses: its ``status.addresses``.
            client_ca: CA of the callers' certificates: a file's path, or PEM; empty: none.

        Raises:
            ConfigError: the files, or the CA, cannot be used.
        """
        config, name = self.config, f"kubelet-{node_name}"
        if config.certificate_source == "Files":
            reloader = CertificateReloader(
                config.tls_cert_file, config.tls_private_key_file, client_ca=client_ca, name=name
            )
        else:
            if node_name in self._issued:
                pair = self._issued[node_name].pair
            else:
                hosts = [address["address"] for address in addresses]
                pair = key_pairs.self_signed(f"system:node:{node_name}", hosts=hosts)
            reloader = CertificateReloader.from_pair(pair, client_ca=client_ca, name=name)
        self._reloaders[node_name] = reloader
        return reloader

    def maintain(
        self,
        reloader: CertificateReloader,
        node_name: str,
        addresses: Sequence[Mapping[str, str]],
        *,
        record_event: RecordEvent,
    ) -> list[asyncio.Task[None]]:
        """Start tasks that reload certificate and CA from files, and with ``CSR`` request and renew the certificate.

        Args:
            reloader: returned by ``reloader``.
            node_name: the virtual node.
            addresses: its ``status.addresses``.
            record_event: writes Events on the Node.

        Returns:
            The tasks, which the caller cancels when the node is no longer served.
        """

        def ended(_task: asyncio.Task[None]) -> None:
            if self._reloaders.get(node_name) is reloader:
                del self._reloaders[node_name]
                reloader.forget()

        tasks = [asyncio.create_task(reloader.run(), name=f"certificate {node_name}")]
        tasks[0].add_done_callback(ended)
        if self.config.certificate_source == "CSR":

            def install(issued: Issued) -> None:
                reloader.replace(issued.pair)
                self._issued[node_name] = issued

            signed = ServingCertificate(
                self.upper,
                node_name,
                addresses,
                install=install,
                record_event=record_event,
                approve=self.config.approve_serving_certificate,
                issued=self._issued.get(node_name),
            )
            tasks.append(asyncio.create_task(signed.run(), name=f"serving certificate {node_name}"))
        for task in tasks:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return tasks

    def trust(self, client_ca: bytes) -> None:
        """Replace the CA (PEM) of the callers' certificates for all nodes.

        Raises:
            ConfigError: the CA cannot be used.
        """
        for reloader in self._reloaders.values():
            reloader.trust(client_ca)

    async def close(self) -> None:
        """Stop all certificate tasks."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(eq=False, repr=False)
class ClientAuthority:
    """Holds the CA of our callers' client certificates, and follows its changes.

    Attributes:
        known: path of the file, or the published CA (PEM); empty while the CA is unknown.
    """

    file: str
    """Path of a PEM file, which the server's certificate reloader follows; empty: the CA that the upper cluster
    publishes."""
    upper: Client
    """The upper cluster."""
    changed: Callable[[bytes], None]
    """Called with a new CA (PEM); may raise ConfigError."""

    def __post_init__(self) -> None:
        """Use the file, if there is one."""
        self.known: str | bytes = self.file or b""

    async def load(self) -> None:
        """Read the CA once; on an error, callers need bearer tokens until a later read succeeds."""
        if self.file:
            return
        try:
            self.known = await load_client_ca(self.upper)
        except (ApiError, ConfigError) as error:
            _log.warning(
                "client CA not readable: only callers with bearer tokens are accepted",
                why=str(error),
                fix="grant get on configmap kube-system/extension-apiserver-authentication, or --client-verify-ca",
            )

    async def follow(self) -> None:
        """Read the CA periodically until cancelled, because it may change; return at once if it is a file."""
        while not self.file:
            await asyncio.sleep(_REFRESH_SECONDS if self.known else _FIRST_RETRY)
            try:
                found = await load_client_ca(self.upper)
                if found == self.known:
                    continue
                self.changed(found)
            except (ApiError, ConfigError) as error:
                _log.debug("client CA not read", why=str(error))
                continue
            self.known = found
            _log.info("using the client CA of the upper cluster", bytes=len(found))
