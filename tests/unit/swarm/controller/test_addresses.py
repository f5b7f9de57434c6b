"""Pod IPs to which the controller connects. A hostile lower cluster reports any IP for its pods."""

from __future__ import annotations

import ipaddress
from types import SimpleNamespace
from typing import Any

import pytest

from clusterset.model import names
from controller_runtime.objects import from_dict
from swarm.controller.reports import WorkerAddresses, is_pod_address
from swarm.planning import Pod
from tests.unit.swarm.controller.scene import Scene, so

_VIRTUAL = {names.LABEL_NODE_TYPE: names.NODE_TYPE_VIRTUAL}


def addresses(*ranges: str, **spec: Any) -> WorkerAddresses:
    """Return the check of a cluster with a real node ``real`` and a virtual node ``vn``."""
    status = {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}]}
    nodes = {
        name: from_dict({"metadata": {"name": name, "labels": labels}, "spec": spec, "status": status})
        for name, labels in (("real", {}), ("vn", _VIRTUAL))
    }
    informer: Any = SimpleNamespace(store=nodes)
    return WorkerAddresses(informer, [ipaddress.ip_network(one) for one in ranges])


def allowed(found: WorkerAddresses, node: str, ip: str) -> bool:
    """Report whether the controller connects to a pod."""
    return not found.refusal(Pod("w", "u", node=node, ip=ip))


@pytest.mark.parametrize(
    "ip",
    [
        "127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "169.254.169.254", "::ffff:169.254.169.254", "fe80::1",
        "0.0.0.0", "::", "224.0.0.1", "ff02::1", "fd00:ec2::254", "100.100.100.200", "168.63.129.16", "192.0.0.192",
        "::ffff:100.100.100.200", "", "localhost", "10.0.0.1/x", "10.0.0.1#@a", "2130706433",
    ],
)  # fmt: skip
def test_addresses_that_no_pod_has_are_refused(ip: str):
    """On virtual nodes also if a range contains them, and if they are the address of the node."""
    assert not is_pod_address(ip)
    assert not allowed(addresses("0.0.0.0/0", "::/0"), "vn", ip)
    assert allowed(addresses(), "real", ip) == (ip == "127.0.0.1")


@pytest.mark.parametrize("ip", ["10.1.2.3", "192.168.0.9", "8.8.8.8", "fd00::1", "2001:db8::1"])
def test_pods_of_virtual_nodes_need_a_range(ip: str):
    """Pods of real nodes do not."""
    assert allowed(addresses(), "real", ip)
    assert not allowed(addresses(), "vn", ip)
    assert not allowed(addresses("10.42.0.0/16"), "vn", ip)
    assert allowed(addresses("10.42.0.0/16", f"{ip}"), "vn", ip)


def test_ranges_of_the_node_are_allowed():
    """The upper cluster assigns them; a wrong one allows nothing."""
    found = addresses(podCIDRs=["bad", 5, "10.7.0.0/24"])
    assert allowed(found, "vn", "10.7.0.9")
    assert allowed(found, "vn", "::ffff:10.7.0.9")
    assert not allowed(found, "vn", "10.7.1.9")


def test_pods_of_unknown_nodes_are_refused():
    """A deleted Node may have been a virtual one."""
    assert not allowed(addresses("0.0.0.0/0"), "gone", "10.1.2.3")
    assert not allowed(addresses("0.0.0.0/0"), "", "10.1.2.3")


async def test_condition_names_the_flag():
    """The author of the Swarm learns why the workers have no report."""
    scene = Scene()
    scene.server.create("nodes", {"metadata": {"name": "n", "labels": _VIRTUAL}})
    scene.pod(podIP="10.1.2.3")
    scene.swarm(workers={"selector": {}, "httpPort": 80})
    async with scene.running():
        await so(lambda: scene.condition()[0], "WorkersNotPolled")
        assert "--poll-cidrs" in scene.condition()[1]
