"""Creates X.509 key pairs: PEM in memory, ECDSA P-256. Import them from ``reloader``."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from controller_runtime.tls.pem import KeyPair

Usage = Literal["server", "client", "both"]
PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey

_BACKDATE = timedelta(minutes=5)
"""Certificates are valid from this long before their creation, for peers with a clock behind ours."""
_COMMON_NAME_LENGTH = 64
"""Maximum length (RFC 5280); longer names are cut. Clients do not verify serving certificates by this
name."""
_YEAR = timedelta(days=365)


def make_ca(
    common_name: str,
    *,
    validity: timedelta = 10 * _YEAR,
    now: datetime | None = None,
    key: PrivateKey | None = None,
) -> KeyPair:
    """Return a new self-signed certificate authority, with a new ECDSA key unless a key is given."""
    key = key or ec.generate_private_key(ec.SECP256R1())
    name = _name(common_name, ())
    builder = _builder(name, name, key.public_key(), issuer_key=key.public_key(), validity=validity, now=now)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    builder = builder.add_extension(_key_usage(ca=True), critical=True)
    return _pair(builder.sign(key, hashes.SHA256()), key)


def sign(
    ca: KeyPair,
    common_name: str,
    *,
    organizations: Sequence[str] = (),
    hosts: Sequence[str] = (),
    usage: Usage = "server",
    validity: timedelta = _YEAR,
    now: datetime | None = None,
) -> KeyPair:
    """Return a new key and a certificate for it, signed by a CA.

    Args:
        ca: the authority. The certificate expires no later than the authority's certificate.
        common_name: for Kubernetes the name of the user; cut at 64 characters.
        organizations: for Kubernetes the groups of the user.
        hosts: DNS names and IP addresses of a server, mixed.
        usage: whether the certificate is for servers, clients or both.
        validity: time from now until the certificate expires; it is also valid for the last five minutes.
        now: the current time, for tests.

    Raises:
        ValueError: the CA's pair cannot be read, its key does not match its certificate, or its key is
            neither ECDSA nor RSA.
    """
    issuer = x509.load_pem_x509_certificate(ca.certificate)
    issuer_key = serialization.load_pem_private_key(ca.key, password=None)
    if not isinstance(issuer_key, PrivateKey):
        raise ValueError("the CA's key is neither ECDSA nor RSA")
    if issuer.public_key() != issuer_key.public_key():
        raise ValueError("the CA's key does not belong to its certificate")
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(
        _name(common_name, organizations),
        issuer.subject,
        key.public_key(),
        issuer_key=issuer_key.public_key(),
        validity=validity,
        now=now,
        limit=issuer.not_valid_after_utc,
    )
    return _pair(_leaf(builder, hosts, usage).sign(issuer_key, hashes.SHA256()), key)


def self_signed(common_name: str, *, hosts: Sequence[str] = (), validity: timedelta = 10 * _YEAR) -> KeyPair:
    """Return a self-signed certificate, as a kubelet without a serving certificate creates one."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(common_name, ())
    builder = _builder(name, name, key.public_key(), issuer_key=key.public_key(), validity=validity, now=None)
    return _pair(_leaf(builder, hosts, "server").sign(key, hashes.SHA256()), key)


def expiry(certificate: bytes) -> datetime:
    """Return when the first certificate of a PEM bundle expires (UTC).

    Raises:
        ValueError: there is no certificate in it.
    """
    return x509.load_pem_x509_certificate(certificate).not_valid_after_utc


def share_left(certificate: bytes, now: datetime) -> float:
    """Return the remaining fraction of the first certificate's lifetime: 1 at its start, 0 at its end.

    Raises:
        ValueError: there is no certificate in it.
    """
    loaded = x509.load_pem_x509_certificate(certificate)
    begin, end = loaded.not_valid_before_utc, loaded.not_valid_after_utc
    return (end - now) / (end - begin)


def covers(certificate: bytes, hosts: Sequence[str]) -> bool:
    """Report whether a server's certificate is valid for all these names and addresses."""
    loaded = x509.load_pem_x509_certificate(certificate)
    try:
        names = loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return not hosts
    covered = {*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))}
    return covered >= set(hosts)


def is_issued_by(certificate: bytes, ca: bytes) -> bool:
    """Report whether a CA's key has signed the first certificate."""
    try:
        x509.load_pem_x509_certificate(certificate).verify_directly_issued_by(
            x509.load_pem_x509_certificate(ca)
        )
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _name(common_name: str, organizations: Sequence[str]) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in organizations]
    attributes.append(x509.NameAttribute(NameOID.COMMON_NAME, common_name[:_COMMON_NAME_LENGTH]))
    return x509.Name(attributes)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: ec.EllipticCurvePublicKey | rsa.RSAPublicKey,
    *,
    issuer_key: ec.EllipticCurvePublicKey | rsa.RSAPublicKey,
    validity: timedelta,
    now: datetime | None,
    limit: datetime | None = None,
) -> x509.CertificateBuilder:
    start = now or datetime.now(UTC)
    end = min(start + validity, limit) if limit else start + validity
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start - _BACKDATE)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        .add_extension(authority, critical=False)
    )


def _leaf(builder: x509.CertificateBuilder, hosts: Sequence[str], usage: Usage) -> x509.CertificateBuilder:
    purposes = {
        "server": [ExtendedKeyUsageOID.SERVER_AUTH],
        "client": [ExtendedKeyUsageOID.CLIENT_AUTH],
        "both": [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH],
    }[usage]
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_key_usage(ca=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    if hosts:
        names = [alternative_name(host) for host in dict.fromkeys(hosts)]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder


def alternative_name(host: str) -> x509.GeneralName:
    """Return the subject alternative name of a DNS name or an IP address."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_usage(*, ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=ca,
        crl_sign=ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pair(certificate: x509.Certificate, key: PrivateKey) -> KeyPair:
    return KeyPair(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    )
