"""A certificate authority, and a server's pair that it has signed."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller_runtime.tls import reloader
from controller_runtime.tls.reloader import KeyPair


@pytest.fixture
def ca() -> KeyPair:
    """A certificate authority."""
    return reloader.make_ca("test-ca")


@pytest.fixture
def pair(ca: KeyPair) -> KeyPair:
    """A server's pair signed by the CA."""
    return reloader.sign(ca, "node", hosts=["node.example", "127.0.0.1"])


@pytest.fixture
def paths(tmp_path: Path, pair: KeyPair) -> tuple[Path, Path]:
    """The server's pair as two files."""
    paths = tmp_path / "tls.crt", tmp_path / "tls.key"
    pair.write(*paths)
    return paths
