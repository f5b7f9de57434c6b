"""The declaration of ``virtual-node-multi-scheduler``, and the rights that it needs in upper and lower clusters.

The flags of kube-scheduler, which tensile-kube's multi-scheduler has, too, are accepted without effect. The extender is
not a scheduler: leader election, serving and the queue are settings of the stock kube-scheduler that calls it. The lists
contain the flags of Kubernetes 1.18 (of which tensile-kube's multi-scheduler is a build) to 1.36. klog's flags are those
of every program (``controller_runtime.process.flags``).
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from clusterset import config as inventory
from clusterset.model.rights import EXTENDER_LEASE, EXTENDER_SECRET
from controller_runtime.errors import ConfigError
from controller_runtime.process.flags import ForeignFlags
from controller_runtime.process.listening import service_hosts
from controller_runtime.process.program import Program
from controller_runtime.process.settings import Port, Setting
from controller_runtime.rights import OWN_NAMESPACE, Right, leader_election
from multi_scheduler.config import ProcessSettings
from multi_scheduler.extender.server import MAX_BODY_BYTES

_EXTENDER = "extender"
_OWN = "own certificates (without --tlscert)"
_VALUES = """
    algorithm-provider allow-metric-labels allow-metric-labels-manifest authentication-kubeconfig
    authentication-token-webhook-cache-ttl authorization-always-allow-paths authorization-kubeconfig
    authorization-webhook-cache-authorized-ttl authorization-webhook-cache-unauthorized-ttl bind-address cert-dir
    client-ca-file disabled-metrics emulated-version feature-gates
    hard-pod-affinity-symmetric-weight http2-max-streams-per-connection kube-api-burst kube-api-content-type kube-api-qps
    leader-elect-lease-duration leader-elect-renew-deadline leader-elect-resource-lock leader-elect-resource-name
    leader-elect-resource-namespace leader-elect-retry-period lock-object-name lock-object-namespace log-flush-frequency
    log-json-info-buffer-size log-text-info-buffer-size logging-format min-compatibility-version
    pod-max-in-unschedulable-pods-duration policy-config-file policy-configmap policy-configmap-namespace
    requestheader-allowed-names requestheader-client-ca-file requestheader-extra-headers-prefix
    requestheader-group-headers requestheader-uid-headers requestheader-username-headers scheduler-name secure-port
    show-hidden-metrics-for-version tls-cert-file tls-cipher-suites tls-curve-preferences tls-min-version tls-private-key-file
    tls-sni-cert-key write-config-to
"""
_SWITCHES = """
    authentication-skip-lookup authentication-tolerate-lookup-failure contention-profiling disable-http2-serving emulation-forward-compatible
    experimental-logging-sanitization leader-elect log-json-split-stream log-text-split-stream
    permit-address-sharing permit-port-sharing profiling use-legacy-policy-config
