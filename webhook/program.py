"""The declaration of ``virtual-node-webhook``, with tensile-kube's flags and its own, and the rights that it needs."""

from __future__ import annotations

from typing import Annotated

from clusterset.model.moving.node_avoidance import CONFIG_MAP
from clusterset.model.rights import WEBHOOK_CONFIGURATION, WEBHOOK_SECRET
from controller_runtime.errors import ConfigError
from controller_runtime.process.flags import duration
from controller_runtime.process.listening import service_hosts
from controller_runtime.process.program import HealthSettings, Program
from controller_runtime.process.settings import UPPER as UPPER_CLUSTER
from controller_runtime.process.settings import Port, Setting
from controller_runtime.rights import READ, Right, in_own_namespace, leader_election
from webhook import manifests
from webhook.mutation.mutate import Surroundings

_NAME = "virtual-node-webhook"
_SERVER = "server"
_PODS = "pods"
_OWN = "own certificates and registration (without --tlscert)"


class WebhookSettings(HealthSettings, kw_only=True):
    """The flags of the webhook."""

    address: Annotated[str, Setting(_SERVER, "--address HOST")] = ""
    """Address to listen on. Empty: all, IPv4 and IPv6."""
    port: Annotated[Port, Setting(_SERVER, "--port PORT")] = 8080
    """Port to listen on."""
    tlscert: Annotated[str, Setting(_SERVER, "--tlscert FILE")] = ""
    """Serving certificate; reloaded when it changes. Empty: the webhook creates its certificates and stores them in a
    Secret."""
    tlskey: Annotated[str, Setting(_SERVER, "--tlskey FILE")] = ""
    """Its private key; reloaded when it changes."""
    client_ca: Annotated[str, Setting(_SERVER, "--CA FILE")] = ""
    """CA of client certificates; with it they are verified."""
    shutdown_delay_duration: Annotated[
        float, Setting(_SERVER, "--shutdown-delay-duration D", parse=duration)
    ] = 0.0
    """Time to keep serving after the signal to stop, while the API server still calls it."""
    incluster: Annotated[bool, Setting(UPPER_CLUSTER, "--incluster")] = False
    """Use the pod's own ServiceAccount."""
    ignore_selector_keys: Annotated[tuple[str, ...], Setting(_PODS, "--ignore-selector-keys LIST")] = (
        "clusterID",
    )
    """Label keys that stay in the upper spec."""
    freeze_period: Annotated[float, Setting(_PODS, "--freeze-period D", parse=duration)] = 300.0
    """How long an owner's pods avoid a node that was full."""
    freeze_namespace: Annotated[str, Setting(_PODS, "--freeze-namespace NS")] = "kube-system"
    """Namespace of the descheduler's ConfigMaps."""
    scheduler_name: Annotated[str, Setting(_PODS, "--scheduler-name NAME")] = ""
    """Scheduler for pods that name none: one that calls the multi-scheduler. Empty: unchanged."""
    require_virtual_node: Annotated[bool, Setting(_PODS, "--require-virtual-node")] = True
    """Run pods with moved selectors on virtual nodes only, not on real upper nodes."""
    move_anti_affinity: Annotated[tuple[str, ...], Setting(_PODS, "--move-anti-affinity NAMESPACES")] = ()
    """Namespaces (shell patterns) where required pod anti-affinity over kubernetes.io/hostname to pods of the same kind
    separates lower nodes, not virtual nodes. Such pods run on virtual nodes only. Annotation
    virtual-node.io/move-anti-affinity of a pod overrides it."""
    move_resource_claims: Annotated[bool, Setting(_PODS, "--move-resource-claims")] = False
    """Move resourceClaims into an annotation, for lower clusters with resourceClaims.enabled. Such pods run on virtual
    nodes only."""
    namespace: Annotated[str, Setting(_OWN, "--namespace NS", "POD_NAMESPACE")] = "kube-system"
    """Namespace of the Secret, the Lease and the Service."""
    secret_name: Annotated[str, Setting(_OWN, "--secret-name NAME")] = f"{_NAME}-tls"
    """Name of the Secret."""
    hosts: Annotated[tuple[str, ...], Setting(_OWN, "--hosts LIST")] = ()
    """Additional host names and addresses in the certificate."""
    configuration_name: Annotated[str, Setting(_OWN, "--configuration-name NAME")] = manifests.NAME
    """Name of the webhook configurations."""
    register: Annotated[bool, Setting(_OWN, "--register")] = False
    """Create the webhook configurations; the chart creates them itself."""
    url: Annotated[str, Setting(_OWN, "--url URL")] = ""
    """URL at which the API server calls a webhook outside the cluster."""
    service_name: Annotated[str, Setting(_OWN, "--service-name NAME")] = ""
    """Service of the webhook."""
    leader_elect: Annotated[bool, Setting(_OWN, "--leader-elect")] = True
    """Only one replica writes webhook configurations."""

    def check(self) -> None:
        """Check the settings together, see ``ProgramSettings.check``."""
        if bool(self.tlscert) != bool(self.tlskey):
            raise ConfigError("--tlscert and --tlskey: give both or neither")
        if self.register and not self.url and not self.service_name:
            raise ConfigError("--register: give the webhook's address with --url or --service-name")
        if self.url and not self.url.startswith("https://"):
            raise ConfigError(f"--url: {self.url!r} must begin with https://")

    @property
    def certificate_hosts(self) -> tuple[str, ...]:
        """Return the host names and addresses of the webhook's own certificate."""
        hosts = [*self.hosts, *service_hosts(self.service_name, self.namespace)]
        if self.url:
            host = self.url.removeprefix("https://").partition("/")[0]
            hosts.append(host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0])
        return tuple(dict.fromkeys(hosts)) or ("localhost",)

    @property
    def surroundings(self) -> Surroundings:
        """Return the settings for the mutation of pods; the fields about a pod are empty."""
        return Surroundings(
            ignore_keys=self.ignore_selector_keys,
            require_virtual_node=self.require_virtual_node,
            move_anti_affinity=self.move_anti_affinity,
            move_resource_claims=self.move_resource_claims,
            scheduler_name=self.scheduler_name,
        )


