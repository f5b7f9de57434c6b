"""CertificateSigningRequests for kubelet serving certificates: their content, and the meaning of their status."""

from __future__ import annotations

import base64
import ipaddress
from datetime import timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from tests.unit.virtual_node.certificates.signing import ADDRESSES, EC_KEY, GOOD, START, YEAR, certify
from virtual_node import certificates
from virtual_node.certificates import RequestFailed

RSA_KEY = rsa.generate_private_key(65537, 2048)


def _names_of(pem: bytes) -> x509.SubjectAlternativeName:
    extensions = x509.load_pem_x509_csr(pem).extensions
    return extensions.get_extension_for_class(x509.SubjectAlternativeName).value


def test_a_request_names_the_node_and_all_its_addresses():
    """Subject and alternative names are those that the signer kubernetes.io/kubelet-serving requires."""
    pem = certificates.signing_request("vn-a", ADDRESSES, EC_KEY)
    subject = x509.load_pem_x509_csr(pem).subject
    assert [name.value for name in subject.get_attributes_for_oid(NameOID.COMMON_NAME)] == [
        "system:node:vn-a"
    ]
    assert [name.value for name in subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)] == [
        "system:nodes"
    ]
    names = _names_of(pem)
    assert names.get_values_for_type(x509.DNSName) == ["vn-a"]
    assert names.get_values_for_type(x509.IPAddress) == [
        ipaddress.ip_address("10.0.0.7"),
        ipaddress.ip_address("2001:db8::7"),
    ]
    assert x509.load_pem_x509_csr(pem).is_signature_valid


def test_a_repeated_address_is_requested_once():
    """A node's name may be its address, or its inner address the outer one."""
    twice = [{"type": "InternalIP", "address": "10.0.0.7"}, {"type": "ExternalIP", "address": "10.0.0.7"}]
    assert len(list(_names_of(certificates.signing_request("vn-a", twice, EC_KEY)))) == 1


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (EC_KEY, ["digital signature", "server auth"]),
        (RSA_KEY, ["digital signature", "key encipherment", "server auth"]),
    ],
    ids=["ecdsa", "rsa"],
)
def test_usages_follow_the_key(key, expected):
    """Only RSA keys encipher; the signer accepts exactly these usages."""
    made = certificates.request_object("csr-1", "vn-a", ADDRESSES, key)
    assert made["spec"]["usages"] == expected
    assert made["spec"]["signerName"] == "kubernetes.io/kubelet-serving"
    assert base64.b64decode(made["spec"]["request"]).startswith(b"-----BEGIN CERTIFICATE REQUEST-----")


@pytest.mark.parametrize(("node", "addresses"), [("n" * 53, ADDRESSES), ("vn-a", [])])
def test_invalid_requests_are_not_sent(node, addresses):
    """A name too long for a certificate, and a node without addresses."""
    with pytest.raises(ValueError):
        certificates.signing_request(node, addresses, EC_KEY)


def _status(**fields: Any) -> dict[str, Any]:
    return {"status": fields}


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({}, None),
        (_status(conditions=[{"type": "Approved", "status": "True"}]), None),
        (_status(conditions=[{"type": "Denied", "status": "False"}]), None),
        (_status(certificate=base64.b64encode(GOOD).decode()), GOOD),
    ],
    ids=["new", "approved", "not denied after all", "issued"],
)
def test_only_an_issued_certificate_counts(request_, expected):
    """Approval alone is no certificate."""
    assert certificates.certificate_of(request_) == expected


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (
            _status(conditions=[{"type": "Denied", "status": "True", "message": "not here"}]),
            "denied: not here",
        ),
        (_status(conditions=[{"type": "Failed", "status": "True", "reason": "Bad"}]), "failed: Bad"),
        (_status(conditions=[{"type": "Denied", "status": "True"}]), "denied: no reason given"),
        (_status(certificate=base64.b64encode(b"rubbish").decode()), "not a certificate"),
        (_status(certificate="!"), "not a certificate"),
    ],
)
def test_a_failed_request_has_a_reason(request_, message):
    """Denied, failed or answered with invalid data."""
    with pytest.raises(RequestFailed, match=message):
        certificates.certificate_of(request_)


@pytest.mark.parametrize(
    ("life", "share", "expected"),
    [
        (YEAR, 0.7, YEAR * 0.7),
        (YEAR, 0.9, YEAR * 0.9),
        (timedelta(minutes=1), 0.7, timedelta(seconds=42)),
    ],
)
def test_rotation_is_due_after_a_share_of_the_remaining_life(life, share, expected):
    """The five minutes by which a signer backdates do not make a short certificate due at once."""
    certificate = certify(certificates.signing_request("vn-a", ADDRESSES, EC_KEY), at=START, life=life)
    assert certificates.rotation_time(certificate, now=START, share=share) == START + expected


def test_an_expired_certificate_is_not_used():
    """A signer with a wrong clock is a failure to be retried."""
    with pytest.raises(RequestFailed, match="expired"):
        certificates.rotation_time(GOOD, now=START + 2 * YEAR, share=0.8)
