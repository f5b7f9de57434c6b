"""The part of ``tests/company`` that runs with every change, because it needs no build: the Python clients of others."""

from __future__ import annotations

from hack.sandbox import Sandbox
from tests.company import environment
from tests.company.entries import python_clients
from tests.company.place import Place, Tools


async def test_python_clients_watch_and_reach_pods_of_a_virtual_node(sandbox: Sandbox, namespace: str):
    python = await environment.ensure("clients", print)
    tools = Tools(binaries={}, modules={}, python={"clients": python})
    place = Place(sandbox, tools, python=python, virtual=True, namespace=namespace)
    await python_clients.SOFTWARE.run(place)
