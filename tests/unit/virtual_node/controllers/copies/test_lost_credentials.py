"""An expired credential with a failing renewal: one cluster is unreachable, and nothing else ends."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest
import structlog

from controller_runtime import resources
from controller_runtime.cache.informer import Informer
from controller_runtime.client.limits import CacheBudget
from controller_runtime.client.transport import Outage
from controller_runtime.errors import ConfigError, NotFound
from tests.background import working
from virtual_node.controllers.events import EventMirror, MirroredKind
from virtual_node.controllers.node_lease import Identity, NodeLease
from virtual_node.controllers.nodes import HealthController


class _NoCredentials:
    """A client whose credential plugin fails."""

    cluster = "no-credentials"

    def __init__(self) -> None:
        self.asked = 0
        self.outage = Outage()
        self.turn = asyncio.Lock()
        self.caches = CacheBudget(0, cluster="test")

    async def ping(self, **_more: Any) -> None:
        self._refuse()

    async def get(self, *_what: Any, **_more: Any) -> None:
        self._refuse()

    async def list(self, *_what: Any, **_more: Any) -> None:
        self._refuse()

    def _refuse(self) -> None:
        self.asked += 1
        raise ConfigError("plugin: exit code 1")


def _context(client: _NoCredentials) -> Any:
    settings = SimpleNamespace(ping_timeout=1.0, ping_interval=5.0, lease_duration=40.0)
    return SimpleNamespace(
        name="no-credentials",
        lower=client,
        upper=client,
        settings=settings,
        recorder=None,
        log=structlog.get_logger(),
        lower_version="",
    )


def _renewal(client: _NoCredentials) -> Coroutine[Any, Any, None]:
    registered = asyncio.Event()
    registered.set()
    node: Any = SimpleNamespace(registered=registered, uid="u")
    return NodeLease(_context(client), "vn", Identity("vn", is_exclusive=True)).run(node)


async def _goes_on(work: Any, client: _NoCredentials) -> None:
    async with working(work) as task:
        await asyncio.sleep(300)
        assert not task.done()
        assert client.asked > 2


@pytest.mark.looptime
async def test_the_lower_cluster_is_unreachable_with_a_reason():
    """The Node has it in its Ready condition, and its controllers continue."""
    client = _NoCredentials()
    health = HealthController(_context(client), changed=lambda: None)
    await _goes_on(health.run(), client)
    assert health.reachable is False
    assert health.error == "plugin: exit code 1"


@pytest.mark.looptime
async def test_the_lease_is_retried():
    """Until the upper cluster's credential is renewed the Node's Lease expires, and nothing is restarted."""
    client = _NoCredentials()
    await _goes_on(_renewal(client), client)


@pytest.mark.looptime
async def test_a_missing_namespace_for_leases_causes_no_loop():
    """An upper cluster without kube-node-lease answers NotFound to every request."""
    client = _NoCredentials()

    async def missing(*_what: Any, **_more: Any) -> None:
        client.asked += 1
        raise NotFound('namespaces "kube-node-lease" not found', code=404)

    client.get = client.create = missing  # type: ignore[method-assign, attr-defined]
    await _goes_on(_renewal(client), client)
    assert client.asked < 400


@pytest.mark.looptime
async def test_events_are_followed_again():
    """Errors of events of pods do not restart a cluster."""
    client = _NoCredentials()
    lower_pods = Informer(cast("Any", client), resources.PODS)
    await lower_pods.replace([], "1")
    pods = MirroredKind("Pod", lower_pods, (), "", lambda _lower: None, lambda _upper: "vn")
    await _goes_on(EventMirror(_context(client), (pods,)).run(), client)
