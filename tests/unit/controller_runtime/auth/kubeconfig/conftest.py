"""Isolation of tests from the machine's configuration."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from controller_runtime.auth import kubeconfig


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide kubeconfigs, cluster and proxies of the machine that runs the tests."""
    for name in list(os.environ):
        if name.lower().endswith("_proxy") or name.startswith("KUBERNETES_") or name == "KUBECONFIG":
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(kubeconfig, "_ACCOUNT", tmp_path / "account")
