"""The settings of a virtual-node process beside those of its lower clusters (``clusterset.config``).

The YAML file of ``--config`` and the tensile-kube flags use the same structures. ``command_line`` turns flags
into a configuration with one lower cluster, ``clusterset.reading`` reads the YAML file and ``file`` validates both.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from clusterset.config import PODS, ClusterSet
from controller_runtime.apimachinery.decoding import ConfigStruct
from controller_runtime.process.flags import address, duration
from controller_runtime.process.settings import (
    PROCESS,
    UPPER,
    Port,
    Positive,
    Setting,
    positive_float,
    positive_int,
)

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


SHARDED: Final = "Sharded"


class ServicesConfig(ConfigStruct):
    """Upper Services that are mirrored in lower clusters, in addition to the Services of namespaces with pods there."""

    always: list[str] = msgspec.field(default_factory=lambda: ["kube-system/*"])
    """Shell patterns: ``namespace/name``. Namespace kube-system gets no other lower Services."""


class LimitsConfig(ConfigStruct):
    """Limits of what upper users' pods use in the process, so that one namespace cannot exhaust it."""

    references_per_pod: Annotated[int, Meta(gt=0)] = 100
    """ConfigMaps, Secrets, tokens, certificates and trust anchors that one pod may reference, each counted once. A pod with
    more waits with event ``TooManyReferences``."""
    references_per_namespace: Annotated[int, Meta(gt=0)] = 1000
    """ConfigMaps and Secrets that the pods of one upper namespace may reference in one lower cluster. A pod
    that would exceed the limit waits with the same event. Other namespaces are not affected."""
    bytes_per_namespace: Annotated[int, Meta(gt=0)] = 64 * 1024**2
    """Maximum memory of ConfigMaps and Secrets that one upper namespace's pods reference in one
    lower cluster. Further objects are not mirrored, and pods that need them wait with the same event.
    Existing copies stay unchanged."""
    cache_bytes_per_namespace: Annotated[int, Meta(gt=0)] = 16 * 1024**2
    """Maximum memory of the Services, EndpointSlices, claims and followed objects of one upper namespace, for all lower
    clusters together. Also the maximum memory of its pods beyond 16 KiB per pod, for each lower cluster. Further objects
    are not kept, and the namespace's new pods wait with event ``NamespaceTooLarge``. Existing copies stay unchanged."""
    watches_per_namespace: Annotated[int, Meta(ge=0)] = 50
    """Maximum watches of referenced objects of one upper namespace in one lower cluster, each with its own
    connection. Other objects are read when a pod starts and about once a minute, 20 per second in all.
    Namespaces take turns."""
    watches: Annotated[int, Meta(ge=0)] = 200
    """Maximum watches of referenced objects in one lower cluster. If all are in use, a namespace with few
    takes one from the namespace with most. An object that loses its watch is then read about once a minute."""


class IdentitiesConfig(ConfigStruct):
    """Tokens of the upper cluster for lower pods."""

    tokens: Annotated[Literal["pod", "node"], Setting(PODS, "--identity-tokens")] = "pod"
    """pod: one token per pod, which becomes invalid with the pod. node: one token per ServiceAccount, audience
    and lifetime for all pods of a virtual node, which becomes invalid with the Node: fewer requests per pod. It needs
    Kubernetes 1.31 in the upper cluster. A changed value applies to new pods."""


class LeaderElectionConfig(ConfigStruct):
    """How replicas of a virtual-node process divide the work."""

    enabled: Annotated[bool, Setting(PROCESS, "--leader-elect")] = False
    """Run as one of several replicas."""
    mode: Annotated[Literal["Standby", "Sharded"], Setting(PROCESS, "--leader-elect-mode")] = "Standby"
    """Standby: one replica works, the others wait for its Lease. Sharded: every replica runs a part of the lower
    clusters."""
    namespace: Annotated[str, Setting(PROCESS, "--leader-elect-resource-namespace NS")] = "kube-system"
    """Namespace of the Lease, in the upper cluster."""
    name: Annotated[str, Setting(PROCESS, "--leader-elect-resource-name NAME")] = "virtual-node"
    """Name of the Lease. Two installations in one upper cluster need different names. With mode Sharded the names of
    all Leases begin with it."""
    lease_duration: Positive = 15.0
    """Seconds without renewal after which another replica takes over."""
    renew_deadline: Positive = 10.0
    """Seconds after which a leader that cannot renew its Lease stops working."""
    retry_period: Positive = 2.0
    """Seconds between attempts to acquire or renew the Lease."""


