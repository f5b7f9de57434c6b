"""Builds CertificateSigningRequests for ``kubernetes.io/kubelet-serving`` and reads their results. Does no IO."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from clusterset.model.pod.conditions import condition
from controller_runtime.tls.key_pairs import PrivateKey, alternative_name

SIGNER = "kubernetes.io/kubelet-serving"
GROUP = "system:nodes"


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
