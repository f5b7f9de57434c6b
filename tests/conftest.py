"""Fixtures every test shares: no task and no loop error is ever forgotten, and logging is put back."""

from __future__ import annotations

import asyncio
import logging
from asyncio.sslproto import SSLProtocol
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio
import structlog
from hypothesis import HealthCheck, settings

from tests.evidence import evidence, sandboxes

_REAL_CLUSTERS_SECONDS = 900
"""For a test on real clusters, set-up included. What is waited for has limits of its own, which tell more."""

# How fast examples are made says something about the machine, nothing about the code.
settings.register_profile("project", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("project")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A time limit is there to end what hangs; on a machine under load real clusters take their time."""
    for item in items:
        if item.get_closest_marker("e2e") or item.get_closest_marker("real_node"):
            item.add_marker(pytest.mark.timeout(_REAL_CLUSTERS_SECONDS), append=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    """A test that fails on real clusters shows how they were: they are gone afterwards."""
    report = yield
    if report.failed and (arguments := getattr(item, "funcargs", {})):
        namespace = arguments.get("namespace")
        for sandbox in sandboxes(arguments):
            report.sections += evidence(sandbox, namespace if isinstance(namespace, str) else None)
    return report


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Put the process' logging and TLS buffers back as they were.

    A log that stays configured writes to a file descriptor that was closed and belongs to a connection now.
    """
    size = SSLProtocol.max_size
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    SSLProtocol.max_size = size
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()


@pytest_asyncio.fixture(autouse=True)
async def _no_forgotten_failures() -> AsyncIterator[None]:
    """A forgotten task that fails, or that outlives its test, fails the test.

    pytest-asyncio alone lets both pass even with warnings as errors, because the loop only logs them.
    """
    loop = asyncio.get_running_loop()
    problems: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _loop, context: problems.append(context))
    before = asyncio.all_tasks()
    yield
    # Callbacks scheduled by a closing transport run in the next turns of the loop.
    for _ in range(3):
        await asyncio.sleep(0)
    # Set-up and tear-down of a fixture run in tasks of their own; the latter is the current one.
    leftovers = [task for task in asyncio.all_tasks() - before - {asyncio.current_task()} if not task.done()]
    loop.set_exception_handler(None)
    for task in leftovers:
        task.cancel()
    await asyncio.gather(*leftovers, return_exceptions=True)
    if problems:
        pytest.fail(f"the event loop reported: {problems}")
    if leftovers:
        pytest.fail(f"the test left tasks running: {leftovers}")
