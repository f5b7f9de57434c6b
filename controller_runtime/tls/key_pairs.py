"""Creates X.509 key pairs (PEM in memory, ECDSA P-256) and reads certificates."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
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
_SERVER, _CLIENT = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH
_PURPOSES: Mapping[Usage, Sequence[x509.ObjectIdentifier]] = {
    "server": [_SERVER],
    "client": [_CLIENT],
    "both": [_SERVER, _CLIENT],
}
_Extensions = list[tuple[x509.ExtensionType, bool]]
"""Extensions of a certificate, and whether each is critical."""


def make_ca(
    common_name: str,
    *,
    validity: timedelta = 10 * _YEAR,
    now: datetime | None = None,
    key: PrivateKey | None = None,
) -> KeyPair:
    """Return a new self-signed certificate authority, with a new ECDSA key unless a key is given."""
    key = key or ec.generate_private_key(ec.SECP256R1())
    name = _name(common_name)
    return _issued(name, key, name, key, _basic(ca=True), validity=validity, now=now)


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
        validity: time from now until the certificate expires. Its validity begins five minutes before now.
        now: the current time, for tests.

    Raises:
        ValueError: the CA's pair cannot be read, its key does not match its certificate, or its key is
            neither ECDSA nor RSA.
    """
    issuer = x509.load_pem_x509_certificate(ca.certificate)
    issuer_key = _private_key(ca.key)
    if issuer.public_key() != issuer_key.public_key():
        raise ValueError("the CA's key does not belong to its certificate")
    return _issued(
        _name(common_name, organizations),
        ec.generate_private_key(ec.SECP256R1()),
        issuer.subject,
        issuer_key,
        _leaf(hosts, usage),
        validity=validity,
        now=now,
        limit=issuer.not_valid_after_utc,
    )


def self_signed(common_name: str, *, hosts: Sequence[str] = (), validity: timedelta = 10 * _YEAR) -> KeyPair:
    """Return a self-signed certificate, as a kubelet without a serving certificate creates one."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(common_name)
    return _issued(name, key, name, key, _leaf(hosts, "server"), validity=validity)


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


@lru_cache(maxsize=2)
def _private_key(pem: bytes) -> PrivateKey:
    """Parse a CA's key. It is kept, because an RSA key is verified for 50 ms each time, and a CA signs many pairs."""
    key = serialization.load_pem_private_key(pem, password=None)
    if not isinstance(key, PrivateKey):
        raise ValueError("the CA's key is neither ECDSA nor RSA")
    return key


def _name(common_name: str, organizations: Sequence[str] = ()) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in organizations]
    attributes.append(x509.NameAttribute(NameOID.COMMON_NAME, common_name[:_COMMON_NAME_LENGTH]))
    return x509.Name(attributes)


def _issued(
    subject: x509.Name,
    key: PrivateKey,
    issuer: x509.Name,
    issuer_key: PrivateKey,
    extensions: _Extensions,
    *,
    validity: timedelta,
    now: datetime | None = None,
    limit: datetime | None = None,
) -> KeyPair:
    """Return a key with a new certificate for it, which expires no later than ``limit``."""
    start = now or datetime.now(UTC)
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start - _BACKDATE)
        .not_valid_after(min(start + validity, limit or start + validity))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(authority, critical=False)
    )
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical=critical)
    return KeyPair(
        builder.sign(issuer_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    )


def _leaf(hosts: Sequence[str], usage: Usage) -> _Extensions:
    extensions = [*_basic(ca=False), (x509.ExtendedKeyUsage(_PURPOSES[usage]), False)]
    if hosts:
        names = [alternative_name(host) for host in dict.fromkeys(hosts)]
        extensions.append((x509.SubjectAlternativeName(names), False))
    return extensions


def alternative_name(host: str) -> x509.GeneralName:
    """Return the subject alternative name of a DNS name or an IP address."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _basic(*, ca: bool) -> _Extensions:
    usage = x509.KeyUsage(
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
    return [(x509.BasicConstraints(ca=ca, path_length=None), True), (usage, True)]
