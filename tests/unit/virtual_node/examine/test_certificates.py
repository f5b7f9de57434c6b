"""When the serving certificate of a lower API server is a fault."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from controller_runtime.tls.key_pairs import make_ca, sign
from virtual_node.examine.expiry import ending

DER = ssl.PEM_cert_to_DER_cert(sign(make_ca("ca"), "server", hosts=["127.0.0.1"]).certificate.decode())
CERTIFICATE = x509.load_der_x509_certificate(DER)
ENDS = CERTIFICATE.not_valid_after_utc


@pytest.mark.parametrize(
    ("left", "word"),
    [
        (timedelta(days=8), ""),
        (timedelta(days=6), f"ends on {ENDS.astimezone(UTC):%Y-%m-%d %H:%M} UTC"),
        (timedelta(0), "ended on "),
    ],
)
def test_a_certificate_is_reported_a_week_before_it_expires(left: timedelta, word: str) -> None:
    """Its life is a year, so the limit is that of ``inspect``."""
    found = ending(DER, ENDS - left)
    assert bool(found) == bool(word)
    assert word in found


@pytest.mark.parametrize("der", [None, b"", b"no certificate"])
def test_an_unknown_certificate_is_no_fault(der: bytes | None) -> None:
    """Plain HTTP, no connection yet, or a server that sends something else."""
    assert ending(der, datetime.now(UTC)) == ""
