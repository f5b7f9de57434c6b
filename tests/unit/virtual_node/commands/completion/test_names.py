"""TAB offers names of objects in a cluster, within a time limit."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.unit.controller_runtime.loopback import failure, serve
from tests.unit.virtual_node.commands.doctor_facts import node, pod
from tests.unit.virtual_node.commands.run_command import DEPLOYMENTS, NODES, SHOP, Objects, answer, kubeconfig
from virtual_node import cli
from virtual_node.commands.completion import names
from virtual_node.commands.completion.command import Names, Question

SPACES = "/api/v1/namespaces"
BANK = f"{SPACES}/bank/pods"


def _named(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}}


def _virtual(name: str, cluster: str) -> dict[str, Any]:
    found = node(name)
    found["metadata"]["labels"]["virtual-node.io/lower-cluster"] = cluster
    return found


THERE: Objects = {
    NODES: [
        _virtual("vn-tokyo", "tokyo"),
        _virtual("vn-paris-a", "paris"),
        _virtual("vn-paris-b", "paris"),
        node("worker", virtual=False),
    ],
    SPACES: [_named("shop"), _named("shop-2"), _named("bank")],
    SHOP: [pod("web"), pod("worker-1")],
    BANK: [_named("ledger")],
    DEPLOYMENTS: [_named("web")],
}


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long limit for a busy machine."""
    monkeypatch.setattr(names, "LIMIT", 60.0)


@pytest.fixture
def tab(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    """Types a line with an incomplete last word; returns the candidates, the directive last."""

    async def types(*words: str, objects: Objects = THERE, forbidden: Sequence[str] = ()) -> list[str]:
        async def script(request: Any) -> Any:
            if request.path in forbidden:
                return failure(403, "Forbidden", "no")
            return answer(request, objects)

        async with serve(script) as server:
            file = kubeconfig(tmp_path, server.url)
            line = ["__complete", words[0], f"--kubeconfig={file}", *words[1:]]
            assert await asyncio.to_thread(cli.main, line) == 0
        out, err = capsys.readouterr()
        assert err == ""
        return list(out.splitlines())

    return types


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["status", "vn-t"], ["vn-tokyo\tlower cluster tokyo"]),
        (["status", "vn-tokyo", "vn-paris-a", ""], ["vn-paris-b\tlower cluster paris"]),
        (["status", "-l", ""], [f"virtual-node.io/lower-cluster={one}" for one in ("paris", "tokyo")]),
        (["run", "--nodename", "vn-t"], ["vn-tokyo\tlower cluster tokyo"]),
        (["inspect", "--nodename=vn-t"], ["vn-tokyo\tlower cluster tokyo"]),
        (["lower-cluster", "register", "--name", ""], ["paris", "tokyo"]),
        (["doctor", "-n", "sho"], ["shop", "shop-2"]),
        (["diagnose", "node", "vn-t"], ["vn-tokyo\tlower cluster tokyo"]),
        (["diagnose", "node/vn-t"], ["node/vn-tokyo\tlower cluster tokyo"]),
        (["diagnose", "deploy", "w"], ["web"]),
        (["diagnose", "pod", "w"], ["web", "worker-1"]),
        (["diagnose", "pod", ""], ["web", "worker-1", "shop/", "shop-2/", "bank/"]),
        (["diagnose", "pod", "bank/"], ["bank/ledger"]),
        (["diagnose", "pod/w"], ["pod/web", "pod/worker-1"]),
        (["diagnose", "pods/bank/l"], ["pods/bank/ledger"]),
        (["diagnose", "-n", "bank", "pod", ""], ["ledger"]),
        (["diagnose", "-n", "bank", "po/"], ["po/ledger"]),
        (["diagnose", "pod/web", ""], []),
        (["diagnose", "cow", ""], []),
        (["diagnose", "cow/"], []),
        (["diagnose", "pod", "../"], []),
        (["status", "--context", ""], ["prod"]),
        (["run", "--log-level", "de"], ["debug"]),
        (["run", "--enable-controllers", ""], ["PVControllers", "ServiceControllers"]),
        (["run", "--enable-controllers", "PVControllers,"], ["PVControllers,ServiceControllers"]),
    ],
)
async def test_names_of_objects_are_candidates(tab: Any, words: list[str], offered: list[str]):
    """Of the kind that the position expects; names already on the line are left out."""
    assert await tab(*words) == [*offered, ":4"]


