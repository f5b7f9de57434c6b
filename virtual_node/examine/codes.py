"""All conditions that an examination can find, in the order of a report: causes before their effects.

A code is stable: programs, metrics and docs/operate/troubleshooting.md use it. Each tool selects codes and prints their findings.
"""

from __future__ import annotations

import enum
from typing import Self

from virtual_node.translate.pods.waits import WaitReason


class Severity(enum.StrEnum):
    """Severity of a finding, the worst first."""

    ERROR = "error"
    """A part of the installation does not work."""
    WARNING = "warning"
    """The installation works, but pods do not run or something needs attention soon."""
    INFO = "info"
    """A remark, which never changes an exit code."""


class Link(enum.StrEnum):
    """A link of ``doctor``'s chain, which must hold so that pods run. In the order in which a pod passes them."""

    heading: str
    """Its name for people; the value is its stable name for programs."""

    def __new__(cls, value: str, heading: str) -> Self:
        """Return a member with its heading."""
        member = str.__new__(cls, value)
        member._value_, member.heading = value, heading
        return member

    UPPER_API = "upperApi", "upper API server"
    RIGHTS = "rights", "your rights there"
    COMPONENTS = "components", "components running"
    VIRTUAL_NODES = "virtualNodes", "virtual nodes"
    CONFIGURATION = "configuration", "configuration applied"
    NODE_READY = "nodeReady", "virtual nodes Ready, leases fresh"
    TAINTS = "taints", "taints tolerated"
    KUBELET_API = "kubeletApi", "kubelet API, through the API server"
    WEBHOOK = "webhook", "webhook registered"
    MUTATION = "mutation", "webhook changes labelled pods"
    SCHEDULER = "scheduler", "scheduler running"
    EXTENDER = "extender", "scheduler reaches its extender"
    KNOWN_NODES = "knownNodes", "extender knows the virtual nodes"
    CAPACITY = "capacity", "room on virtual nodes"
    SCHEDULED = "scheduled", "pods get a virtual node"
    LOWER_API = "lowerApi", "lower clusters reachable"
    NAMES = "names", "names of other pods"
    LOWER_CERTIFICATES = "lowerCertificates", "certificates of lower API servers"
    LOWER_VERDICT = "lowerVerdict", "pods run in lower clusters"
    API_OF_PODS = "apiOfPods", "Kubernetes API of lower pods"
    DESCHEDULER = "descheduler", "descheduler running"
    SWARMS = "swarms", "Swarms run their jobs"


