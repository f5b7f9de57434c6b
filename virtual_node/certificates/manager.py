"""The serving certificates of virtual nodes: from files, self-signed, or signed by the upper cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from controller_runtime.client.client import Client
from controller_runtime.tls import key_pairs
from controller_runtime.tls.reloader import CertificateReloader
from virtual_node.certificates.rotation import Issued, RecordEvent, ServingCertificate
from virtual_node.config.kubelet_types import KubeletConfig


@dataclass(eq=False, repr=False)
class NodeCertificates:
    """Creates and renews the certificates of virtual nodes."""

    config: KubeletConfig
    upper: Client
    """The upper cluster, which signs the certificates if their source is ``CSR``."""
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _reloaders: dict[str, CertificateReloader] = field(default_factory=dict)
    """The newest reloader of each node; an older one that ends must not remove the newer one's metric."""
    _issued: dict[str, Issued] = field(default_factory=dict)
    """Certificates issued by the upper cluster and in use, by node; a lower cluster that restarts keeps
    them."""

    def reloader(
        self, node_name: str, addresses: Sequence[Mapping[str, str]], *, client_ca: str | bytes
    ) -> CertificateReloader:
        """Return a reloader with the first certificate that a node's kubelet API serves.

        Args:
            node_name: the virtual node.
            addresses: its ``status.addresses``.
            client_ca: CA of the callers' certificates: a file's path, or PEM; empty: none.

        Raises:
            ConfigError: the files, or the CA, cannot be used.
        """
        config, name = self.config, f"kubelet-{node_name}"
        if config.certificate_source == "Files":
            reloader = CertificateReloader(
                config.tls_cert_file, config.tls_private_key_file, client_ca=client_ca, name=name
            )
        else:
            if node_name in self._issued:
                pair = self._issued[node_name].pair
            else:
                hosts = [address["address"] for address in addresses]
                pair = key_pairs.self_signed(f"system:node:{node_name}", hosts=hosts)
            reloader = CertificateReloader.from_pair(pair, client_ca=client_ca, name=name)
        self._reloaders[node_name] = reloader
        return reloader

    def maintain(
        self,
        reloader: CertificateReloader,
        node_name: str,
        addresses: Sequence[Mapping[str, str]],
        *,
        record_event: RecordEvent,
    ) -> list[asyncio.Task[None]]:
        """Start tasks that reload certificate and CA from files, and with ``CSR`` request and renew the certificate.

        Args:
            reloader: returned by ``reloader``.
            node_name: the virtual node.
            addresses: its ``status.addresses``.
            record_event: writes Events on the Node.

        Returns:
            The tasks, which the caller cancels when the node is no longer served.
        """

        def ended(_task: asyncio.Task[None]) -> None:
            if self._reloaders.get(node_name) is reloader:
                del self._reloaders[node_name]
                reloader.forget()

        tasks = [asyncio.create_task(reloader.run(), name=f"certificate {node_name}")]
        tasks[0].add_done_callback(ended)
        if self.config.certificate_source == "CSR":

            def install(issued: Issued) -> None:
                reloader.replace(issued.pair)
                self._issued[node_name] = issued

            signed = ServingCertificate(
                self.upper,
                node_name,
                addresses,
                install=install,
                record_event=record_event,
                approve=self.config.approve_serving_certificate,
                issued=self._issued.get(node_name),
            )
            tasks.append(asyncio.create_task(signed.run(), name=f"serving certificate {node_name}"))
        for task in tasks:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return tasks

    def trust(self, client_ca: bytes) -> None:
        """Replace the CA (PEM) of the callers' certificates for all nodes.

        Raises:
            ConfigError: the CA cannot be used.
        """
        for reloader in self._reloaders.values():
            reloader.trust(client_ca)

    async def close(self) -> None:
        """Stop all certificate tasks."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