class Config(ClusterSet):
    """The configuration of a virtual-node process."""

    kubeconfig: Annotated[str, Setting(UPPER, "--kubeconfig FILE")] = ""
    """Path of the upper cluster's kubeconfig. Empty: $KUBECONFIG, ~/.kube/config, in-cluster."""
    server: Annotated[str, Setting(UPPER, "", "MASTER_URI")] = ""
    """Overrides the upper apiserver's URL in the kubeconfig."""
    cluster_id: Annotated[str, Setting(UPPER, "--cluster-id ID")] = ""
    """Identity of the upper cluster on lower objects. Empty: the uid of its kube-system namespace."""
    kube_api_qps: Annotated[Positive, Setting(UPPER, "--kube-api-qps N", parse=positive_float)] = 500
    """Requests per second to the upper apiserver, per lower cluster."""
    kube_api_burst: Annotated[int, Meta(gt=0), Setting(UPPER, "--kube-api-burst N", parse=positive_int)] = (
        1000
    )
    """Requests that may be sent at once before ``kubeAPIQPS`` limits them."""
    enable_serviceaccount: Annotated[bool, Setting(PODS, "--enable-serviceaccount")] = True
    """Give lower pods tokens of the upper cluster. Off: they get an identity of the lower cluster."""
    identities: IdentitiesConfig = msgspec.field(default_factory=IdentitiesConfig)
    kubernetes_service: Annotated[
        Literal["Auto", "Lower", "Upper"], Setting(PODS, "--kubernetes-service")
    ] = "Auto"
    """The API server that KUBERNETES_SERVICE_HOST and ``kubernetes.default.svc`` name in pods. Auto: that of the cluster
    that issues the pods' tokens. A pod's annotation ``virtual-node.io/kubernetes-service`` overrides it."""
    kubernetes_service_url: Annotated[str, Setting(PODS, "--kubernetes-service-url URL")] = ""
    """URL of the upper API server for lower pods. Empty: the URL that this process uses, or else an address that the API
    server advertises."""
    cluster_domain: Annotated[str, Setting(PODS, "--cluster-domain DOMAIN")] = "cluster.local"
    """DNS domain of the upper cluster. Pods of lower clusters with ``dns.servers`` search it, and names of the API server have it."""
    pod_sync_workers: Annotated[int, Meta(gt=0), Setting(PODS, "--pod-sync-workers N")] = 50
    """Maximum number of pods of one lower cluster that are reconciled at the same time."""
    ping_interval: Annotated[Positive, Setting(PROCESS, "--ping-interval D", parse=duration)] = 10.0
    """Time between health checks of a lower cluster; in the file in seconds."""
    ping_timeout: Positive = 5.0
    """Seconds after which a health check without response counts as failed."""
    status_interval: Positive = 60.0
    """Seconds between updates of an unchanged Node's status."""
    lease_duration: Positive = 40.0
    """Seconds for which a Node's Lease is valid. It is renewed after every quarter of this time."""
    full_resync_period: Annotated[
        float, Meta(ge=0), Setting(PODS, "--full-resync-period D", parse=duration)
    ] = 600.0
    """Time between reconciliations of all pods, from the caches; in the file in seconds. 0: never."""
    metrics_address: Annotated[str, Setting(PROCESS, "--metrics-addr HOST:PORT", parse=address)] = ""
    """host:port for /healthz, /readyz and /metrics. Empty: not served."""
    web_address: Annotated[str, Setting(PROCESS, "--web-addr HOST:PORT", parse=address)] = ""
    """host:port for a read-only page about this process. Empty: not served. The page needs no credentials, so
    keep it on loopback and use ``kubectl port-forward``."""
    workers: Annotated[int, Meta(ge=1, le=64), Setting(PROCESS, "--workers N")] = 1
    """Processes of this machine that divide the lower clusters. A process uses at most one core. More than 1 implies
    leader election with mode Sharded."""
    inspection_history: Annotated[
        str,
        Meta(pattern=r"^([a-z0-9-]+/[a-z0-9.-]+)?$"),
        Setting(PROCESS, "--inspection-history NAMESPACE/NAME"),
    ] = ""
    """ConfigMap of the upper cluster with the history of ``inspect --history``, for metrics and the page. Empty: none."""
    leader_election: LeaderElectionConfig = msgspec.field(default_factory=LeaderElectionConfig)
    kubelet: KubeletConfig = msgspec.field(default_factory=KubeletConfig)
    services: ServicesConfig = msgspec.field(default_factory=ServicesConfig)
    limits: LimitsConfig = msgspec.field(default_factory=LimitsConfig)
