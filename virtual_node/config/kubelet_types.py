"""The configuration of the kubelet APIs of a virtual-node process."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from controller_runtime.apimachinery.decoding import ConfigStruct
from controller_runtime.process.settings import Port, Setting

KUBELET = "kubelet API"
"""Title of the flags of the kubelet API."""


class KubeletLimits(ConfigStruct):
    """Limits of the kubelet APIs, shared by all virtual nodes of the process."""

    connections: Annotated[int, Meta(ge=10)] = 1200
    """Maximum open connections. If all are in use, an unauthorized or idle one is closed, else the new one."""
    unauthorized_connections: Annotated[int, Meta(ge=10)] = 128
    """Maximum connections of clients that are not authorized yet. If all are in use, a new connection closes
    the oldest one of the client address that has the most."""
    streams: Annotated[int, Meta(ge=1)] = 1000
    """Maximum open streams (exec, attach, port-forward, logs), about 200 KiB each. Further streams are
    refused. The last fifth is reserved for namespaces with fewer than 5 streams, half of it for namespaces with
    none."""
    streams_per_namespace: Annotated[int, Meta(ge=1)] = 100
    """Maximum open streams to pods of one upper namespace. A limit per user is not possible, because the API server
    does not send the user's name."""


class KubeletConfig(ConfigStruct):
    """The kubelet API that the upper apiserver connects to for logs, exec, attach and port-forward."""

    address: str = "0.0.0.0"  # noqa: S104 - the upper apiserver must reach it; every request is authenticated
    port: Annotated[Port, Setting(KUBELET, "", "KUBELET_PORT")] = 10250
    """First port to try. Each further virtual node of the process uses the next free port."""
    node_ip: Annotated[str, Setting(KUBELET, "", "VKUBELET_POD_IP")] = ""
    """InternalIP of the Node. Empty: the local address with a route to the upper apiserver."""
    external_ip: Annotated[str, Setting(KUBELET, "", "VKUBELET_EXTERNAL_POD_IP")] = ""
    """ExternalIP of the Node. Empty: none."""
    tls_cert_file: Annotated[str, Setting(KUBELET, "", "APISERVER_CERT_LOCATION")] = ""
    """Serving certificate, for ``servingCertificate: Files``."""
    tls_private_key_file: Annotated[str, Setting(KUBELET, "", "APISERVER_KEY_LOCATION")] = ""
    serving_certificate: Literal["SelfSigned", "CSR", "Files"] | None = None
    """SelfSigned: created at start. CSR: signed by the upper cluster (kubernetes.io/kubelet-serving),
    renewed. Files: ``tlsCertFile`` and ``tlsPrivateKeyFile``. Unset: Files if these are set, else
    SelfSigned."""
    approve_serving_certificate: Annotated[bool, Setting(KUBELET, "--approve-server-certificates")] = False
    """Approve our own certificate requests (CSR). Off: an administrator or an approver must approve them."""
    client_ca_file: Annotated[
        str, Setting(KUBELET, "--client-verify-ca FILE", "APISERVER_CA_CERT_LOCATION")
    ] = ""
    """CA of client certificates. Empty: the upper cluster's own, from extension-apiserver-authentication."""
    anonymous_auth: bool = False
    """Serve requests without credentials, as system:anonymous; they are still authorized."""
    drain_timeout: Annotated[float, Meta(ge=0)] = 10.0
    """Seconds that open streams have to end when the process stops. It must be less than the pod's
    ``terminationGracePeriodSeconds``."""
    authorization: bool = True
    """Authorize requests by SubjectAccessReview in the upper cluster. Off: authentication is sufficient."""
    limits: KubeletLimits = msgspec.field(default_factory=KubeletLimits)

    @property
    def certificate_source(self) -> Literal["SelfSigned", "CSR", "Files"]:
        """Return ``servingCertificate``, or its default if it is unset."""
        return self.serving_certificate or ("Files" if self.tls_cert_file else "SelfSigned")
