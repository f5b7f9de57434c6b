"""The daemon does not start with a real Node's name, or with the upper cluster as the lower one."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from controller_runtime.errors import AlreadyExists, ConfigError
from tests.thorough import some
from tests.unit.controller_runtime.loopback import failure, reply, serve
from tests.unit.virtual_node.commands.run_command import kubeconfig
from virtual_node.controllers.nodes import NodeController


async def _answer(request: web.Request) -> web.StreamResponse:
    if request.path == "/api/v1/namespaces/kube-system":
        return reply({"metadata": {"name": "kube-system", "uid": "upper"}})
    if request.path == "/api/v1/nodes/worker":
        return reply({"metadata": {"name": "worker", "uid": "w", "labels": {"kubernetes.io/os": "linux"}}})
    return failure(404, "NotFound", "not found")


@pytest.mark.parametrize(
    ("node", "said"),
    some(
        [
            (
                "worker",
                "node worker: the upper cluster has a Node of that name that is not virtual, and it is not ch",
            ),
            (
                "vn",
                "lower cluster vn: its kubeconfig leads to the upper cluster, whose pods would be mirrored onto",
            ),
        ],
        1,
    ),
)
async def test_a_start_that_would_change_objects_of_others_ends_with_2(node: str, said: str, tmp_path: Path):
    """In one line that names what to set instead; nothing has been written, nothing is retried."""
    async with serve(_answer) as server:
        file = kubeconfig(tmp_path, server.url)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "virtual_node", f"--kubeconfig={file}", f"--client-kubeconfig={file}",
            f"--nodename={node}", stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        err = (await asyncio.wait_for(process.communicate(), 60))[1].decode()
    assert process.returncode == 2
    assert err.splitlines()[-1].startswith(f"virtual-node: {said}")
    assert not [line for line in err.splitlines() if '"level":"error"' in line]
    assert {asked.method for asked in server.asked} == {"GET"}


async def test_a_real_node_that_appears_later_is_not_changed():
    """A kubelet registers under the name of a deleted virtual node."""
    node: Any = object.__new__(NodeController)
    real = {"metadata": {"name": "vn", "uid": "theirs", "labels": {"kubernetes.io/os": "linux"}}}

    class Upper:
        async def create(self, *_: Any) -> None:
            raise AlreadyExists("it exists")

        async def get(self, *_: Any) -> dict[str, Any]:
            return real

    node.uid, node._desired = "ours", lambda _previous: {}
    node._mine = SimpleNamespace(store={})
    node.config = SimpleNamespace(name="vn")
    node.context = SimpleNamespace(upper=Upper())  # without patch
    with pytest.raises(ConfigError, match="not virtual, and it is not changed"):
        await node._write(heartbeat=True)
