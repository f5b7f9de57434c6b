from __future__ import annotations

import asyncio
import contextlib
import ssl
import stat
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from prometheus_client import REGISTRY

from controller_runtime import certificates
from controller_runtime.certificates import CertificateReloader, KeyPair
from controller_runtime.errors import ConfigError
from controller_runtime.key_pairs import Usage, as_file
from tests.unit.controller_runtime.loopback import intermediate


@contextlib.asynccontextmanager
async def serving(context: ssl.SSLContext) -> AsyncIterator[int]:
    """An echo server on loopback; yields its port."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(100):
                peer = writer.get_extra_info("peercert")
                writer.write(str((peer or {}).get("subject", "nobody")).encode() if data == b"who" else data)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()


def client_context(ca: KeyPair, pair: KeyPair | None = None) -> ssl.SSLContext:
    """A client that trusts the CA and perhaps presents a pair of its own."""
    context = ssl.create_default_context(cadata=ca.certificate.decode())
    if pair is not None:
        with as_file(pair.certificate) as certificate, as_file(pair.key) as key:
            context.load_cert_chain(certificate, key)
    return context


async def dial(
    port: int, context: ssl.SSLContext, *, server_hostname: str = "127.0.0.1"
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A new connection."""
    return await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=server_hostname)


async def ask(port: int, context: ssl.SSLContext, question: bytes = b"ping") -> tuple[bytes, int]:
    """One exchange over a new connection: the answer, and the serial number of the server's certificate."""
    reader, writer = await dial(port, context)
    try:
        writer.write(question)
        answer = await reader.read(1000)
        if not answer:
            raise ConnectionResetError("closed without an answer")
        der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return answer, x509.load_der_x509_certificate(der).serial_number
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def serial(pair: KeyPair) -> int:
    """The serial number of the pair's certificate."""
    return x509.load_pem_x509_certificate(pair.certificate).serial_number


def errors_counted(name: str) -> float:
    """The counter of failed reloads."""
    return REGISTRY.get_sample_value("virtual_node_certificate_reload_errors_total", {"name": name}) or 0.0


@pytest.fixture
def ca() -> KeyPair:
    """A certificate authority."""
    return certificates.make_ca("test-ca")


@pytest.fixture
def pair(ca: KeyPair) -> KeyPair:
    """A server's pair signed by the CA."""
    return certificates.sign(ca, "node", hosts=["node.example", "127.0.0.1"])


@pytest.fixture
def paths(tmp_path: Path, pair: KeyPair) -> tuple[Path, Path]:
    """The server's pair as two files."""
    paths = tmp_path / "tls.crt", tmp_path / "tls.key"
    pair.write(*paths)
    return paths


