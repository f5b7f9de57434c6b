"""The serving certificates of virtual nodes: from files, self-signed, or signed by the upper cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from controller_runtime import log
from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError, ConfigError
from controller_runtime.tls import key_pairs
from controller_runtime.tls.reloader import CertificateReloader
from virtual_node.certificates.rotation import Issued, RecordEvent, ServingCertificate
from virtual_node.config.types import KubeletConfig
from virtual_node.kubelet.auth import load_client_ca

_REFRESH_SECONDS = 300.0
"""Seconds between two reads of the published CA, which changes once in years. A watch would need two more
rights in every installation."""
_RETRY = 15.0
"""Seconds between two reads while the CA is unknown, because users cannot read logs without it."""
_log = log.get_logger(component="kubelet")


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


@dataclass(eq=False, repr=False)
class ClientAuthority:
    """Holds the CA of our callers' client certificates, and follows its changes.

    Attributes:
        known: path of the file, or the published CA (PEM); empty while the CA is unknown.
    """

    file: str
    """Path of a PEM file, which the server's certificate reloader follows; empty: the CA that the upper cluster
    publishes."""
    upper: Client
    """The upper cluster."""
    changed: Callable[[bytes], None]
    """Called with a new CA (PEM); may raise ConfigError."""

    def __post_init__(self) -> None:
        """Use the file, if there is one."""
        self.known: str | bytes = self.file or b""

    async def load(self) -> None:
        """Read the CA once; on an error, callers need bearer tokens until a later read succeeds."""
        if self.file:
            return
        try:
            self.known = await load_client_ca(self.upper)
        except (ApiError, ConfigError) as error:
            _log.warning(
                "client CA not readable: only callers with bearer tokens are accepted",
                why=str(error),
                fix="grant get on configmap kube-system/extension-apiserver-authentication, or --client-verify-ca",
            )

    async def follow(self) -> None:
        """Read the CA periodically until cancelled, because it may change; return at once if it is a file."""
        while not self.file:
            await asyncio.sleep(_REFRESH_SECONDS if self.known else _RETRY)
            try:
                found = await load_client_ca(self.upper)
                if found == self.known:
                    continue
                self.changed(found)
            except (ApiError, ConfigError) as error:
                _log.debug("client CA not read", why=str(error))
                continue
            self.known = found
            _log.info("using the client CA of the upper cluster", bytes=len(found))