"""
KUBE_SCHEDULER = ForeignFlags(
    program="kube-scheduler",
    next="give it to the stock kube-scheduler, which calls this extender; "
    "'virtual-node-multi-scheduler print-scheduler-configuration' prints that scheduler's configuration",
    values=frozenset(_VALUES.split()),
    switches=frozenset(_SWITCHES.split()),
)


class SchedulerSettings(ProcessSettings, kw_only=True):
    """The flags of the extender. Without ``--health-addr``, its port serves health and metrics."""

    address: Annotated[str, Setting(_EXTENDER, "--address HOST")] = ""
    """Address to listen on. Empty: all."""
    port: Annotated[Port, Setting(_EXTENDER, "--port PORT")] = 8888
    """Port to listen on, also for /healthz, /readyz and /metrics without --health-addr."""
    tlscert: Annotated[str, Setting(_EXTENDER, "--tlscert FILE")] = ""
    """Serving certificate. Empty: plain HTTP."""
    tlskey: Annotated[str, Setting(_EXTENDER, "--tlskey FILE")] = ""
    """Its private key."""
    client_ca: Annotated[str, Setting(_EXTENDER, "--client-ca FILE")] = ""
    """CA of the scheduler's client certificate; calls without one are refused (401)."""
    client_names: Annotated[tuple[str, ...], Setting(_EXTENDER, "--client-names LIST")] = ()
    """Common names that a client certificate may have. Empty: any, so the client CA must sign nothing else."""
    bind: Annotated[bool, Setting(_EXTENDER, "--bind")] = False
    """Serve /bind, for a scheduler with bindVerb; needs the right create on pods/binding."""
    namespace: Annotated[str, Setting(_EXTENDER, "--namespace NS", "POD_NAMESPACE")] = "kube-system"
    """Namespace of the Secrets, the Service and the Lease."""
    active_lease: Annotated[str, Setting(_EXTENDER, "--active-lease NAME")] = ""
    """Lease in --namespace: a process answers only while it holds it, so that two processes never promise the same room.
    Empty: only one process may run."""
    safe_scheduler_routes: Annotated[bool, Setting(_EXTENDER, "--safe-scheduler-routes")] = False
    """Serve the paths of kube-safe-scheduler under /scheduler, with its environment variables, and a path for each
    agent."""
    max_body_bytes: Annotated[int, Meta(ge=1), Setting(_EXTENDER, "--max-body-bytes N")] = MAX_BODY_BYTES
    """Largest call in bytes; a scheduler without nodeCacheCapable needs more."""
    secret_name: Annotated[str, Setting(_OWN, "--secret-name NAME")] = ""
    """Secret for certificates of both sides, which are created; calls without one are refused. Empty: none are
    created."""
    client_secret: Annotated[str, Setting(_OWN, "--client-secret-name NAME")] = ""
    """Secret for kube-scheduler: tls.crt, tls.key, ca.crt. Empty: --secret-name with -client."""
    service_name: Annotated[str, Setting(_OWN, "--service-name NAME")] = ""
    """Service by which the scheduler calls the extender."""
    hosts: Annotated[tuple[str, ...], Setting(_OWN, "--hosts LIST")] = ()
    """Further names and addresses by which the scheduler calls the extender."""

    def check(self) -> None:
        """Read the configuration, and check the settings together, see ``ProgramSettings.check``."""
        super().check()
        if bool(self.tlscert) != bool(self.tlskey):
            raise ConfigError("--tlscert and --tlskey: give both or neither")
        if self.client_ca and not self.tlscert:
            raise ConfigError("--client-ca: needs --tlscert and --tlskey")
        if self.secret_name and self.tlscert:
            raise ConfigError(
                "--secret-name (own certificates) and --tlscert (given certificates) exclude each other: use one of them"
            )
        if self.client_names and not (self.client_ca or self.secret_name):
            raise ConfigError("--client-names: needs --client-ca or --secret-name")

    @property
    def client_secret_name(self) -> str:
        """Return the name of the Secret with the scheduler's client certificate."""
        return self.client_secret or f"{self.secret_name}-client"

    @property
    def certificate_hosts(self) -> tuple[str, ...]:
        """Return the host names and addresses of the extender's own certificate."""
        return tuple(dict.fromkeys([*service_hosts(self.service_name, self.namespace), *self.hosts])) or (
            "localhost",
        )


PROGRAM = Program(
    name="virtual-node-multi-scheduler",
    about="The scheduler extender: checks the lower clusters before kube-scheduler binds a pod, so that a virtual node "
    "is chosen only if one of its lower nodes has room.",
    settings=SchedulerSettings,
    run="multi_scheduler.app:run",
    rights="multi_scheduler.program",
    examples=[
        ("Read the lower clusters from a file", "--kubeconfig upper.yaml --config clusters.yaml"),
        (
            "Print the configuration of the kube-scheduler that calls this extender",
            "print-scheduler-configuration --kubeconfig upper.yaml --config clusters.yaml",
        ),
    ],
    commands={"print-scheduler-configuration": "multi_scheduler.print_configuration:PROGRAM"},
    foreign=KUBE_SCHEDULER,
)

