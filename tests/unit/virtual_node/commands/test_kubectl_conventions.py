"""Commands take names and flags as kubectl does, so that scripts combine both."""

from __future__ import annotations

import pytest
from aiohttp import web

from tests.unit.controller_runtime.loopback import reply
from tests.unit.virtual_node.commands.doctor_facts import node
from tests.unit.virtual_node.commands.run_command import LEASES, NODES, Person
from virtual_node.commands import parsers


async def test_the_names_that_status_prints_select_nodes_in_other_commands(person: Person):
    """``virtual-node cordon $(virtual-node status -o name)``."""
    patched = []

    async def served(request: web.Request) -> web.StreamResponse:
        if request.method == "PATCH":
            patched.append(request.path)
        return reply(node("vn"))

    objects = {NODES: [node("vn")], LEASES: []}
    _, name, _ = await person.types("status", "-o", "name", objects=objects)
    for words in (["status", "-o", "name"], ["cordon"], ["uncordon"]):
        code, out, err = await person.types(
            *words, name.strip(), objects=objects, answers={f"{NODES}/vn": served}
        )
        assert name.strip() in out, err
        assert code == 0 or words[0] == "status", err
    assert patched == [f"{NODES}/vn"] * 2


@pytest.mark.parametrize("text", ["vn", "node/vn", "nodes/vn", "no/vn", "Node/vn"])
def test_targets_have_the_forms_of_kubectl(text: str):
    assert parsers.drain().parse_args([text]).targets == ["vn"]
    assert parsers.status().parse_args([text]).names == ["vn"]


def test_names_of_other_kinds_stay_unknown_names():
    assert parsers.drain().parse_args(["pod/vn"]).targets == ["pod/vn"]
