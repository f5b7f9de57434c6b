"""The kubelet APIs of a process over the ends of lower clusters."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from clusterset.config import Cluster, NodeConfig
from controller_runtime.errors import ConfigError
from hack.sandbox.ports import free_ports
from virtual_node.cluster.kubelet_endpoints import KubeletEndpoints
from virtual_node.config.types import KubeletConfig

PARIS = Cluster(name="paris", kubeconfig="/paris")


class _Remains:
    """Objects in reference cycles, as caches and their handlers."""

    def __init__(self) -> None:
        self.itself = self


class _Service:
    """A kubelet API that references its inputs."""

    def __init__(self, remains: _Remains, error: Exception | None = None) -> None:
        self._remains = remains
        self._error = error
        self.stopped: list[float] = []

    async def stop(
        self, *, lame_duck: float = 0.0, grace: float | None = None, after: asyncio.Event | None = None
    ) -> None:
        await asyncio.sleep(lame_duck)
        assert grace is not None
        if after is not None:
            await after.wait()
        self.stopped.append(grace)
        if self._error is not None:
            raise self._error


def _endpoints() -> KubeletEndpoints:
    upper: Any = SimpleNamespace()
    return KubeletEndpoints(KubeletConfig(drain_timeout=3.0, node_ip="10.0.0.1"), upper=upper)


@pytest.mark.looptime
async def test_the_caches_of_an_ended_cluster_are_freed():
    """A cluster may restart hundreds of times."""
    endpoints, ends = _endpoints(), []
    for _ in range(3):
        remains = _Remains()
        ends.append(weakref.ref(remains))
        service: Any = _Service(remains)
        endpoints.retire([service], contextlib.AsyncExitStack(), cluster=PARIS)
        del remains, service
    await asyncio.sleep(2)
    gc.collect()
    assert [end() for end in ends] == [None] * 3


@pytest.mark.looptime
async def test_a_server_that_fails_to_stop_keeps_no_client_open():
    """Its failure is logged and the clients are closed."""
    endpoints = _endpoints()
    closed: list[str] = []
    clients = contextlib.AsyncExitStack()
    clients.callback(closed.append, "upper")
    services: Any = [_Service(_Remains(), OSError("odd")), _Service(_Remains())]
    endpoints.retire(services, clients, cluster=PARIS)
    await asyncio.sleep(1)
    assert [service.stopped for service in services] == [[3.0], [3.0]]
    assert closed == ["upper"]
    assert not endpoints._draining


@pytest.mark.looptime
async def test_streams_of_a_cluster_that_another_process_runs_continue_until_this_one_ends():
    """Those of a cluster that restarts here end after the drain timeout."""
    endpoints = _endpoints()
    moved: Any = _Service(_Remains())
    restarted: Any = _Service(_Remains())
    endpoints.begin_shutdown(lame_duck=5)
    endpoints.retire([moved], contextlib.AsyncExitStack(), cluster=PARIS)
    endpoints.begin_work()
    endpoints.retire([restarted], contextlib.AsyncExitStack(), cluster=PARIS)
    await asyncio.sleep(3600)
    assert (moved.stopped, restarted.stopped) == ([], [3.0])
    await endpoints.__aexit__(None, None, None)
    assert moved.stopped == [3.0]


@pytest.mark.looptime
@pytest.mark.parametrize(
    "configured",
    [[], [Cluster(name="paris", kubeconfig="/other")]],
    ids=["removed", "changed"],
)
async def test_streams_of_a_cluster_that_another_process_runs_end_with_its_configuration(
    configured: list[Cluster],
):
    """The streams of other clusters continue; nothing is kept of the ended one."""
    endpoints, berlin = _endpoints(), Cluster(name="berlin", kubeconfig="/berlin")
    services: list[Any] = [_Service(_Remains()), _Service(_Remains())]
    endpoints.begin_shutdown(lame_duck=5)
    for service, cluster in zip(services, (PARIS, berlin), strict=True):
        endpoints.retire([service], contextlib.AsyncExitStack(), cluster=cluster)
    endpoints.keep([PARIS, berlin])
    await asyncio.sleep(10)
    assert [service.stopped for service in services] == [[], []]
    endpoints.keep([*configured, berlin])
    await asyncio.sleep(10)
    assert [service.stopped for service in services] == [[3.0], []]
    assert [cluster for cluster, _ in endpoints._handed_over] == [berlin]
    await endpoints.__aexit__(None, None, None)
    assert not endpoints._handed_over


def _serving(*nodes: NodeConfig) -> Any:
    """Return what the kubelet APIs of virtual nodes need, without pods."""
    caches: Any = SimpleNamespace(
        upper={node.name: SimpleNamespace(on_change=lambda *_handlers: None, store=None) for node in nodes}
    )
    context: Any = SimpleNamespace(
        lower=None, cluster_id="upper", pod_work=dict.fromkeys(node.name for node in nodes)
    )
    lower_nodes: Any = None
    return context, caches, lower_nodes


async def test_virtual_nodes_with_addresses_of_their_own_use_the_same_port():
    """Without one, the next node gets the next port."""
    (port,) = free_ports(1)
    upper: Any = SimpleNamespace()
    endpoints = KubeletEndpoints(KubeletConfig(port=port, address="127.0.0.1"), upper=upper)
    endpoints._node_ip = "127.0.0.1"
    nodes = [NodeConfig(name=f"vn-{number}", node_ip=f"127.0.0.{number}") for number in (21, 22)]
    nodes += [NodeConfig(name="a"), NodeConfig(name="b")]
    context, caches, lower_nodes = _serving(*nodes)
    services = [await endpoints.serve(context, caches, node, lower_nodes=lower_nodes) for node in nodes]
    try:
        ports = [service.port for service in services]
        assert ports[:3] == [port] * 3
        assert ports[3] > port
        addresses = [endpoints.addresses(node)[0]["address"] for node in nodes]
        assert addresses == ["127.0.0.21", "127.0.0.22", "127.0.0.1", "127.0.0.1"]
    finally:
        await asyncio.gather(*(service.stop(grace=0) for service in services))
        await endpoints.__aexit__(None, None, None)


async def test_every_type_of_address_leads_to_the_virtual_node():
    """With the default ``--kubelet-preferred-address-types``, API servers use the Hostname; no DNS knows a virtual node."""
    endpoints = KubeletEndpoints(KubeletConfig(external_ip="203.0.113.7"), upper=SimpleNamespace())  # type: ignore[arg-type]
    endpoints._node_ip = "10.0.0.7"
    found = {one["type"]: one["address"] for one in endpoints.addresses(NodeConfig(name="vn"))}
    assert found == {"InternalIP": "10.0.0.7", "Hostname": "10.0.0.7", "ExternalIP": "203.0.113.7"}
    own = endpoints.addresses(NodeConfig(name="vn", node_ip="10.0.0.8"))
    assert {one["address"] for one in own} == {"10.0.0.8", "203.0.113.7"}


async def test_an_address_of_another_machine_is_an_error_that_names_it():
    """It does not try two hundred ports."""
    endpoints = _endpoints()
    node = NodeConfig(name="vn", node_ip="192.0.2.1")
    context, caches, lower_nodes = _serving(node)
    with pytest.raises(ConfigError, match=r"kubelet API of vn: cannot listen on nodeIP 192\.0\.2\.1"):
        await endpoints.serve(context, caches, node, lower_nodes=lower_nodes)
    await endpoints.__aexit__(None, None, None)