class Code(enum.StrEnum):
    """Code of a finding, with its usual severity and where ``inspect``, ``check`` and ``doctor`` report it."""

    severity: Severity
    check: str
    """Name of the check in ``inspect``; empty: it does not report the code."""
    link: Link | None
    """The link of ``doctor``'s chain that does not hold; None: it is not in the chain."""

    def __new__(
        cls, value: str, severity: Severity = Severity.WARNING, check: str = "", link: Link | None = None
    ) -> Self:
        """Return a member with its usual severity."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.severity, member.check, member.link = severity, check, link
        return member

    # What could not be read, which may hide other findings.
    CLUSTER_UNREAD = "ClusterUnread", Severity.ERROR, "unread"
    """A cluster could not be read."""
    KIND_UNREAD = "KindUnread", Severity.WARNING, "unread"
    """The objects of a kind could not be listed, or the upper cluster's identity is unknown."""
    RIGHT_MISSING = "RightMissing", Severity.INFO, "unread"
    """A right is missing that only some rules need."""
    # The installation, found by all tools.
    REPLICA_FAILING = "ReplicaFailing", Severity.ERROR, "component", Link.COMPONENTS
    """A pod of one of our components crashes, cannot start or is not Ready."""
    CONFIGURATION_REJECTED = "ConfigurationRejected", Severity.ERROR, "configuration", Link.CONFIGURATION
    """A configuration or kubeconfig is not applied; the previous one may still be used."""
    NO_LOWER_CLUSTER = "NoLowerCluster", Severity.ERROR, "node", Link.VIRTUAL_NODES
    """There is no virtual node, and no configured lower cluster is known."""
    CLUSTER_FAILED = "ClusterFailed", Severity.ERROR, "cluster", Link.NODE_READY
    """The controllers of a lower cluster do not run, or cannot register its virtual node."""
    CLUSTER_LOST = "ClusterLost", Severity.ERROR, "cluster", Link.NODE_READY
    """The API server of a lower cluster does not answer."""
    NODE_MISSING = "NodeMissing", Severity.ERROR, "node", Link.NODE_READY
    """A virtual node is configured but not registered."""
    NODE_SILENT = "NodeSilent", Severity.ERROR, "node", Link.NODE_READY
    """The Lease of a virtual node is not renewed: its process does not run."""
    NODE_NOT_READY = "NodeNotReady", Severity.ERROR, "node", Link.NODE_READY
    """A virtual node is not Ready for another reason than a lost cluster."""
    NODE_CLOSED = "NodeClosed", Severity.WARNING, "node", Link.TAINTS
    """The descheduler keeps pods away from a virtual node, all its lower nodes are cordoned, or every virtual node is."""
    CERTIFICATE_EXPIRES = "CertificateExpires", Severity.WARNING, "expiry", Link.LOWER_CERTIFICATES
    """The serving certificate of a lower API server expires soon. After the expiry the cluster is lost."""
    # Pods of users. All commands judge these from the upper pod, without reading the lower cluster.
    POD_UNSCHEDULED = "PodUnscheduled", Severity.WARNING, "pods", Link.SCHEDULED
    """A pod for virtual nodes has no node in the upper cluster."""
    POD_UNSCHEDULABLE = "PodUnschedulable", Severity.WARNING, "pods", Link.LOWER_VERDICT
    """The scheduler of a lower cluster finds no node for a pod."""
    POD_REFUSED = "PodRefused", Severity.WARNING, "pods", Link.LOWER_VERDICT
    """A lower cluster, or its policy, refuses a pod."""
    POD_NOT_STARTED = "PodNotStarted", Severity.WARNING, "pods", Link.LOWER_VERDICT
    """A pod has a node but has not started for minutes."""
    POD_FAILING = "PodFailing", Severity.WARNING, "pods", Link.LOWER_VERDICT
    """A container of a pod crashes or cannot be created: image, ConfigMap, Secret, command."""
    WAITING_FOR_PREDECESSOR = WaitReason.PREDECESSOR.value, Severity.WARNING, "pods", Link.LOWER_VERDICT
    """A pod waits for the name of an older lower pod."""
    WAITING_FOR_COPIES = WaitReason.COPIES.value, Severity.WARNING, "pods", Link.LOWER_VERDICT
    """A pod waits for objects that cannot be read or copied yet."""
    LOWER_POD_LOST_BACK_OFF = WaitReason.BACK_OFF.value, Severity.WARNING, "pods", Link.LOWER_VERDICT
    """A pod waits because earlier pods of its owner were deleted in the lower cluster."""
    SWARM_DEGRADED = "SwarmDegraded", Severity.WARNING, "swarm", Link.SWARMS
    """Condition Degraded of a Swarm is true."""
    SWARM_UNASSIGNED = "SwarmUnassigned", Severity.WARNING, "swarm", Link.SWARMS
    """Jobs of a Swarm have no worker."""
    SWARM_NOT_CONVERGED = "SwarmNotConverged", Severity.WARNING, "swarm", Link.SWARMS
    """The workers of a Swarm have not run exactly their assigned jobs for minutes."""
    # The way of a pod through the upper cluster to a virtual node.
    UPPER_UNREACHABLE = "UpperUnreachable", Severity.ERROR, "", Link.UPPER_API
    """The upper API server does not answer, or refuses the credentials."""
    RIGHTS_DENIED = "RightsDenied", Severity.ERROR, "", Link.RIGHTS
    """The user of the command lacks rights that it needs."""
    TAINT_REPELS = "TaintRepels", Severity.WARNING, "", Link.TAINTS
    """Pods that wait for virtual nodes do not tolerate their taints."""
    KUBELET_UNREACHABLE = "KubeletAPI", Severity.ERROR, "", Link.KUBELET_API
    """The API server cannot reach the kubelet API of a virtual node, so logs and exec fail."""
    WEBHOOK_UNUSABLE = "WebhookUnusable", Severity.ERROR, "", Link.WEBHOOK
    """Our webhook is missing although pods need it, or its registration cannot work."""
    WEBHOOK_INEFFECTIVE = "WebhookIneffective", Severity.ERROR, "", Link.MUTATION
    """A labelled pod is not changed by our webhook, or cannot be created because of a webhook."""
    SCHEDULER_SILENT = "SchedulerSilent", Severity.ERROR, "", Link.SCHEDULER
    """kube-scheduler, or the scheduler that pods name, does not run."""
    EXTENDER_UNREACHABLE = "ExtenderUnreachable", Severity.ERROR, "", Link.EXTENDER
    """kube-scheduler gets no valid response from the multi-scheduler."""
    NODE_UNKNOWN = "NodeUnknown", Severity.WARNING, "", Link.KNOWN_NODES
    """The multi-scheduler's configuration has no cluster for a virtual node."""
    NO_ROOM = "NoRoom", Severity.WARNING, "", Link.CAPACITY
    """A pod that waits for a virtual node fits on none."""
    DESCHEDULER_SILENT = "DeschedulerSilent", Severity.ERROR, "", Link.DESCHEDULER
    """The descheduler is installed and does not run."""
    # What must be right before a virtual node is started.
    KUBECONFIG_UNUSABLE = "KubeconfigUnusable", Severity.ERROR, "", Link.LOWER_API
    """A kubeconfig, or what it calls for credentials, cannot be used."""
    VERSION_UNSUPPORTED = "VersionUnsupported", Severity.ERROR, "version"
    """The Kubernetes version of a cluster is too old."""
    ACCOUNT_RIGHT_MISSING = "AccountRightMissing", Severity.ERROR
    """The account of a component lacks a right."""
    IDENTITY_UNKNOWN = "IdentityUnknown", Severity.ERROR
    """The identity of the upper cluster, which marks our lower objects, cannot be read."""
    NODE_NAME_TAKEN = "NodeNameTaken", Severity.ERROR
    """A real node has the name of a configured virtual node."""
    SAME_CLUSTER = "SameCluster", Severity.ERROR
    """A lower cluster is the upper cluster, so its pods would be mirrored onto themselves."""
    CLUSTER_PROFILE_REFUSED = "ClusterProfileRefused", Severity.WARNING, "configuration"
    """A ClusterProfile is not used as a lower cluster."""
    SETTINGS_DIFFER = "SettingsDiffer", Severity.ERROR
    """The multi-scheduler's own file gives a setting differently."""
    SERVICE_RANGE_MISSING = "ServiceRangeMissing", Severity.ERROR
    """Services cannot have the upper cluster's addresses in a lower cluster."""
    # Lower clusters: the way to them, names, addresses and the API of pods.
    LOWER_UNREACHABLE = "LowerUnreachable", Severity.ERROR, "", Link.LOWER_API
    """The API server of a lower cluster does not answer, or refuses the credentials."""
    LOWER_NODES_CLOSED = "LowerNodesClosed", Severity.ERROR, "", Link.LOWER_API
    """No node of a lower cluster is Ready and schedulable."""
    NAME_SERVER_UNUSABLE = "NameServerUnusable", Severity.ERROR, "names", Link.NAMES
    """The name server for upper names has no ready pod, or answers for former settings."""
    NAMES_DIFFER = "UpperNamesNotFound", Severity.INFO, "names", Link.NAMES
    """Namespaces or the DNS domain of a lower cluster differ, and no name server serves the upper names."""
    API_MISMATCH = "APIServerMismatch", Severity.INFO, "api-of-pods", Link.API_OF_PODS
    """In-cluster clients in pods get the address of one cluster's API server and a token of the other cluster."""
    API_NOT_USABLE = "APIServerNotUsable", Severity.INFO, "api-of-pods", Link.API_OF_PODS
    """Pods cannot use the upper API server, because of the configuration or its certificate."""
    # Objects in lower clusters whose upper object is gone, or that are not where they belong.
    OBJECT_LEAKED = "ObjectLeaked", Severity.WARNING, "leaked"
    """A lower object, or a mark on it, is left after its upper object; an error for a pod."""
    NAMESPACE_NOT_ADOPTED = "NamespaceNotAdopted", Severity.WARNING, "adopt"
    """Our pods run in lower namespaces that we neither created nor adopted, so no new pod starts there."""
    POLICY_VIOLATED = "PolicyViolated", Severity.WARNING, "policy"
    """The policy of a lower cluster would refuse running pods, or refuses debug containers (severity info)."""
    LOWER_POD_DOUBLED = "LowerPodDoubled", Severity.ERROR, "doubled"
    """Several lower pods were created for the same upper pod."""
    OBJECT_MISPLACED = "ObjectMisplaced", Severity.WARNING, "misplaced"
    """Lower namespaces of others have objects with our label."""
    # Lower objects that do not follow their upper objects.
    LOWER_POD_MISSING = "NoLowerPod", Severity.ERROR, "missing"
    """An upper pod has no lower pod, and its status does not say why."""
    DRIFT = "Drift", Severity.ERROR, "drift"
    """A lower object differs from its upper object; a warning or information if this is harmless."""
    STATUS_DRIFT = "PhasesDiffer", Severity.ERROR, "status"
    """An upper pod's status differs from that of its lower pod."""
    # Clocks, versions, credentials and connections.
    CLOCK_SKEW = "ClockSkew", Severity.WARNING, "clock"
    """A cluster's clock differs from this machine's; an error if it differs so much that Leases expire."""
    VERSION_SKEW = "VersionSkew", Severity.WARNING, "version"
    """Kubernetes versions that do not support each other, or a virtual node with an outdated version."""
    RELEASE_SKEW = "ReleaseSkew", Severity.WARNING, "release"
    """Components of different releases."""
    CREDENTIAL_EXPIRES = "CredentialExpires", Severity.WARNING, "expiry"
    """A credential or certificate expires soon; an error if very soon, information if a token never expires."""
    CONNECTION_WEAK = "ConnectionWeak", Severity.WARNING, "transport"
    """Credentials can be read on the way to an API server, or the server can be impersonated."""
    # The network of pods on virtual nodes, and their lower nodes.
    WEBHOOK_UNSERVED = "WebhookUnserved", Severity.WARNING, "webhook"
    """An admission webhook that must answer has no ready endpoint; an error if it reviews pods."""
    DNS_UNSERVED = "DnsUnserved", Severity.ERROR, "dns"
    """The DNS Service of a lower cluster has no ready endpoint."""
    SERVICE_UNSERVED = "ServiceUnserved", Severity.WARNING, "service"
    """A Service selects pods on virtual nodes and has no ready endpoint."""
    ENDPOINTS_FOREIGN = "ForeignEndpoints", Severity.WARNING, "foreign-endpoints"
    """Others add endpoints to a copied Service in the lower cluster."""
    NODE_PRESSURE = "NodePressure", Severity.WARNING, "pressure"
    """A lower node runs out of memory, disk or processes, or has no network."""
    CAPACITY = "Capacity", Severity.WARNING, "capacity"
    """Lower nodes take no pods, a virtual node promises too much, or a pod is too large for each lower node."""
    # Deletion, interruption, and other installations.
    STUCK = "Stuck", Severity.WARNING, "stuck"
    """The deletion of an object does not end; an error if the object is a claim that nothing serves any more."""
    SINGLE_REPLICA = "SingleReplica", Severity.WARNING, "single-replica"
    """A workload has one replica, so a drain interrupts it."""
    MAX_UNAVAILABLE = "MaxUnavailable", Severity.WARNING, "max-unavailable"
    """An update of a Deployment may stop all its pods at once."""
    NO_DISRUPTION_BUDGET = "NoDisruptionBudget", Severity.WARNING, "no-disruption-budget"
    """A drain may stop all pods of a workload at once."""
    NO_READINESS_PROBE = "NoReadinessProbe", Severity.WARNING, "no-readiness-probe"
    """New pods behind a Service get requests before they can answer."""
    NO_PRE_STOP = "NoPreStop", Severity.INFO, "no-pre-stop"
    """Pods behind a Service end before clients stop to use their addresses."""
    OTHER_UPPER_CLUSTER = "OtherUpperCluster", Severity.INFO, "others"
    """Objects in a lower cluster belong to another upper cluster."""
    # Only ``diagnose`` reports the codes from here on; docs/reference/cli.md says what they mean.
    # --- the pod has no node ---
    VOLUME = "Volume"
    SCHEDULING_GATED = WaitReason.GATE.value
    NO_VIRTUAL_NODE = "NoVirtualNode"
    NODE_UNAVAILABLE = "NodeUnavailable"
    CORDONED = "Cordoned"
    TAINT = "Taint"
    AFFINITY = "Affinity"
    INSUFFICIENT_CPU = "InsufficientCPU"
    INSUFFICIENT_MEMORY = "InsufficientMemory"
    INSUFFICIENT_RESOURCES = "InsufficientResources"
    QUOTA = "Quota"
    POD_GROUP = "PodGroup"
    DIVISION = "Division"
    NO_CLUSTER_FITS = "NoClusterFits"
    NO_SCHEDULER = WaitReason.SCHEDULER.value
    UNSCHEDULABLE = "Unschedulable"
    NOT_VIRTUAL = "NotVirtual"
    # The pod does not start in the lower cluster.
    INVALID_SELECTOR = "InvalidSelector"
    POD_SECURITY = "PodSecurity"
    POLICY = "Policy"
    NAMESPACE = "Namespace"
    ADMISSION_DENIED = "AdmissionDenied"
    NAME_CONFLICT = "NameConflict"
    OBJECT_MISSING = "ObjectMissing"
    CONTAINER_CONFIG = "ContainerConfig"
    SANDBOX = "Sandbox"
    IMAGE_NOT_FOUND = "ImageNotFound"
    IMAGE_AUTH = "ImageAuth"
    IMAGE_NETWORK = "ImageNetwork"
    IMAGE_NAME = "ImageName"
    IMAGE_PULL = "ImagePull"
    # The pod has failed for a reason outside its containers.
    EVICTED_MEMORY = "EvictedMemory"
    EVICTED_DISK = "EvictedDisk"
    EVICTED_PIDS = "EvictedPIDs"
    EVICTED = "Evicted"
    PREEMPTED = "Preempted"
    DEADLINE = "Deadline"
    NODE_REJECTED = "NodeRejected"
    NODE_SHUTDOWN = "NodeShutdown"
    LOWER_POD_DELETED = "LowerPodDeleted"
    # The pod has run.
    COMMAND_NOT_EXECUTABLE = "CommandNotExecutable"
    COMMAND_NOT_FOUND = "CommandNotFound"
    CANNOT_START = "CannotStart"
    EXIT_CODE = "ExitCode"
    EXITED = "Exited"
    OOM_KILLED = "OOMKilled"
    KILLED = "Killed"
    SEGMENTATION_FAULT = "SegmentationFault"
    SIGTERM = "SIGTERM"
    LIVENESS = "Liveness"
    STARTUP = "Startup"
    READINESS = "Readiness"
    READINESS_GATE = "ReadinessGate"
    ADDED_CONTAINER = "AddedContainer"
    NODE_WAS_NOT_READY = "NodeWasNotReady"
    LOWER_NODE_NOT_READY = WaitReason.NODE.value
    NOT_READY = "NotReady"
    ADOPTED = "AdoptedInLowerCluster"
    # The pod does not end.
    FINALIZER = "Finalizer"
    LOWER_FINALIZER = WaitReason.FINALIZER.value
    LOWER_DELETION_REFUSED = WaitReason.DELETION.value
    VOLUME_DETACH = "VolumeDetach"
    LOWER_POD_PRESENT = WaitReason.TERMINATION.value
    LOWER_POD_GONE = "LowerPodGone"
    # Workloads and nodes.
    CONTROLLER_FAILS = "ControllerFails"
    NO_PODS = "NoPods"
    PODS_IN_TROUBLE = "PodsInTrouble"
    # Nothing explains the pod, or nothing is wrong with it.
    NOT_STARTED = "NotStarted"
    TERMINATING = "Terminating", Severity.INFO
    STARTING = "Starting", Severity.INFO
    COMPLETED = "Completed", Severity.INFO
    HEALTHY = "Healthy", Severity.INFO
    RULE_FAILED = "RuleFailed", Severity.ERROR, "rule"
    """A rule of the examination failed, so its findings are missing."""


CHECKED = frozenset(code for code in Code if code.check)
"""Codes that ``inspect`` reports."""
CHECKS = tuple(sorted({code.check for code in CHECKED}))
"""Names of the checks of ``inspect``. A check may have several codes."""
REMARKS = frozenset(code for code in Code if code.severity is Severity.INFO and code.link)
"""Codes of remarks about the way of pods. All tools show them as far as they know the facts; they never change a verdict."""
PODS = frozenset(code for code in Code if code.check == "pods")
"""Codes of users' pods that all tools show."""
SWARMS = frozenset(code for code in Code if code.name.startswith("SWARM_"))
"""Codes of Swarms. They are not in the metrics: the process reads Swarms only for its page."""