async def test_a_namespace_is_followed_by_a_name(tab: Any):
    """So no blank follows its slash: cobra's bit 2."""
    assert await tab("diagnose", "pod", "ban") == ["bank/", ":6"]
    assert await tab("diagnose", "pod/ban") == ["pod/bank/", ":6"]


async def test_a_forbidden_list_omits_only_its_own_names(tab: Any):
    """Namespaces are for administrators; the pods of the own one are still offered."""
    assert await tab("diagnose", "pod", "", forbidden=[SPACES]) == ["web", "worker-1", ":4"]
    assert await tab("diagnose", "pod", "", forbidden=[SHOP]) == ["shop/", "shop-2/", "bank/", ":6"]
    assert await tab("status", "", forbidden=[NODES]) == [":4"]


async def test_only_metadata_of_a_limited_number_is_requested(tmp_path: Path):
    """A large cluster is not read completely for a TAB."""
    async with serve(_answered) as server:
        given = {"kubeconfig": [kubeconfig(tmp_path, server.url)], "kind": ["pod"], "namespace": ["shop"]}
        await asyncio.to_thread(names.ask, Question(Names.OBJECTS, "", "name", given))
    (asked,) = server.asked
    assert asked.query == {"limit": "500"}
    assert "as=PartialObjectMetadataList" in asked.headers["Accept"]


async def _answered(request: Any) -> Any:
    return answer(request, THERE)


@pytest.mark.parametrize(
    "typed", ["~/kubeconfig", "$HOME/kubeconfig", "'{home}/kube'config", '"{home}/kubeconfig"']
)
def test_a_kubeconfig_is_expanded_like_in_a_shell(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, typed: str
):
    """A script gets the word before the shell expands it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    kubeconfig(tmp_path, "http://127.0.0.1:1")
    given = {"kubeconfig": [typed.format(home=tmp_path)]}
    found, ended = names.ask(Question(Names.CONTEXTS, "", "context", given))
    assert ([one.value for one in found], ended) == (["prod"], True)


def test_contexts_of_a_lower_cluster_are_those_of_its_kubeconfig(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """Not of the upper one's."""
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    given = {"client_kubeconfig": [kubeconfig(tmp_path, "http://127.0.0.1:1")]}
    found, _ = names.ask(Question(Names.CONTEXTS, "", "client_context", given))
    assert [one.value for one in found] == ["prod"]


def test_contexts_of_all_kubeconfigs_are_offered_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """As kubectl merges them; missing files are skipped."""
    (tmp_path / "more").mkdir()
    more = Path(kubeconfig(tmp_path / "more", "http://127.0.0.1:1"))
    more.write_text('{"contexts": [{"name": "test"}, {"name": "prod"}]}', encoding="utf-8")
    listed = [kubeconfig(tmp_path, "http://127.0.0.1:1"), "/nowhere", str(more)]
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(listed))
    found, _ = names.ask(Question(Names.CONTEXTS, "", "context", {}))
    assert [one.value for one in found] == ["prod", "test"]


@pytest.mark.parametrize("trouble", ["nobody", "silent", "no file", "no yaml"])
def test_errors_give_no_candidates_and_no_output(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
):
    """Soon, and no file names either."""
    monkeypatch.setattr(names, "LIMIT", 0.3)
    # Called if a busy machine takes longer than the limit.
    monkeypatch.setattr(os, "_exit", lambda _code: None)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1] if trouble == "silent" else 1
        file = kubeconfig(tmp_path, f"https://127.0.0.1:{port}")
        if trouble == "no file":
            Path(file).unlink()
        if trouble == "no yaml":
            Path(file).write_text("{", encoding="utf-8")
        assert cli.main(["__complete", "status", "--kubeconfig", file, ""]) == 0
    assert capsys.readouterr() == (":4\n", "")


def test_a_hanging_resolver_does_not_delay_the_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """The interpreter would wait for its thread, so the process exits without it."""
    ended: list[int] = []
    over = threading.Event()

    async def stuck(_asking: Any) -> None:
        over.wait()

    monkeypatch.setattr(names, "LIMIT", 0.1)
    monkeypatch.setattr(names, "_SLACK", 0.1)
    monkeypatch.setattr(names._Asking, "run", stuck)
    monkeypatch.setattr(os, "_exit", ended.append)
    cli.main(["__complete", "status", ""])
    over.set()
    assert (capsys.readouterr().out, ended) == (":4\n", [0])