class TestMaking:
    """make_ca, sign, self_signed, expiry, KeyPair."""

    def test_signed_certificate_names_user_groups_and_hosts(self, ca: KeyPair) -> None:
        """A signed certificate carries the common name, the groups, DNS names and IP addresses."""
        made = certificates.sign(
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
    def test_usage_is_limited_to_what_was_asked(
        self, ca: KeyPair, usage: Usage, purposes: set[x509.ObjectIdentifier]
    ) -> None:
        """The extended key usage says server, client or both, and never more."""
        certificate = x509.load_pem_x509_certificate(certificates.sign(ca, "x", usage=usage).certificate)
        assert set(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == purposes

    def test_validity_starts_five_minutes_ago_and_ends_with_the_ca(self) -> None:
        """A peer whose clock is a little behind accepts it, and it never outlives its CA."""
        now = datetime(2026, 1, 1, tzinfo=UTC)
        ca = certificates.make_ca("ca", validity=timedelta(days=30), now=now)
        made = certificates.sign(ca, "x", validity=timedelta(days=300), now=now)
        assert x509.load_pem_x509_certificate(made.certificate).not_valid_before_utc == now - timedelta(
            minutes=5
        )
        assert certificates.expiry(made.certificate) == now + timedelta(days=30)

    def test_long_names_are_cut(self) -> None:
        """A node name longer than X.509 allows in a common name still makes a certificate for its host name."""
        host = ".".join(["n" * 60] * 3)
        made = certificates.self_signed(f"system:node:{host}", hosts=[host])
        certificate = x509.load_pem_x509_certificate(made.certificate)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert names.get_values_for_type(x509.DNSName) == [host]

    def test_foreign_ca_key_is_refused(self, ca: KeyPair) -> None:
        """A CA whose key is another's is refused instead of signing what nobody can verify."""
        mixed = KeyPair(ca.certificate, certificates.make_ca("other").key)
        with pytest.raises(ValueError, match="does not belong"):
            certificates.sign(mixed, "x")

    def test_key_is_written_for_its_owner_only_and_not_shown(self, tmp_path: Path, pair: KeyPair) -> None:
        """The key file has mode 0600, an older one with wider rights included, and repr hides the key."""
        certificate, key = tmp_path / "c", tmp_path / "k"
        key.write_text("old")
        key.chmod(0o644)
        pair.write(certificate, key)
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
        assert key.read_bytes() == pair.key
        assert "PRIVATE" not in repr(pair)

    def test_expiry_of_garbage_is_an_error(self) -> None:
        """Something that is no certificate raises ValueError."""
        with pytest.raises(ValueError, match="PEM"):
            certificates.expiry(b"garbage")


class TestServing:
    """The context in real handshakes."""

    async def test_served_to_clients_that_verify(self, ca: KeyPair, paths: tuple[Path, Path]) -> None:
        """A verifying client that dials an IP, so sends no server name, is answered with the pair of the files."""
        reloader = CertificateReloader(*paths)
        async with serving(reloader.context) as port:
            answer, number = await ask(port, client_context(ca))
        assert answer == b"ping"
        assert number == serial(KeyPair(paths[0].read_bytes(), b""))

    async def test_self_signed_pair_serves_from_memory(self) -> None:
        """A pair in memory serves without touching a file system, for clients that trust it."""
        pair = certificates.self_signed("system:node:n", hosts=["127.0.0.1"])
        reloader = CertificateReloader.from_pair(pair)
        async with serving(reloader.context) as port:
            assert (await ask(port, client_context(pair)))[0] == b"ping"

    async def test_tls_1_1_is_refused(self, ca: KeyPair, pair: KeyPair) -> None:
        """Nothing older than TLS 1.2 is spoken."""
        assert certificates.server_context(pair).minimum_version == ssl.TLSVersion.TLSv1_2
        assert CertificateReloader.from_pair(pair).context.minimum_version == ssl.TLSVersion.TLSv1_2

    @pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
    async def test_client_certificates_are_optional_but_verified(
        self, ca: KeyPair, pair: KeyPair, version: ssl.TLSVersion
    ) -> None:
        """With a client CA: nobody's certificate passes, a good one is named, a stranger's ends the handshake."""
        good = certificates.sign(ca, "alice", usage="client")
        stranger = certificates.sign(certificates.make_ca("evil"), "alice", usage="client")
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
        authority = intermediate(certificates.make_ca("root"), "between")
        alice = certificates.sign(authority, "alice", usage="client")
        reloader = CertificateReloader.from_pair(pair, client_ca=authority.certificate)
        async with serving(reloader.context) as port:
            assert b"alice" in (await ask(port, client_context(ca, alice), b"who"))[0]

    async def test_a_client_ca_may_come_later_and_change(self, ca: KeyPair, pair: KeyPair) -> None:
        """From the next connection on its clients are asked and known; one that cannot be used changes nothing."""
        reloader = CertificateReloader.from_pair(pair)
        other = certificates.make_ca("other")
        alice, bob = (
            certificates.sign(by, name, usage="client") for by, name in ((ca, "alice"), (other, "bob"))
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
        """No session ticket is given out: a resumed session would skip a client CA that has changed."""
        reloader = CertificateReloader.from_pair(pair, client_ca=ca.certificate)
        context = client_context(ca)
        async with serving(reloader.context) as port:
            reader, writer = await dial(port, context)
            writer.write(b"ping")
            await reader.read(100)
            session = writer.get_extra_info("ssl_object").session
            writer.close()
        assert session is None or not session.has_ticket


class TestReloading:
    """Changes of the files while serving."""

    async def test_new_pair_serves_new_connections_and_keeps_open_ones(
        self, ca: KeyPair, paths: tuple[Path, Path]
    ) -> None:
        """After a change new handshakes see the new certificate while an open connection carries on."""
        reloader = CertificateReloader(*paths, name="t-new")
        renewed = certificates.sign(ca, "node", hosts=["127.0.0.1"])
        async with serving(reloader.context) as port:
            reader, writer = await dial(port, client_context(ca))
            renewed.write(*paths)
            assert await reloader.check()
            _, number = await ask(port, client_context(ca))
            writer.write(b"still here")
            assert await reader.read(100) == b"still here"
            writer.close()
            await writer.wait_closed()
        assert number == serial(renewed)
        gauge = REGISTRY.get_sample_value(
            "virtual_node_certificate_expiration_timestamp_seconds", {"name": "t-new"}
        )
        assert gauge == certificates.expiry(renewed.certificate).timestamp()

    async def test_unchanged_files_are_not_read_again(self, paths: tuple[Path, Path]) -> None:
        """Without a change nothing is loaded."""
        assert not await CertificateReloader(*paths).check()

    @pytest.mark.parametrize("trouble", ["mismatched", "garbage", "missing", "empty"])
    async def test_bad_files_keep_the_old_pair(
        self, ca: KeyPair, pair: KeyPair, paths: tuple[Path, Path], trouble: str
    ) -> None:
        """A pair that cannot be used is counted once, leaves the old one serving, and its successor is taken."""
        name = f"t-{trouble}"
        reloader = CertificateReloader(*paths, name=name)
        match trouble:
            case "mismatched":
                paths[0].write_bytes(certificates.sign(ca, "node", hosts=["127.0.0.1"]).certificate)
            case "garbage":
                paths[0].write_text("garbage")
            case "missing":
                paths[1].unlink()
            case "empty":
                paths[0].write_text("")
        renewed = certificates.sign(ca, "node", hosts=["127.0.0.1"])
        async with serving(reloader.context) as port:
            assert [await reloader.check() for _ in range(3)] == [False, False, False]
            assert errors_counted(name) == 1
            assert (await ask(port, client_context(ca)))[1] == serial(pair)
            renewed.write(*paths)
            assert await reloader.check()
            assert (await ask(port, client_context(ca)))[1] == serial(renewed)

    async def test_certificate_and_key_may_change_one_after_the_other(
        self, ca: KeyPair, paths: tuple[Path, Path]
    ) -> None:
        """A look between the two writes finds a mismatch; the next look finds the whole pair."""
        reloader = CertificateReloader(*paths, name="t-two-steps")
        renewed = certificates.sign(ca, "node", hosts=["127.0.0.1"])
        paths[0].write_bytes(renewed.certificate)
        assert not await reloader.check()
        paths[1].write_bytes(renewed.key)
        assert await reloader.check()
        async with serving(reloader.context) as port:
            assert (await ask(port, client_context(ca)))[1] == serial(renewed)

    async def test_swapped_symlink_is_noticed(self, tmp_path: Path, ca: KeyPair, pair: KeyPair) -> None:
        """A secret volume's change, one atomic swap of ``..data`` two levels up, is a change of both files."""
        renewed = certificates.sign(ca, "node", hosts=["127.0.0.1"])
        for folder, made in (("..1", pair), ("..2", renewed)):
            (tmp_path / folder).mkdir()
            made.write(tmp_path / folder / "tls.crt", tmp_path / folder / "tls.key")
        (tmp_path / "..data").symlink_to("..1")
        for file in ("tls.crt", "tls.key"):
            (tmp_path / file).symlink_to(f"..data/{file}")
        reloader = CertificateReloader(tmp_path / "tls.crt", tmp_path / "tls.key")
        (tmp_path / "..tmp").symlink_to("..2")
        (tmp_path / "..tmp").replace(tmp_path / "..data")
        assert await reloader.check()
        async with serving(reloader.context) as port:
            assert (await ask(port, client_context(ca)))[1] == serial(renewed)

    async def test_a_pair_replaced_while_a_client_ca_loads_stays(
        self, ca: KeyPair, pair: KeyPair, tmp_path: Path
    ):
        """Files are read in a thread; a pair that comes in the meantime is served, with the new client CA."""
        file = tmp_path / "clients.pem"
        file.write_bytes(ca.certificate)
        reloader = CertificateReloader.from_pair(pair, client_ca=file)
        file.write_bytes(ca.certificate + certificates.make_ca("another").certificate)
        checking = asyncio.create_task(reloader.check())
        await asyncio.sleep(0)
        newer = certificates.sign(ca, "kubelet", hosts=["127.0.0.1"])
        reloader.replace(newer)
        assert await checking
        async with serving(reloader.context) as port:
            assert (await ask(port, client_context(ca)))[1] == serial(newer)

    async def test_replaced_client_ca_locks_the_old_one_out(
        self, tmp_path: Path, ca: KeyPair, paths: tuple[Path, Path]
    ) -> None:
        """After the client CA's file was replaced its users are refused and the new CA's are let in."""
        old, new = certificates.make_ca("clients-1"), certificates.make_ca("clients-2")
        file = tmp_path / "client-ca.crt"
        file.write_bytes(old.certificate)
        reloader = CertificateReloader(*paths, client_ca=file)
        old_user = client_context(ca, certificates.sign(old, "old-user", usage="client"))
        new_user = client_context(ca, certificates.sign(new, "new-user", usage="client"))
        async with serving(reloader.context) as port:
            assert b"old-user" in (await ask(port, old_user, b"who"))[0]
            file.write_bytes(new.certificate)
            assert await reloader.check()
            assert b"new-user" in (await ask(port, new_user, b"who"))[0]
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await ask(port, old_user, b"who")

    @pytest.mark.looptime
    async def test_run_looks_every_ten_seconds(
        self, ca: KeyPair, paths: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The files are looked at every ten seconds, as long as it runs."""
        reloader = CertificateReloader(*paths)
        looks: list[float] = []
        loop = asyncio.get_running_loop()

        async def check() -> bool:
            looks.append(loop.time())
            return False

        monkeypatch.setattr(reloader, "check", check)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reloader.run(), 35)
        assert looks == [10, 20, 30]


class TestRefusals:
    """What is wrong at start is one line that names the file."""

    def test_missing_file(self, tmp_path: Path) -> None:
        """A missing file is named."""
        with pytest.raises(ConfigError, match=r"nowhere\.crt: No such file"):
            CertificateReloader(tmp_path / "nowhere.crt", tmp_path / "nowhere.key")

    def test_mismatch(self, ca: KeyPair, paths: tuple[Path, Path]) -> None:
        """A key of another certificate is said to mismatch."""
        paths[1].write_bytes(certificates.make_ca("x").key)
        with pytest.raises(ConfigError, match=r"tls\.key cannot be used: key values mismatch"):
            CertificateReloader(*paths)

    def test_encrypted_key(self, pair: KeyPair, paths: tuple[Path, Path]) -> None:
        """An encrypted key is refused; nobody is asked for its password on the terminal."""
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

    def test_client_ca_with_remarks(self, tmp_path: Path, ca: KeyPair, paths: tuple[Path, Path]) -> None:
        """Remarks between the certificates of a CA bundle, in any language, are no trouble."""
        file = tmp_path / "clients.crt"
        file.write_bytes("# Größte CA\n".encode() + ca.certificate)
        assert CertificateReloader(*paths, client_ca=file).context.verify_mode == ssl.CERT_OPTIONAL

    def test_bad_client_ca(self, tmp_path: Path, paths: tuple[Path, Path]) -> None:
        """A client CA that is no PEM is named."""
        file = tmp_path / "clients.crt"
        file.write_text("garbage")
        with pytest.raises(ConfigError, match=r"client CA .*clients\.crt cannot be used"):
            CertificateReloader(*paths, client_ca=str(file))
