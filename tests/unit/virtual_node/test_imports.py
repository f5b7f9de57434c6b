"""Modules that command lines import: they decide how long people wait."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from tests.thorough import some
from tests.unit.controller_runtime.loopback import reply, serve
from tests.unit.virtual_node.commands.doctor_facts import node
from tests.unit.virtual_node.commands.run_command import LEASES, NODES, answer, kubeconfig
from virtual_node.node_summary import PATH, Summaries, summarize

_HEAVY = {
    *("aiohttp", "yarl", "prometheus_client", "structlog", "cryptography", "kubernetes_asyncio", "rich"),
}
"""Each takes 0.1 to 0.3 s of CPU time."""
_CLIENT = {*_HEAVY, "asyncio", "ssl", "yaml"}
_CODE = """
import sys
from virtual_node import cli
try:
    cli.main(sys.argv[1:])
except SystemExit:
    pass
finally:
    print(*sys.modules, file=sys.stderr)
"""


async def _modules(*words: str) -> set[str]:
    """Return the modules that a command line has imported, when it ends."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _CODE, *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    assert out
    return set(err.decode().splitlines()[-1].split())


@pytest.mark.parametrize(
    "words",
    some(
        [
            ("--help",),
            ("help",),
            ("--version",),
            ("status", "--help"),
            ("drain", "tokyo", "--help"),
            *((command, "--help") for command in ("check", "doctor", "diagnose", "inspect")),
            ("cordon", "-h"),
            ("uncordon", "--help"),
            ("cleanup", "--help"),
            ("__complete", ""),
            ("__complete", "status", "--"),
            ("__complete", "--log-"),
        ],
        4,
    ),
)
async def test_help_and_completion_of_flags_import_no_client(words: Sequence[str]):
    """They send no request."""
    modules = await _modules(*words)
    assert not modules & _CLIENT
    assert not any(one.startswith("virtual_node.examine.rules") for one in modules)


async def test_status_and_completion_of_names_import_only_a_brief_client(tmp_path: Path):
    """A few requests need no aiohttp."""

    async def script(request: web.Request) -> web.StreamResponse:
        if request.path == f"{NODES}/vn/proxy{PATH}":
            return reply(msgspec.to_builtins(Summaries({"vn": summarize(())})))
        return answer(request, {NODES: [node("vn")], LEASES: []})

    async with serve(script) as server:
        flag = f"--kubeconfig={kubeconfig(tmp_path, server.url)}"
        for words in (("status", flag), ("status", "-o", "json", flag), ("__complete", "status", flag, "")):
            modules = await _modules(*words)
            assert not modules & _HEAVY
            # Importing a rule registers it.
            assert words[0] != "status" or "virtual_node.examine.rules.pods" in modules
