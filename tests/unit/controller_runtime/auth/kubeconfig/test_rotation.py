"""Tokens and certificates in files are renewed while they are used."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from controller_runtime.auth import kubeconfig
from controller_runtime.auth.kubeconfig import ConnectionConfig
from controller_runtime.errors import ConfigError
from controller_runtime.tls.key_pairs import sign
from controller_runtime.tls.pem import TlsMaterial
from tests.kubeconfigs import whole, write
from tests.unit.controller_runtime.auth.kubeconfig.conftest import CA, PAIR, peer_name


@pytest.mark.looptime
async def test_token_file_rotates(tmp_path: Path) -> None:
    """A token file is read again after a minute, and at once after a 401; if it is lost, its last token stays."""
    token = tmp_path / "token"
    token.write_text("one\n")
    config = await kubeconfig.load(write(tmp_path / "k", whole(user={"tokenFile": "token", "token": "old"})))
    assert await config.headers() == {"Authorization": "Bearer one"}
    token.write_text("two")
    await asyncio.sleep(59)
    assert await config.headers() == {"Authorization": "Bearer one"}
    await asyncio.sleep(2)
    assert await config.headers() == {"Authorization": "Bearer two"}
    token.write_text("three")
    assert await config.headers(refresh=True) == {"Authorization": "Bearer three"}
    token.unlink()
    assert await config.headers(refresh=True) == {"Authorization": "Bearer three"}
    token.write_text("")
    assert await config.headers(refresh=True) == {"Authorization": "Bearer three"}


@pytest.mark.parametrize(
    ("content", "problem"),
    [(None, "No such file"), (b"", "is empty"), (b"a\nb", "is not a token"), (b"\xff\xfe", "is not text")],
)
async def test_bad_token_file(tmp_path: Path, content: bytes | None, problem: str) -> None:
    """Without a valid token the message names field, file and problem."""
    if content is not None:
        (tmp_path / "token").write_bytes(content)
    with pytest.raises(
        ConfigError, match=rf"users\[name=u\]\.user\.tokenFile: token file .*/token: {problem}"
    ):
        await kubeconfig.load(write(tmp_path / "k", whole(user={"tokenFile": "token"})))


@pytest.mark.looptime
async def test_certificate_files_rotate(tmp_path: Path) -> None:
    """A renewed certificate file makes a new context within a minute; an invalid one leaves the old."""
    PAIR.write(tmp_path / "crt", tmp_path / "key")
    (tmp_path / "ca").write_bytes(CA.certificate)
    user = {"client-certificate": "crt", "client-key": "key"}
    path = write(tmp_path / "k", whole(user=user, cluster={"certificate-authority": "ca"}))
    config = await kubeconfig.load(path)
    first = config.ssl
    assert first is not None
    sign(CA, "renewed", usage="client").write(tmp_path / "crt", tmp_path / "key")
    await asyncio.sleep(59)
    await config.headers()
    assert config.ssl is first
    await asyncio.sleep(2)
    await config.headers()
    second = config.ssl
    assert second is not None
    assert second is not first
    assert await peer_name(second) == "renewed"
    (tmp_path / "crt").write_bytes(b"half a certif")
    await config.headers(refresh=True)
    assert config.ssl is second
    sign(CA, "third", usage="client").write(tmp_path / "crt", tmp_path / "key")
    await config.headers(refresh=True)
    assert config.ssl is not None
    assert await peer_name(config.ssl) == "third"
    assert config.ssl is not second


@pytest.mark.looptime
async def test_partially_written_file_is_read_again(tmp_path: Path) -> None:
    """Even if its time and size do not change."""
    pair = tmp_path / "pair"
    pair.write_bytes(PAIR.certificate + PAIR.key)
    tls = TlsMaterial(source="s", authority=CA.certificate, certificate=pair)
    config = ConnectionConfig("https://api", tls=tls)
    renewed = sign(CA, "renewed", usage="client")
    whole = renewed.certificate + renewed.key
    pair.write_bytes(b"x" * len(whole))
    os.utime(pair, (1, 1))
    await config.headers(refresh=True)
    pair.write_bytes(whole)
    os.utime(pair, (1, 1))
    await config.headers(refresh=True)
    assert config.ssl is not None
    assert await peer_name(config.ssl) == "renewed"
