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
_DOMAIN = "cluster.local"
_OTHER_PORT, _OTHER_READY_PORT = 1053, 8182
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

        def process(program: str, *arguments: str, name: str = "") -> Process:
            argv = bridge.inside([binaries[program], *arguments])
            return Process(name or program, argv, directory=directory, dies_with_parent=dies_with_parent)

        self.proxy = process("kube-proxy", *self._proxy_arguments(node))
        self.dns = process("coredns", f"-conf={directory / 'Corefile'}")
        self._other_dns = process("coredns", f"-conf={directory / 'Corefile.other'}", name="other-coredns")

    async def start(self) -> None:
        """Start both and wait until names are resolved.

        Raises:
            SandboxError: one of them does not become ready; quotes its log.
        """
        pki = self._cluster.pki
        ca = KeyPair(pki.certificate("ca").read_bytes(), pki.key("ca").read_bytes())
        pki.issue("kube-proxy", sign(ca, "system:kube-proxy", usage="client"))
        self._cluster.write_kubeconfig("kube-proxy", path=self._directory / "kube-proxy.kubeconfig")
        self._write_corefile("Corefile", _DOMAIN, port=53, ready_port=_READY_PORT)
        await self.proxy.start()
        await self.dns.start()
        self._cluster.nodes[:0] = [self.proxy, self.dns]
        await self._cluster.apply(*self._dns_service("kube-dns", port=53, address=dns_address(self._cluster)))
        await wait_healthy(self.dns, f"http://{self._bridge.node_address}:{_READY_PORT}/ready")
        self.proxy.check()

    async def serve_domain(self, domain: str, *, address: str) -> Process:
        """Answer for the cluster's objects in another domain, at another Service address; return the server's process.

        To pods that ask only this server, the cluster has this domain.

        Raises:
            SandboxError: the server does not become ready; quotes its log.
        """
        self._write_corefile("Corefile.other", domain, port=_OTHER_PORT, ready_port=_OTHER_READY_PORT)
        await self._other_dns.start()
        await self._cluster.apply(*self._dns_service("other-dns", port=_OTHER_PORT, address=address))
        await wait_healthy(self._other_dns, f"http://{self._bridge.node_address}:{_OTHER_READY_PORT}/ready")
        return self._other_dns

    async def stop(self) -> None:
        """Stop all; their rules are removed with the namespace."""
        await asyncio.gather(self.proxy.kill(), self.dns.kill(), self._other_dns.kill())

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

    def _write_corefile(self, name: str, domain: str, *, port: int, ready_port: int) -> None:
        own = f"""bind {self._bridge.node_address}
    errors
    ready {self._bridge.node_address}:{ready_port}"""
        zones = " ".join(f"{zone}:{port}" for zone in (domain, "in-addr.arpa", "ip6.arpa"))
        # The template answers that no other name exists, because clients would retry after a refusal.
        text = f"""{zones} {{
    {own}
    kubernetes {{
        kubeconfig {self._cluster.kubeconfig}
        pods insecure
        ttl 1
    }}
    loadbalance
}}
.:{port} {{
    {own}
    template ANY ANY {{
        rcode NXDOMAIN
    }}
}}
"""
        (self._directory / name).write_text(text, encoding="utf-8")

    def _dns_service(self, name: str, *, port: int, address: str) -> list[dict[str, Any]]:
        """Return the Service and its endpoints, which are explicit because CoreDNS is no pod."""
        metadata = {"namespace": "kube-system", "labels": {"k8s-app": name}}
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {**metadata, "name": name},
            "spec": {"clusterIP": address, "ports": list(_PORTS)},
        }
        endpoints = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": name,
                "namespace": "kube-system",
                "labels": {"kubernetes.io/service-name": name},
            },
            "addressType": "IPv4",
            "endpoints": [{"addresses": [self._bridge.node_address]}],
            "ports": [{**one, "port": port} for one in _PORTS],
        }
        return [service, endpoints]
