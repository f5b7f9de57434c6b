"""A replica with an unusable configuration file waits, not ready, until it is corrected."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace

import aiohttp
import pytest
from structlog.testing import capture_logs

import clusterset.following
from controller_runtime.auth import kubeconfig
from controller_runtime.errors import ConfigError
from controller_runtime.tls.key_pairs import self_signed
from hack.sandbox.ports import free_ports
from virtual_node import config_status
from virtual_node.cluster import start_checks
from virtual_node.config import command_line

HEAD = "{apiVersion: virtual-node.io/v1alpha1, kind: VirtualNodeConfiguration, "
GOOD = HEAD + "clusters: [{name: a, kubeconfig: k}]}"


@pytest.fixture(autouse=True)
def _without_upper_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    async def load(*_: object, **__: object) -> None:
        raise ConfigError("no kubeconfig")

    async def read(path: str | None, **_: object) -> None:
        if path and not Path(path).exists():
            raise ConfigError(f"{path}: no such file")

    monkeypatch.setattr(start_checks, "kubeconfig", SimpleNamespace(load=read))
    monkeypatch.setattr(kubeconfig, "load", load)
    monkeypatch.setattr(clusterset.following, "_POLL", 0.01)


async def _get(port: int, path: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as answer:
        return answer.status, await answer.text()


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (
            HEAD + "webAddress: '127.0.0.1:WEB', clusters: [{name: a, kubeconfig: k, lables: {}}]}",
            "did you mean labels?",
        ),
        (HEAD + "webAddress: '127.0.0.1:WEB', clusters: [{name: a}]}", "clusters[0].kubeconfig: required"),
        ("{", "not YAML"),
    ],
)
async def test_a_replica_waits_until_its_configuration_is_usable(tmp_path: Path, wrong: str, told: str):
    """It is alive and not ready, and metric and page have the reason. A valid file is then used."""
    metrics, web = free_ports(2)
    file = tmp_path / "virtual-node.yaml"
    file.write_text(wrong.replace("WEB", str(web)), encoding="utf-8")
    arguments = [f"--config={file}", "--wait-for-config", f"--metrics-addr=127.0.0.1:{metrics}"]
    options = command_line.PROGRAM.parse(arguments, {})
    assert told in options.rejected
    with capture_logs() as logs:
        waiting = config_status.Waiting(options, lambda: command_line.PROGRAM.parse(arguments, {}))
        running = asyncio.create_task(waiting.run())
        await asyncio.sleep(0.2)
        assert (await _get(metrics, "/healthz"))[0] == 200
        assert "[-]configuration failed" in (await _get(metrics, "/readyz"))[1]
        assert "virtual_node_config_rejected 1.0" in (await _get(metrics, "/metrics"))[1]
        if "WEB" in wrong:
            state = json.loads((await _get(web, "/api/state"))[1])
            (fault,) = state["health"]["faults"]
            assert (fault["kind"], fault["cause"]) == (
                "ConfigurationRejected",
                f"is not applied: {options.rejected}",
            )
        file.write_text(GOOD, encoding="utf-8")
        await asyncio.wait_for(running, 10)
    assert waiting.is_over
    assert [cluster.name for cluster in waiting.options.config.clusters] == ["a"]
    assert [entry["error"] for entry in logs if entry["log_level"] == "error"] == [options.rejected]


@pytest.mark.parametrize(
    "field",
    [
        "kubeconfig: {}",
        "kubelet: {{clientCaFile: {}}}",
        "kubelet: {{tlsCertFile: {}, tlsPrivateKeyFile: {}}}",
    ],
)
async def test_a_file_named_in_the_configuration_is_waited_for(tmp_path: Path, field: str):
    """Missing or malformed, it would end the process repeatedly; the replica names the file."""
    (port,), named = free_ports(1), tmp_path / "named.pem"
    file = tmp_path / "virtual-node.yaml"
    file.write_text(
        f"{HEAD}{field.format(named, named)}, clusters: [{{name: a, kubeconfig: k}}]}}", encoding="utf-8"
    )
    arguments = [f"--config={file}", "--wait-for-config", f"--metrics-addr=127.0.0.1:{port}"]
    with capture_logs() as logs:
        waiting = config_status.Waiting(
            command_line.PROGRAM.parse(arguments, {}), lambda: command_line.PROGRAM.parse(arguments, {})
        )
        running = asyncio.create_task(waiting.run())
        await asyncio.sleep(0.2)
        assert (await _get(port, "/healthz"))[0] == 200
        assert "[-]configuration failed" in (await _get(port, "/readyz"))[1]
        pair = self_signed("test")
        named.write_bytes(pair.certificate + pair.key)
        await asyncio.wait_for(running, 10)
    assert not waiting.options.rejected
    assert str(named) in next(entry["error"] for entry in logs if entry["log_level"] == "error")


def test_without_the_flag_a_wrong_file_ends_the_command(tmp_path: Path):
    """A user of the command needs the error, not a process that waits."""
    file = tmp_path / "virtual-node.yaml"
    file.write_text(HEAD + "clustres: []}", encoding="utf-8")
    with pytest.raises(ConfigError, match="did you mean clusters"):
        command_line.PROGRAM.parse([f"--config={file}"], {})


def test_a_contradiction_of_environment_and_file_is_waited_for(tmp_path: Path):
    """The file may be corrected, whichever of both is wrong."""
    file = tmp_path / "virtual-node.yaml"
    file.write_text(HEAD + "clusters: [], kubelet: {servingCertificate: CSR}}", encoding="utf-8")
    environment = {"APISERVER_CERT_LOCATION": "/crt", "APISERVER_KEY_LOCATION": "/key"}
    options = command_line.PROGRAM.parse([f"--config={file}", "--wait-for-config"], environment)
    assert "contradicts tlsCertFile" in options.rejected
    with pytest.raises(ConfigError, match="contradicts tlsCertFile"):
        command_line.PROGRAM.parse([f"--config={file}"], environment)
