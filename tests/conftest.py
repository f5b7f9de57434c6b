"""Fixtures of every test: failures of background tasks fail the test, and logging is restored."""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import logging
import ssl
from asyncio import sslproto
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import pytest_asyncio
import structlog
from hypothesis import HealthCheck, settings
from prometheus_client import CollectorRegistry
from structlog.dev import ConsoleRenderer, plain_traceback

from controller_runtime.process import lifecycle
from tests.evidence import evidence, sandboxes
from tests.thorough import IS_THOROUGH

_REAL_CLUSTERS_SECONDS = 900
"""For a test on real clusters, set-up included. Waits have limits of their own, with better messages."""

_WITH_SOCKETS = (
    "controller_runtime/client", "controller_runtime/process", "controller_runtime/serving", "controller_runtime/tls",
    "virtual_node/kubelet", "virtual_node/web",
)  # fmt: skip
"""Folders with tests in virtual time that wait for real sockets. Their idle loops poll some times before the
time advances. That polling would take half of the time of other tests in virtual time."""

# The time to generate examples depends on the machine, not on the code.
settings.register_profile(
    "project",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=100 if IS_THOROUGH else 10,
)
settings.load_profile("project")


# Importing and collecting makes little garbage, and searching it takes a quarter of the time. xdist's controller,
# which collects nothing, works without a collector until its end.
gc.disable()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Keep pytest-asyncio from making a loop that it restores after each test and that nothing closes.

    And let looptime find event loops without a search of all names of pytest-asyncio at each set-up of a fixture,
    which would take a fifth of the time of small tests.
    """
    asyncio.set_event_loop(None)
    for processor in structlog.get_config()["processors"]:
        if isinstance(processor, ConsoleRenderer):  # rich would format tracebacks for 0.1 s each
            processor.exception_formatter = plain_traceback
    plugins = session.config.pluginmanager
    monkey = pytest.MonkeyPatch()
    session.config.add_cleanup(monkey.undo)
    monkey.setattr(
        plugins.get_plugin("looptime_plugin"),
        "_should_patch",
        lambda fixture, _request: fixture.func.__module__ == pytest_asyncio.plugin.__name__,
        raising=False,
    )
    _send_less(session.config)


def _send_less(config: pytest.Config) -> None:
    """Let xdist's workers send only what the summary needs: two of the six messages of a test that passes."""
    if config.option.verbose > 0 or config.option.durations or config.option.xmlpath:
        return
    for worker in config.pluginmanager.get_plugins():
        if type(worker).__name__ == "WorkerInteractor":
            worker.sendevent = functools.partial(_send, worker.sendevent)


def _send(send: Callable[..., None], event: str, **content: Any) -> None:
    report = content.get("data") or {}
    is_dull = report.get("when") in {"setup", "teardown"} and report["outcome"] == "passed"
    if not is_dull and event not in {"logstart", "logfinish"}:
        send(event, **content)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Set time limits, which end tests that hang; real clusters on a busy machine are slow. Speed up virtual time."""
    for item in items:
        if not {"clusters", "field"}.isdisjoint(item.path.parts):
            item.add_marker(pytest.mark.timeout(_REAL_CLUSTERS_SECONDS), append=False)
        # A test without a loop does not need one for this fixture: making a loop takes longer than most tests.
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(_function(item)):
            item.fixturenames.insert(0, _no_forgotten_failures.__name__)
        if item.get_closest_marker("looptime") and not any(part in item.nodeid for part in _WITH_SOCKETS):
            item.add_marker(pytest.mark.looptime(noop_cycles=0), append=False)


def pytest_collection_finish() -> None:
    """Exclude modules and tests from garbage collection, which takes half a second for them."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 20, 20)  # few objects of a test are garbage
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Save xdist's controller, which has run no tests, five searches for garbage at its end."""
    if session.config.pluginmanager.has_plugin("dsession"):
        gc.freeze()


def _function(item: pytest.Function) -> Any:
    """Return the test's function, without the wrapper of hypothesis."""
    wrapped = getattr(item.obj, "hypothesis", None)
    return getattr(wrapped, "inner_test", item.obj)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    """Attach the state of the real clusters to a failed test, because they are removed afterwards."""
    report = yield
    if report.failed and (arguments := getattr(item, "funcargs", {})):
        namespace = arguments.get("namespace")
        for sandbox in sandboxes(arguments):
            report.sections += evidence(sandbox, namespace if isinstance(namespace, str) else None)
    return report


@pytest.fixture(scope="session", autouse=True)
def _no_full_collections() -> Iterator[None]:
    """Let programs start without a full garbage collection, which takes half a second in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lifecycle, "tune_gc", lambda: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_default_authorities() -> Iterator[None]:
    """Let TLS clients start without the machine's authorities, which no test uses and which take 20 ms to load."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl.SSLContext, "load_default_certs", lambda *_: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _quick_samples() -> Iterator[None]:
    """Let tests read a metric without the values of all other metrics, of which there are thousands."""

    def get_sample_value(
        registry: CollectorRegistry, name: str, labels: dict[str, str] | None = None
    ) -> float | None:
        for metric in registry.restricted_registry([name]).collect():
            for sample in metric.samples:
                if sample.name == name and sample.labels == (labels or {}):
                    return float(sample.value)
        return None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CollectorRegistry, "get_sample_value", get_sample_value)
        yield


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Restore the process' logging and TLS buffers.

    A log that stays configured would write to a closed file descriptor that belongs to a connection now.
    """
    protocol = sslproto.SSLProtocol
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    sslproto.SSLProtocol = protocol  # type: ignore[misc]
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()


@pytest_asyncio.fixture
async def _no_forgotten_failures() -> AsyncIterator[None]:
    """Fail the test if a background task fails or outlives it.

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