UPPER: tuple[Right, ...] = (
    Right("", "nodes", ("list", "watch"), "map virtual nodes to lower clusters"),
    Right("", "pods", ("list", "watch"), "bound pods without a lower pod yet, and pods of groups"),
    Right("", "namespaces", ("list", "watch"), "labels that the affinity terms of pods select"),
    Right(
        "scheduling.x-k8s.io",
        "podgroups",
        ("list", "watch"),
        "minimum of a pod group, if this API is installed",
    ),
    Right(
        "scheduling.k8s.io", "podgroups", ("list", "watch"), "minCount of a native group (Kubernetes 1.37)"
    ),
    Right("", "events", ("create", "patch"), "Events about the choice of a pod's node"),
    # No right to create: a new Secret of type service-account-token gets the token of any account in the namespace.
    Right(
        "",
        "secrets",
        ("get", "update"),
        "certificates of extender and scheduler (--secret-name)",
        "",
        OWN_NAMESPACE,
        (EXTENDER_SECRET,),
    ),
    *leader_election(EXTENDER_LEASE, "only one of several replicas answers (--active-lease)"),
)

BIND: tuple[Right, ...] = (Right("", "pods", ("create",), "bind pods (bindVerb)", "binding"),)
"""Added to ``UPPER`` if the extender binds pods."""

PROFILES: tuple[Right, ...] = inventory.PROFILES
"""Added to ``UPPER`` with ``clusterProfiles``. ``<profiles>`` stands for the namespace of the ClusterProfiles."""

UPPER_METRICS_API: tuple[Right, ...] = (
    Right("metrics.k8s.io", "nodes", ("list",), "usage of real nodes (upperUsage.source MetricsAPI)"),
)
"""Added to ``UPPER`` for ``upperUsage.source`` MetricsAPI."""

UPPER_KUBELETS: tuple[Right, ...] = (
    Right("", "nodes", ("get",), "usage of real nodes (upperUsage.source Summary or Resource)", "proxy"),
)
"""Added to ``UPPER`` for ``upperUsage.source`` Summary or Resource, see ``LOWER_KUBELETS``."""

LOWER: tuple[Right, ...] = (
    Right("", "nodes", ("list", "watch"), "capacity of every lower node"),
    Right("", "pods", ("list", "watch"), "pods that use this room"),
    Right("", "persistentvolumes", ("list", "watch"), "nodes that volumes are bound to"),
    # Without these rights, pods are sent to lower clusters that may refuse them.
    Right("", "resourcequotas", ("list", "watch"), "pods that a lower quota would refuse"),
    Right("", "limitranges", ("list", "watch"), "defaults and limits of lower pods"),
    Right(
        "",
        "namespaces",
        ("list", "watch"),
        "namespaces that the virtual node must not use, and their labels for affinity",
    ),
    Right("scheduling.k8s.io", "priorityclasses", ("list", "watch"), "lower quotas of priority classes"),
)
"""Rights that ``virtual-node lower-cluster register`` grants to the read-only account."""

LOWER_METRICS_API: tuple[Right, ...] = (
    Right("metrics.k8s.io", "nodes", ("list",), "usage of lower nodes (usage.source MetricsAPI)"),
)
"""Added to ``LOWER`` for ``usage.source`` MetricsAPI: ``lower-cluster register --usage-source MetricsAPI`` grants this."""

LOWER_KUBELETS: tuple[Right, ...] = (
    Right("", "nodes", ("get",), "usage of lower nodes (usage.source Summary or Resource)", "proxy"),
)
"""Added to ``LOWER`` for ``usage.source`` Summary or Resource: ``lower-cluster register --usage-source Summary`` grants this.
RBAC cannot limit the right to metrics. With this right an account can read logs, and on some releases run commands, through any
kubelet."""
