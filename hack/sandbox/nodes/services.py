"""Services on a real node: kube-proxy for their addresses, CoreDNS for their names.

Both run in the node's network namespace (see ``network``). CoreDNS listens at the node's address. The cluster
reaches it as usual, by Service ``kube-system/kube-dns`` at the tenth address of the Service range.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from controller_runtime.tls.key_pairs import sign
from controller_runtime.tls.pem import KeyPair
from hack.sandbox.api import wait_healthy
from hack.sandbox.cluster import Cluster
from hack.sandbox.nodes.network import Bridge
from hack.sandbox.process import Process

PROGRAMS = ("kube-proxy", "coredns")
_READY_PORT = 8181
_PORTS = ({"name": "dns", "protocol": "UDP", "port": 53}, {"name": "dns-tcp", "protocol": "TCP", "port": 53})


def dns_address(cluster: Cluster) -> str:
    """Return the address of the DNS server for pods."""
    return cluster.service_ip + "0"


class NodeServices:
    """One kube-proxy and one CoreDNS."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        node: str,
        bridge: Bridge,
        binaries: Mapping[str, Path],
        directory: Path,
        dies_with_parent: bool,
    ) -> None:
        self._cluster = cluster
        self._bridge = bridge
        self._directory = directory

        def process(name: str, *arguments: str) -> Process:
            argv = bridge.inside([binaries[name], *arguments])
            return Process(name, argv, directory=directory, dies_with_parent=dies_with_parent)

        self.proxy = process("kube-proxy", *self._proxy_arguments(node))
        self.dns = process("coredns", f"-conf={directory / 'Corefile'}")

    async def start(self) -> None:
        """Start both and wait until names are resolved.

        Raises:
            SandboxError: one of them does not become ready; quotes its log.
        """
        pki = self._cluster.pki
        ca = KeyPair(pki.certificate("ca").read_bytes(), pki.key("ca").read_bytes())
        pki.issue("kube-proxy", sign(ca, "system:kube-proxy", usage="client"))
        self._cluster.write_kubeconfig("kube-proxy", path=self._directory / "kube-proxy.kubeconfig")
        (self._directory / "Corefile").write_text(self._corefile(), encoding="utf-8")
        await self.proxy.start()
        await self.dns.start()
        self._cluster.nodes[:0] = [self.proxy, self.dns]
        await self._cluster.apply(*self._dns_service())
        await wait_healthy(self.dns, f"http://{self._bridge.node_address}:{_READY_PORT}/ready")
        self.proxy.check()

    async def stop(self) -> None:
        """Stop both; their rules are removed with the namespace."""
        await asyncio.gather(self.proxy.kill(), self.dns.kill())

    def _proxy_arguments(self, node: str) -> list[str]:
        return [
            f"--kubeconfig={self._directory / 'kube-proxy.kubeconfig'}",
            f"--hostname-override={node}",
            "--proxy-mode=iptables",
            f"--cluster-cidr={self._bridge.subnet}",
            "--iptables-min-sync-period=0s",
            "--metrics-bind-address=127.0.0.1:10249",
            # 0 leaves sysctls unchanged, because a network namespace shares them or cannot write them.
            "--conntrack-max-per-core=0",
            "--conntrack-tcp-timeout-established=0s",
            "--conntrack-tcp-timeout-close-wait=0s",
            "--v=1",
        ]

    def _corefile(self) -> str:
        own = f"""bind {self._bridge.node_address}
    errors
    ready {self._bridge.node_address}:{_READY_PORT}"""
        # The template answers that no other name exists, because clients would retry after a refusal.
        return f"""cluster.local in-addr.arpa ip6.arpa {{
    {own}
    kubernetes {{
        kubeconfig {self._cluster.kubeconfig}
        pods insecure
        ttl 1
    }}
    loadbalance
}}
. {{
    {own}
    template ANY ANY {{
        rcode NXDOMAIN
    }}
}}
"""

    def _dns_service(self) -> list[dict[str, Any]]:
        """Return the Service and its endpoints, which are explicit because CoreDNS is no pod."""
        metadata = {"namespace": "kube-system", "labels": {"k8s-app": "kube-dns"}}
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {**metadata, "name": "kube-dns"},
            "spec": {"clusterIP": dns_address(self._cluster), "ports": list(_PORTS)},
        }
        endpoints = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": "kube-dns",
                "namespace": "kube-system",
                "labels": {"kubernetes.io/service-name": "kube-dns"},
            },
            "addressType": "IPv4",
            "endpoints": [{"addresses": [self._bridge.node_address]}],
            "ports": list(_PORTS),
        }
        return [service, endpoints]
