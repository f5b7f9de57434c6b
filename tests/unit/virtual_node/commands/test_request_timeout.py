"""``--request-timeout``: a silent cluster delays no command forever, and the rest is still reported."""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from controller_runtime.auth.kubeconfig import ConnectionConfig
from controller_runtime.client.client import Client
from tests.thorough import size, some
from tests.unit.controller_runtime.loopback import reply, serve
from tests.unit.virtual_node.commands.run_command import NODES, Person, kubeconfig
from virtual_node import cli
from virtual_node.commands import inspect as command
from virtual_node.commands.common import connect
from virtual_node.commands.common.flags import request_timeout
from virtual_node.examine.reader import server_clock

SHORT = "--request-timeout=300ms"
LONG = f"--request-timeout={size(2, 4)}s"
"""Enough for a healthy server in the same process, on a busy machine."""


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the commands' own limit to an hour, so a test with an ineffective flag never ends."""
    monkeypatch.setattr(connect, "TIMEOUT", 3600.0)
    monkeypatch.setattr(command, "_SECOND_LOOK", 0.0)


@contextmanager
def accepting() -> Iterator[str]:
    """Run a server that accepts connections and sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        yield f"https://127.0.0.1:{silent.getsockname()[1]}"


@contextmanager
def dropping() -> Iterator[str]:
    """Run a server that accepts no connections: its queue is full, so the kernel answers no further SYN."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        callers = [socket.socket() for _ in range(4)]
        for caller in callers:
            caller.setblocking(False)
            caller.connect_ex(full.getsockname())
        yield f"https://127.0.0.1:{full.getsockname()[1]}"
        for caller in callers:
            caller.close()


@pytest.mark.parametrize(
    ("text", "seconds"), [("5", 5), ("5s", 5), ("1m30s", 90), ("250ms", 0.25), ("2h", 7200)]
)
def test_format_is_kubectls(text: str, seconds: float):
    """A number alone is seconds, as client-go reads it."""
    assert request_timeout(text) == seconds


def test_zero_is_no_limit():
    assert request_timeout("0") == request_timeout("0s") > 86400


@pytest.mark.parametrize("text", ["", "-1", "soon", "1d"])
def test_an_invalid_time_is_an_error(text: str):
    """With a valid example."""
    with pytest.raises(argparse.ArgumentTypeError, match="is not a duration such as 10s"):
        request_timeout(text)


@pytest.mark.parametrize("hole", [accepting, dropping])
@pytest.mark.parametrize("words", [["status"], ["diagnose", "pod/web"], ["diagnose", "node/vn"], ["doctor"]])
def test_a_silent_upper_cluster_is_reported_in_time(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: list[str], hole: Any
):
    """Before or after the connection is established."""
    with hole() as url:
        code = cli.main([*words, f"--kubeconfig={kubeconfig(tmp_path, url)}", SHORT])
    assert code == (1 if words == ["doctor"] else 2)
    assert "no answer in time" in "".join(capsys.readouterr())


@pytest.mark.parametrize("hole", some([accepting, dropping], 1))
async def test_check_reports_a_silent_lower_cluster_and_checks_the_upper_one(
    person: Person, tmp_path: Path, hole: Any
):
    reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    answers = {
        "/version": lambda _request: reply({"gitVersion": "v1.34.1", "minor": "34"}),
        reviews: lambda _request: reply({"status": {"allowed": True}}, status=201),
        "/api/v1/namespaces/kube-system": lambda _request: reply({"metadata": {"uid": "me"}}),
    }
    with hole() as url:
        (tmp_path / "lower").mkdir()
        file = kubeconfig(tmp_path / "lower", url)
        code, out, _ = await person.types(
            "check", f"--client-kubeconfig={file}", "--nodename=vn", "-o=json", LONG, answers=answers
        )
    found = {(one["cluster"], one["check"]): one for one in json.loads(out)["findings"]}
    assert code == 1
    assert "no answer in time" in found["vn", "reachable"]["detail"]
    assert found["upper", "identity"]["detail"] == "me"
    assert all(one["ok"] for (cluster, _), one in found.items() if cluster == "upper")


@pytest.mark.parametrize("action", ["join", "leave", "dns", "register"])
async def test_lower_cluster_reports_a_silent_lower_cluster_in_time(
    person: Person, tmp_path: Path, action: str
):
    """The time limit is for the requests to both clusters."""
    values = tmp_path / "values.yaml"
    values.write_text("{}", encoding="utf-8")
    answers = {
        "/api/v1/namespaces/kube-system": lambda _request: reply({"metadata": {"uid": "me"}}),
        "/api/v1/namespaces": lambda _request: reply({"metadata": {"uid": "new"}}, status=201),
    }
    with accepting() as url:
        (tmp_path / "lower").mkdir()
        file = kubeconfig(tmp_path / "lower", url)
        words = ["lower-cluster", action, "tokyo", f"--client-kubeconfig={file}", f"--values={values}", SHORT]
        words += ["--lower-dns=10.97.0.10", f"--config={config(tmp_path)}"] if action == "dns" else []
        async with asyncio.timeout(5):  # less than the limit without the flag
            code, _, err = await person.types(*words, answers=answers)
    assert code == 2
    assert "no answer in time" in err


def config(folder: Path) -> Path:
    """Return a configuration file with cluster tokyo."""
    path = folder / "clusters.yaml"
    clusters = [{"name": "tokyo", "kubeconfig": "lower.yaml", "nodeName": "vn"}]
    whole = {"apiVersion": "virtual-node.io/v1alpha1", "kind": "VirtualNodeConfiguration"}
    path.write_text(json.dumps({**whole, "clusters": clusters}), encoding="utf-8")
    return path


@pytest.mark.parametrize("hole", some([accepting, dropping], 1))
async def test_inspect_reports_a_silent_lower_cluster_once_and_reads_the_others(
    person: Person, tmp_path: Path, hole: Any
):
    """Exit code 3; an unusable kubeconfig costs only its cluster."""
    answers = {
        "/version": lambda _request: reply({"gitVersion": "v1.34.1"}),
        "/api/v1/namespaces/kube-system": lambda _request: reply({"metadata": {"uid": "me"}}),
    }
    with hole() as url:
        (tmp_path / "lower").mkdir()
        clusters = [
            {"name": "tokyo", "kubeconfig": kubeconfig(tmp_path / "lower", url), "nodeName": "vn"},
            {"name": "paris", "kubeconfig": str(tmp_path / "nowhere"), "nodeName": "vn-paris"},
        ]
        config = tmp_path / "clusters.yaml"
        whole = {"apiVersion": "virtual-node.io/v1alpha1", "kind": "VirtualNodeConfiguration"}
        config.write_text(json.dumps({**whole, "clusters": clusters}), encoding="utf-8")
        code, out, err = await person.types(
            "inspect", f"--config={config}", "-o=json", LONG, objects={NODES: []}, answers=answers
        )
    found = json.loads(out)
    assert (code, err) == (3, "")
    said = {one["name"]: one["error"] for one in found["clusters"]}
    assert said["upper"] == ""
    assert "no answer in time" in said["tokyo"]
    assert "nowhere" in said["paris"]
    assert {one["object"] for one in found["findings"] if one["check"] == "unread"} >= {"tokyo", "paris"}


async def test_a_server_that_falls_silent_costs_only_its_clock():
    """The date is requested after the version, perhaps from another replica."""

    async def never(_request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(3600)
        raise AssertionError

    async with serve(never) as server, Client(ConnectionConfig(server.url), timeout=0.2) as client:
        assert abs((await server_clock(client) - datetime.now(UTC)).total_seconds()) < 60
