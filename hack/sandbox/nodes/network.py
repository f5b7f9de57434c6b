"""The network of a sandbox with a real node: a bridge on the machine, a network namespace for the node.

::

      machine (apiservers, virtual node)                 namespace vnode3 (kubelet, containerd, kube-proxy, CoreDNS)
      vnode3 10.200.3.1 ─── vnode3-node ═══ veth pair ═══ node0 10.200.3.2 ─── routed ─── pods 10.201.3.0/24

So a node has a firewall of its own: the rules of kube-proxy and of pods' port mappings do not affect the
machine, two sandboxes are separate, and removing the namespace removes everything. Pods and the machine reach
each other by routing, without address translation.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hack.sandbox.errors import SandboxError

NODE_PORTS = "30000:32767"
"""Default of the kube-apiserver's ``--service-node-port-range``, as iptables writes a range."""


@dataclass(frozen=True, slots=True)
class Bridge:
    """A Linux bridge and its /24, and the namespace of the node behind it."""

    name: str
    number: int

    @property
    def address(self) -> str:
        """Return the machine's address on the bridge."""
        return f"10.200.{self.number}.1"

    @property
    def node_address(self) -> str:
        """Return the node's address on the bridge."""
        return f"10.200.{self.number}.2"

    @property
    def subnet(self) -> str:
        """Return the subnet of pod addresses."""
        return f"10.201.{self.number}.0/24"

    def inside(self, argv: Sequence[str | Path]) -> list[str | Path]:
        """Return the command line that runs a program in the node's network namespace, under the same pid.

        Not ``ip netns exec``, which would also create a mount namespace.
        """
        return ["nsenter", f"--net=/run/netns/{self.name}", "--", *argv]


def make_bridge() -> Bridge:
    """Make the first bridge that is free on this machine, and the namespace behind it.

    Raises:
        SandboxError: the kernel refuses it, or no subnet is free.
    """
    taken = run("ip", "-o", "-4", "addr") + run("ip", "-4", "route")
    for number in range(1, 250):
        bridge = Bridge(f"vnode{number}", number)
        if f"10.200.{number}." in taken or f"10.201.{number}." in taken:
            continue
        try:
            run("ip", "link", "add", bridge.name, "type", "bridge")
        except SandboxError as error:
            if "File exists" in str(error):
                continue
            raise
        try:
            _connect(bridge)
        except BaseException:
            remove_bridge(bridge.name)
            raise
        return bridge
    raise SandboxError("no free 10.200.x.0/24 on this machine for a real node")


def connect(one: Bridge, other: Bridge) -> None:
    """Connect the nodes and pods behind two bridges by a veth pair, which is removed with either namespace.

    The machine itself does not route between them.
    """
    here, there = f"to{other.number}", f"to{one.number}"
    run(*f"ip -n {one.name} link add {here} type veth peer name {there} netns {other.name}".split())
    for near, far, device in ((one, other, here), (other, one, there)):
        ip = f"ip -n {near.name}"
        run(*f"{ip} link set {device} up".split())
        run(*f"{ip} route add {far.node_address}/32 dev {device} src {near.node_address}".split())
        run(*f"{ip} route add {far.subnet} via {far.node_address} dev {device}".split())


def forward_node_ports(node: Bridge, other: Bridge) -> None:
    """Forward connections to a node's node ports to another node, which ``connect`` has connected with it."""
    for chain in ("PREROUTING", "OUTPUT"):
        for protocol in ("tcp", "udp"):
            rule = f"iptables -t nat -A {chain} -d {node.node_address} -p {protocol} --dport {NODE_PORTS} -j DNAT"
            run(*map(str, node.inside([*rule.split(), "--to-destination", other.node_address])))


def remove_bridge(name: str) -> None:
    """Remove a bridge and the namespace behind it; missing ones are no error."""
    for what in (("link", "delete", f"{name}-node"), ("netns", "delete", name), ("link", "delete", name)):
        subprocess.run(["ip", *what], check=False, capture_output=True)


def run(*argv: str) -> str:
    """Run a short command; return its output.

    Raises:
        SandboxError: the command is missing or fails; quotes its output.
    """
    try:
        done = subprocess.run(argv, check=False, capture_output=True, text=True)
    except OSError as error:
        raise SandboxError(f"{argv[0]}: {error.strerror}") from None
    if done.returncode:
        raise SandboxError(f"{' '.join(argv)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def _connect(bridge: Bridge) -> None:
    """Connect a bridge to a new network namespace: veth pair, addresses, routes."""
    outer, inner, space = f"{bridge.name}-node", "node0", bridge.name
    run("ip", "addr", "add", f"{bridge.address}/24", "dev", bridge.name)
    run("ip", "link", "set", bridge.name, "up")
    run("ip", "netns", "add", space)
    run("ip", "link", "add", outer, "type", "veth", "peer", "name", inner, "netns", space)
    run("ip", "link", "set", outer, "master", bridge.name, "up")
    run("ip", "-n", space, "link", "set", "lo", "up")
    run("ip", "-n", space, "addr", "add", f"{bridge.node_address}/24", "dev", inner)
    run("ip", "-n", space, "link", "set", inner, "up")
    run("ip", "-n", space, "route", "add", "default", "via", bridge.address)
    run(*map(str, bridge.inside(["sysctl", "-qw", "net.ipv4.ip_forward=1"])))
    run("ip", "route", "add", bridge.subnet, "via", bridge.node_address)
