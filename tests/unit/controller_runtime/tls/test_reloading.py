"""Changed files apply from the next connection on; unusable ones change nothing."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from controller_runtime.tls import key_pairs
from controller_runtime.tls.pem import KeyPair
from controller_runtime.tls.reloader import CertificateReloader
from tests.serving import client_context
from tests.unit.controller_runtime.tls.conftest import ask, dial, serial, serving


def errors_counted(name: str) -> float:
    """The counter of failed reloads."""
    return REGISTRY.get_sample_value("virtual_node_certificate_reload_errors_total", {"name": name}) or 0.0


class TestReloading:
    """Changes of the files while serving."""

    async def test_new_pair_serves_new_connections_and_keeps_open_ones(
        self, ca: KeyPair, paths: tuple[Path, Path]
    ) -> None:
        reloader = CertificateReloader(*paths, name="t-new")
        renewed = key_pairs.sign(ca, "node", hosts=["127.0.0.1"])
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
        assert gauge == key_pairs.expiry(renewed.certificate).timestamp()

    async def test_unchanged_files_are_not_read_again(self, paths: tuple[Path, Path]) -> None:
        """Without a change nothing is loaded."""
        assert not await CertificateReloader(*paths).check()

    @pytest.mark.parametrize("trouble", ["mismatched", "garbage", "missing", "empty"])
    async def test_bad_files_keep_the_old_pair(
        self, ca: KeyPair, pair: KeyPair, paths: tuple[Path, Path], trouble: str
    ) -> None:
        """An unusable pair is counted once, and a later valid one is used."""
        name = f"t-{trouble}"
        reloader = CertificateReloader(*paths, name=name)
        match trouble:
            case "mismatched":
                paths[0].write_bytes(key_pairs.sign(ca, "node", hosts=["127.0.0.1"]).certificate)
            case "garbage":
                paths[0].write_text("garbage")
            case "missing":
                paths[1].unlink()
            case "empty":
                paths[0].write_text("")
        renewed = key_pairs.sign(ca, "node", hosts=["127.0.0.1"])
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
        """A reload between the two writes finds a mismatch; the next one finds the complete pair."""
        reloader = CertificateReloader(*paths, name="t-two-steps")
        renewed = key_pairs.sign(ca, "node", hosts=["127.0.0.1"])
        paths[0].write_bytes(renewed.certificate)
        assert not await reloader.check()
        paths[1].write_bytes(renewed.key)
        assert await reloader.check()
        async with serving(reloader.context) as port:
            assert (await ask(port, client_context(ca)))[1] == serial(renewed)

    async def test_swapped_symlink_is_noticed(self, tmp_path: Path, ca: KeyPair, pair: KeyPair) -> None:
        """A secret volume's change, one atomic swap of ``..data`` two levels up, is a change of both files."""
        renewed = key_pairs.sign(ca, "node", hosts=["127.0.0.1"])
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
        """Files are read in a thread; a pair replaced in the meantime is served, with the new client CA."""
        file = tmp_path / "clients.pem"
        file.write_bytes(ca.certificate)
        reloader = CertificateReloader.from_pair(pair, client_ca=file)
        file.write_bytes(ca.certificate + key_pairs.make_ca("another").certificate)
        checking = asyncio.create_task(reloader.check())
        await asyncio.sleep(0)
        newer = key_pairs.sign(ca, "kubelet", hosts=["127.0.0.1"])
        reloader.replace(newer)
        assert await checking
        async with serving(reloader.context) as port:
            assert (await ask(port, client_context(ca)))[1] == serial(newer)

    async def test_replaced_client_ca_locks_the_old_one_out(
        self, tmp_path: Path, ca: KeyPair, paths: tuple[Path, Path]
    ) -> None:
        """Its users are refused and those of the new CA are accepted."""
        old, new = key_pairs.make_ca("clients-1"), key_pairs.make_ca("clients-2")
        file = tmp_path / "client-ca.crt"
        file.write_bytes(old.certificate)
        reloader = CertificateReloader(*paths, client_ca=file)
        old_user = client_context(ca, key_pairs.sign(old, "old-user", usage="client"))
        new_user = client_context(ca, key_pairs.sign(new, "new-user", usage="client"))
        async with serving(reloader.context) as port:
            assert b"old-user" in (await ask(port, old_user, b"who"))[0]
            file.write_bytes(new.certificate)
            assert await reloader.check()
            assert b"new-user" in (await ask(port, new_user, b"who"))[0]
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await ask(port, old_user, b"who")

    @pytest.mark.looptime
    async def test_run_checks_every_ten_seconds(
        self, ca: KeyPair, paths: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As long as it runs."""
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
