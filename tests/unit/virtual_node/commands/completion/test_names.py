"""TAB offers what there is in a cluster, and is never kept waiting by it."""

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
from virtual_node.commands.completion.engine import Names, Question

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
    """Time for a machine that has much else to do."""
    monkeypatch.setattr(names, "LIMIT", 60.0)


@pytest.fixture
def tab(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    """Types a line whose last word is not complete; a list of what is offered, the directive last."""

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
async def test_what_there_is_is_offered(tab: Any, words: list[str], offered: list[str]):
    """By what a word stands for; what has been typed is not offered again."""
    assert await tab(*words) == [*offered, ":4"]


async def test_a_namespace_goes_on_with_a_name(tab: Any):
    """So no space comes behind its slash: cobra's bit 2."""
    assert await tab("diagnose", "pod", "ban") == ["bank/", ":6"]
    assert await tab("diagnose", "pod/ban") == ["pod/bank/", ":6"]


async def test_what_may_not_be_listed_costs_its_own_names_only(tab: Any):
    """Namespaces are for administrators; the pods of one's own come all the same."""
    assert await tab("diagnose", "pod", "", forbidden=[SPACES]) == ["web", "worker-1", ":4"]
    assert await tab("diagnose", "pod", "", forbidden=[SHOP]) == ["shop/", "shop-2/", "bank/", ":6"]
    assert await tab("status", "", forbidden=[NODES]) == [":4"]


async def test_only_metadata_is_asked_for_and_not_of_ten_thousand_pods(tmp_path: Path):
    """A server with much in it is not read through for a TAB."""
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
def test_a_kubeconfig_is_read_as_the_shell_would_hand_it_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, typed: str
):
    """A script gets the word before the shell has looked at it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    kubeconfig(tmp_path, "http://127.0.0.1:1")
    given = {"kubeconfig": [typed.format(home=tmp_path)]}
    found, ended = names.ask(Question(Names.CONTEXTS, "", "context", given))
    assert ([one.value for one in found], ended) == (["prod"], True)


def test_the_context_of_a_lower_cluster_is_one_of_its_kubeconfig(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """Not of the upper one's."""
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    given = {"client_kubeconfig": [kubeconfig(tmp_path, "http://127.0.0.1:1")]}
    found, _ = names.ask(Question(Names.CONTEXTS, "", "client_context", given))
    assert [one.value for one in found] == ["prod"]


def test_the_contexts_of_all_kubeconfigs_are_offered_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """As kubectl merges them; one that is not there is passed over."""
    (tmp_path / "more").mkdir()
    more = Path(kubeconfig(tmp_path / "more", "http://127.0.0.1:1"))
    more.write_text('{"contexts": [{"name": "test"}, {"name": "prod"}]}', encoding="utf-8")
    listed = [kubeconfig(tmp_path, "http://127.0.0.1:1"), "/nowhere", str(more)]
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(listed))
    found, _ = names.ask(Question(Names.CONTEXTS, "", "context", {}))
    assert [one.value for one in found] == ["prod", "test"]


@pytest.mark.parametrize("trouble", ["nobody", "silent", "no file", "no yaml"])
def test_trouble_is_no_candidates_and_no_words(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
):
    """Whoever presses TAB gets nothing then, soon, and no file names either."""
    monkeypatch.setattr(names, "LIMIT", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1] if trouble == "silent" else 1
        file = kubeconfig(tmp_path, f"https://127.0.0.1:{port}")
        if trouble == "no file":
            Path(file).unlink()
        if trouble == "no yaml":
            Path(file).write_text("{", encoding="utf-8")
        assert cli.main(["__complete", "status", "--kubeconfig", file, ""]) == 0
    assert capsys.readouterr() == (":4\n", "")


def test_what_cannot_be_interrupted_is_left_behind(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """A resolver that hangs sits in a thread that the interpreter would wait for: the process ends without it."""
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
