"""A server's TLS in real handshakes, and errors at start."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from controller_runtime.errors import ConfigError
from controller_runtime.tls import key_pairs
from controller_runtime.tls import reloader as certificates
from controller_runtime.tls.pem import KeyPair
from controller_runtime.tls.reloader import CertificateReloader
from tests.serving import client_context
from tests.unit.controller_runtime.loopback import intermediate
from tests.unit.controller_runtime.tls.conftest import ask, dial, serial, serving


class TestServing:
    """The context in real handshakes."""

    async def test_clients_that_verify_are_served(self, ca: KeyPair, paths: tuple[Path, Path]) -> None:
        """Also without a server name, when they dial an IP."""
        reloader = CertificateReloader(*paths)
        async with serving(reloader.context) as port:
            answer, number = await ask(port, client_context(ca))
        assert answer == b"ping"
        assert number == serial(KeyPair(paths[0].read_bytes(), b""))

    async def test_self_signed_pair_serves_from_memory(self) -> None:
        """Without files, for clients that trust it."""
        pair = key_pairs.self_signed("system:node:n", hosts=["127.0.0.1"])
        reloader = CertificateReloader.from_pair(pair)
        async with serving(reloader.context) as port:
            assert (await ask(port, client_context(pair)))[0] == b"ping"

    async def test_tls_1_1_is_refused(self, ca: KeyPair, pair: KeyPair) -> None:
        assert certificates.server_context(pair).minimum_version == ssl.TLSVersion.TLSv1_2
        assert CertificateReloader.from_pair(pair).context.minimum_version == ssl.TLSVersion.TLSv1_2

    @pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
    async def test_client_certificates_are_optional_but_verified(
        self, ca: KeyPair, pair: KeyPair, version: ssl.TLSVersion
    ) -> None:
        """With a client CA: no certificate is accepted, a valid one is identified, an unknown one ends the handshake."""
        good = key_pairs.sign(ca, "alice", usage="client")
        stranger = key_pairs.sign(key_pairs.make_ca("evil"), "alice", usage="client")
        reloader = CertificateReloader.from_pair(pair, client_ca=ca.certificate)

        def client(mine: KeyPair | None) -> ssl.SSLContext:
            context = client_context(ca, mine)
            context.minimum_version = context.maximum_version = version
            return context

        async with serving(reloader.context) as port:
            assert (await ask(port, client(None), b"who"))[0] == b"nobody"
            assert b"alice" in (await ask(port, client(good), b"who"))[0]
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await ask(port, client(stranger), b"who")

    async def test_intermediate_client_ca_is_enough(self, ca: KeyPair, pair: KeyPair) -> None:
        """A client CA that another CA vouches for is trusted without its root, as by a kubelet."""
        authority = intermediate(key_pairs.make_ca("root"), "between")
        alice = key_pairs.sign(authority, "alice", usage="client")
        reloader = CertificateReloader.from_pair(pair, client_ca=authority.certificate)
        async with serving(reloader.context) as port:
            assert b"alice" in (await ask(port, client_context(ca, alice), b"who"))[0]

    async def test_a_client_ca_may_be_set_later_and_changed(self, ca: KeyPair, pair: KeyPair) -> None:
        """From the next connection on; an unusable one changes nothing."""
        reloader = CertificateReloader.from_pair(pair)
        other = key_pairs.make_ca("other")
        alice, bob = (
            key_pairs.sign(by, name, usage="client") for by, name in ((ca, "alice"), (other, "bob"))
        )
        async with serving(reloader.context) as port:
            assert (await ask(port, client_context(ca, alice), b"who"))[0] == b"nobody"
            reloader.trust(ca.certificate)
            assert b"alice" in (await ask(port, client_context(ca, alice), b"who"))[0]
            with pytest.raises(ConfigError):
                reloader.trust(b"garbage")
            assert b"alice" in (await ask(port, client_context(ca, alice), b"who"))[0]
            reloader.trust(other.certificate)
            assert b"bob" in (await ask(port, client_context(ca, bob), b"who"))[0]
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await ask(port, client_context(ca, alice), b"who")

    async def test_sessions_are_not_resumed(self, ca: KeyPair, pair: KeyPair) -> None:
        """A resumed session would skip a changed client CA."""
        reloader = CertificateReloader.from_pair(pair, client_ca=ca.certificate)
        context = client_context(ca)
        async with serving(reloader.context) as port:
            reader, writer = await dial(port, context)
            writer.write(b"ping")
            await reader.read(100)
            session = writer.get_extra_info("ssl_object").session
            writer.close()
        assert session is None or not session.has_ticket


class TestRefusals:
    """Errors at start are one line that names the file."""

    def test_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"nowhere\.crt: No such file"):
            CertificateReloader(tmp_path / "nowhere.crt", tmp_path / "nowhere.key")

    def test_mismatched_key(self, ca: KeyPair, paths: tuple[Path, Path]) -> None:
        paths[1].write_bytes(key_pairs.make_ca("x").key)
        with pytest.raises(ConfigError, match=r"tls\.key cannot be used: key values mismatch"):
            CertificateReloader(*paths)

    def test_encrypted_key_is_refused(self, pair: KeyPair, paths: tuple[Path, Path]) -> None:
        """Without asking for its password on the terminal."""
        key = serialization.load_pem_private_key(pair.key, password=None)
        paths[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.BestAvailableEncryption(b"secret"),
            )
        )
        with pytest.raises(ConfigError, match="the private key is encrypted"):
            CertificateReloader(*paths)

    def test_client_ca_with_comments(self, tmp_path: Path, ca: KeyPair, paths: tuple[Path, Path]) -> None:
        """Between the certificates of a CA bundle, in any language."""
        file = tmp_path / "clients.crt"
        file.write_bytes("# Größte CA\n".encode() + ca.certificate)
        assert CertificateReloader(*paths, client_ca=file).context.verify_mode == ssl.CERT_OPTIONAL

    def test_bad_client_ca(self, tmp_path: Path, paths: tuple[Path, Path]) -> None:
        file = tmp_path / "clients.crt"
        file.write_text("garbage")
        with pytest.raises(ConfigError, match=r"client CA .*clients\.crt cannot be used"):
            CertificateReloader(*paths, client_ca=str(file))
