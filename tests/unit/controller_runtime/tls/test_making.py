"""Certificates have exactly the requested properties."""

from __future__ import annotations

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from controller_runtime.tls import key_pairs
from controller_runtime.tls.key_pairs import Usage
from controller_runtime.tls.pem import KeyPair


class TestMaking:
    """make_ca, sign, self_signed, expiry, KeyPair."""

    def test_signed_certificate_names_user_groups_and_hosts(self, ca: KeyPair) -> None:
        """Common name, groups, DNS names and IP addresses."""
        made = key_pairs.sign(
            ca, "admin", organizations=["system:masters"], hosts=["a.example", "10.0.0.1", "::1", "a.example"]
        )
        certificate = x509.load_pem_x509_certificate(made.certificate)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value == "admin"
        assert (
            certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)[0].value == "system:masters"
        )
        assert names.get_values_for_type(x509.DNSName) == ["a.example"]
        assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.1", "::1"]

    @pytest.mark.parametrize(
        ("usage", "purposes"),
        [
            ("server", {ExtendedKeyUsageOID.SERVER_AUTH}),
            ("client", {ExtendedKeyUsageOID.CLIENT_AUTH}),
            ("both", {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}),
        ],
    )
    def test_usage_is_limited_to_the_requested_one(
        self, ca: KeyPair, usage: Usage, purposes: set[x509.ObjectIdentifier]
    ) -> None:
        """Server, client or both."""
        certificate = x509.load_pem_x509_certificate(key_pairs.sign(ca, "x", usage=usage).certificate)
        assert set(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == purposes

    def test_validity_starts_five_minutes_ago_and_ends_with_the_ca(self) -> None:
        """So that a slightly late clock of a peer accepts it."""
        now = datetime(2026, 1, 1, tzinfo=UTC)
        ca = key_pairs.make_ca("ca", validity=timedelta(days=30), now=now)
        made = key_pairs.sign(ca, "x", validity=timedelta(days=300), now=now)
        assert x509.load_pem_x509_certificate(made.certificate).not_valid_before_utc == now - timedelta(
            minutes=5
        )
        assert key_pairs.expiry(made.certificate) == now + timedelta(days=30)

    def test_long_names_are_cut(self) -> None:
        """A node name that is too long for a common name still gives a certificate for its host name."""
        host = ".".join(["n" * 60] * 3)
        made = key_pairs.self_signed(f"system:node:{host}", hosts=[host])
        certificate = x509.load_pem_x509_certificate(made.certificate)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert names.get_values_for_type(x509.DNSName) == [host]

    def test_ca_with_a_mismatched_key_is_refused(self, ca: KeyPair) -> None:
        """Its signatures could not be verified."""
        mixed = KeyPair(ca.certificate, key_pairs.make_ca("other").key)
        with pytest.raises(ValueError, match="does not belong"):
            key_pairs.sign(mixed, "x")

    def test_key_file_is_private_and_repr_hides_the_key(self, tmp_path: Path, pair: KeyPair) -> None:
        """Mode 0600, also over an older file with more rights."""
        certificate, key = tmp_path / "c", tmp_path / "k"
        key.write_text("old")
        key.chmod(0o644)
        pair.write(certificate, key)
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
        assert key.read_bytes() == pair.key
        assert "PRIVATE" not in repr(pair)

    def test_expiry_of_invalid_data_is_an_error(self) -> None:
        """ValueError."""
        with pytest.raises(ValueError, match="PEM"):
            key_pairs.expiry(b"garbage")
