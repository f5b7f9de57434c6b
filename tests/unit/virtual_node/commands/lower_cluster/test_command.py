"""Arguments of ``lower-cluster`` that do not belong to its action, and the manifest that needs no cluster."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import yaml
from aiohttp import web

from controller_runtime.errors import ConfigError
from tests.kubeconfigs import whole, write
from tests.unit.controller_runtime.loopback import failure, serve
from virtual_node.commands.lower_cluster import command

FILE = "--client-kubeconfig=missing.yaml"


def test_a_manifest_is_printed_without_a_cluster(capsys: pytest.CaptureFixture[str]):
    """An administrator of the lower cluster reads and applies it."""
    assert command.main(["manifest", "tokyo"]) == 0
    kinds = {each["kind"] for each in yaml.load_all(capsys.readouterr().out, yaml.CSafeLoader)}
    assert {"Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding"} <= kinds


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("join tokyo --lost", "--lost: only with leave"),
        ("join tokyo --force", "--force: only with leave"),
        ("register tokyo --lost", "--lost: only with leave"),
        ("leave tokyo --via konnectivity", "--via: only with join"),
        ("leave tokyo --tunnel-address 192.0.2.7:8091", "--tunnel-address: only with join"),
        ("join tokyo --apply", "--apply: only with dns"),
        ("join", "NAME: required: 'virtual-node lower-cluster join NAME'"),
    ],
)
def test_an_argument_of_another_action_is_an_error(words: str, message: str):
    """It is reported before a cluster is contacted, because nothing would have an effect that the user expects."""
    with pytest.raises(ConfigError) as error:
        command.main([*words.split(), FILE])
    assert str(error.value) == message


@pytest.mark.parametrize("action", ["join", "leave", "dns", "register"])
def test_an_administrators_kubeconfig_is_required(action: str):
    """Only a lost cluster is left without it."""
    with pytest.raises(ConfigError, match="--client-kubeconfig: required"):
        command.main([action, "tokyo"])


@pytest.mark.parametrize(
    "words", ["leave tokyo --force", "join tokyo --via konnectivity", "dns tokyo --apply"]
)
def test_an_argument_of_the_action_is_accepted(words: str):
    """The next error is that of the kubeconfig, which does not exist."""
    with pytest.raises(ConfigError, match=r"missing\.yaml"):
        command.main([*words.split(), FILE, "--kubeconfig=missing.yaml"])


@pytest.mark.parametrize(("flags", "expected"), [([], "current"), (["--context=other"], "other")])
async def test_register_writes_only_to_the_cluster_of_the_context(
    tmp_path: Path, flags: list[str], expected: str
):
    """The Secrets have credentials, so they must not reach another cluster."""

    async def refuse(_request: web.Request) -> web.StreamResponse:
        return failure(500, "InternalError", "not today")

    async with serve(refuse) as current, serve(refuse) as other:
        content = whole("current", cluster={"server": current.url})
        content["contexts"].append({"name": "other", "context": {"cluster": "other", "user": "u"}})
        content["clusters"].append({"name": "other", "cluster": {"server": other.url}})
        words = ["register", "tokyo", FILE, f"--kubeconfig={write(tmp_path / 'upper', content)}", *flags]
        with pytest.raises(ConfigError, match="not today"):
            await asyncio.to_thread(command.main, words)
    asked = {"current": current.asked, "other": other.asked}
    assert [name for name, requests in asked.items() if requests] == [expected]
