"""Insecure connections to an API server are found in the kubeconfig, each reported once."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from structlog.testing import capture_logs

from controller_runtime.auth import kubeconfig
from controller_runtime.client.client import warn, weaknesses
from virtual_node.examine.clusters import WEAKNESSES
from virtual_node.examine.rules.clusters import weak
from virtual_node.examine.snapshot import Snapshot, View


async def _load(
    folder: Path, server: str, *, insecure: bool = False, token: str = ""
) -> kubeconfig.ConnectionConfig:
    document = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server, "insecure-skip-tls-verify": insecure}}],
        "users": [{"name": "u", "user": {"token": token} if token else {}}],
    }
    file = folder / "config"
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    return await kubeconfig.load(str(file))


@pytest.mark.parametrize(
    ("server", "insecure", "token", "found"),
    [
        ("https://10.0.0.1:6443", False, "t", []),
        ("https://10.0.0.1:6443", True, "t", ["insecure-skip-tls-verify"]),
        ("http://10.0.0.1:8080", False, "t", ["plain HTTP: others on the network path can read and change credentials"]),
        ("http://10.0.0.1:8080", False, "", ["plain HTTP: others on the network path can read and change data"]),
        ("http://127.0.0.1:8001", False, "t", []),
        ("http://localhost:8001", False, "", []),
        ("HTTP://10.0.0.1", True, "t", ["plain HTTP"]),
    ],
)  # fmt: skip
async def test_insecure_connections_are_named(tmp_path, server, insecure, token, found):
    """With what to do; loopback is left out."""
    config = await _load(tmp_path, server, insecure=insecure, token=token)
    assert len(list(weaknesses(config))) == len(found)
    for (what, step), text in zip(weaknesses(config), found, strict=True):
        assert text in what
        assert "kubeconfig" in step
    with capture_logs() as logs:
        warn(config, cluster="lower1")
    assert [(entry["log_level"], entry["cluster"]) for entry in logs] == [("warning", "lower1")] * len(found)


def test_inspect_warns():
    """One finding for each; none fails a check by itself."""
    lower = View("lower1")
    lower.put(WEAKNESSES, [("weak", "mend")])
    (finding,) = weak(Snapshot(datetime.now(UTC), lowers=[lower]), lower)
    assert (finding.severity, finding.code.check, finding.place) == ("warning", "transport", "lower1")
    assert (finding.cause, finding.next_step) == ("weak", "mend")