PROGRAM = Program(
    name=_NAME,
    about="The mutating webhook: moves node selectors of pods labelled virtual-pod=true into an annotation, which the "
    "lower cluster's scheduler applies.",
    settings=WebhookSettings,
    run="webhook.app:run",
    rights="webhook.program",
    examples=[
        (
            "Outside the upper cluster, called by its API server at a URL",
            "--kubeconfig upper.yaml --register --url https://10.0.0.1:8080",
        ),
        ("In the upper cluster, behind a Service", f"--incluster --register --service-name {_NAME}"),
    ],
)


_GROUP = "admissionregistration.k8s.io"
_CONFIGURATIONS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")

UPPER: tuple[Right, ...] = (
    Right("", "nodes", ("list", "watch"), "the names of the virtual nodes"),
    Right("", "persistentvolumeclaims", ("list", "watch"), "claims that tie a pod to a cluster"),
    Right("", "persistentvolumes", ("list", "watch"), "volumes that tie a pod to a cluster"),
    *(
        Right(
            _GROUP,
            kind,
            (*READ, "update"),
            "the webhook's CA in the webhook configurations",
            names=(WEBHOOK_CONFIGURATION,),
        )
        for kind in _CONFIGURATIONS
    ),
    in_own_namespace(
        "", "configmaps", ("list", "watch"), "the descheduler's memory of full nodes", CONFIG_MAP
    ),
    # No ``create``, because Kubernetes fills a new Secret of type service-account-token with the token of any
    # account in the namespace.
    in_own_namespace("", "secrets", ("get", "update"), "the webhook's own certificates", WEBHOOK_SECRET),
    *leader_election(PROGRAM.name, "only one replica writes the webhook configurations"),
)

REGISTER: tuple[Right, ...] = (
    *(
        Right(_GROUP, kind, ("create",), "create the webhook configurations (--register)")
        for kind in _CONFIGURATIONS
    ),
    in_own_namespace("", "secrets", ("create",), "the Secret for the webhook's own certificates"),
)
"""Additional rights with ``--register``. Without it, the chart creates these objects, the Secret without
data."""
