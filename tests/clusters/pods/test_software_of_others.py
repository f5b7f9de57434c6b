"""The part of ``tests/company`` that runs with every change: software of others that needs PyPI, and no build."""

from __future__ import annotations

import pytest

from hack.sandbox import Sandbox
from tests.company import environment
from tests.company.entries import airflow, python_clients
from tests.company.place import Place, Tools
from tests.company.software import Software


@pytest.mark.parametrize("software", [python_clients.SOFTWARE, airflow.SOFTWARE], ids=lambda one: one.name)
async def test_software_from_pypi_does_its_usual_job_on_a_virtual_node(
    sandbox: Sandbox, namespace: str, software: Software
):
    python = await environment.ensure(software.environment, print)
    tools = Tools(binaries={}, modules={}, python={software.environment: python})
    place = Place(sandbox, tools, python=python, virtual=True, namespace=namespace)
    await software.run(place)
