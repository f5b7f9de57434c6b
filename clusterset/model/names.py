"""Labels, annotations, taints and a condition of the API; those of this project have the domain ``virtual-node.io``."""

from __future__ import annotations

import functools

from controller_runtime.resources import Resource

DOMAIN = "virtual-node.io"
SWARMS = Resource(f"swarm.{DOMAIN}", "v1alpha1", "swarms", "Swarm")
"""The custom resource of the swarm controller."""

# --- ours: on objects in lower clusters -------------------------------------------------------------
LABEL_UPPER_CLUSTER = f"{DOMAIN}/upper-cluster"
"""Identity of the upper cluster that an object was created for: the ownership label. Objects without it are
not changed."""
LABEL_UPPER_UID = f"{DOMAIN}/upper-uid"
"""Uid of the upper object."""
LABEL_NODE = f"{DOMAIN}/node"
"""On a lower pod, and on an upper Event copied from the lower cluster: name of the virtual node."""
LABEL_TOKEN_OF = f"{DOMAIN}/token-of"
"""On a Secret with tokens or certificates: uid of the upper pod that they are bound to. With ``identities.tokens: node``: a
hash of the account, audience, lifetime and virtual node."""
ANNOTATION_UPPER_NAMESPACE = f"{DOMAIN}/upper-namespace"
ANNOTATION_MADE_FOR = f"{DOMAIN}/made-for"
"""On a lower pod: ``<upper cluster>/<namespace>/<name>/<uid>`` of its upper pod; proves ownership without
labels. On a lower Namespace: ``<upper cluster>/<name>``."""
ANNOTATION_READINESS_GATES = f"{DOMAIN}/readiness-gates"
"""``true`` on a lower pod whose upper pod has readiness gates, which the lower pod does not have."""
ANNOTATION_OVERRIDES = f"{DOMAIN}/overrides"
"""On a lower pod: JSON of the overrides that were applied, by name, with the fields that each changed."""
ANNOTATION_DEBUG_CONTAINERS = f"{DOMAIN}/debug-containers"
"""On a lower pod: names of the debug containers that were added for its upper pod, separated by commas."""
ANNOTATION_SOURCE = f"{DOMAIN}/source"
"""Name of the upper object if the copy has another name."""
ANNOTATION_PLACEHOLDER = f"{DOMAIN}/placeholder"
"""``true`` on a ConfigMap or Secret without data, created because a lower pod references its name and the
upper cluster has no such object."""
LABEL_GENERATED_FOR = f"{DOMAIN}/generated-for"
"""On a ResourceClaim that a lower cluster generated from our copy of a ResourceClaimTemplate: identity of the upper
cluster. It is only for lookup, and no sign of ownership."""
ANNOTATION_REPORTED = f"{DOMAIN}/reported"
"""On the copy of an Ingress: JSON of the addresses that this lower cluster has written to the upper status."""
LABEL_API_SERVER = f"{DOMAIN}/api-server"
"""On a lower Service and its EndpointSlice: they lead to the API server of the upper cluster."""
ANNOTATION_TOKEN_EXPIRES = f"{DOMAIN}/token-expires"
"""When the first token in a Secret expires, RFC 3339."""
ANNOTATION_CERTIFICATE_TIMES = f"{DOMAIN}/certificate-times"
"""On a Secret with certificates of a pod: JSON of the Unix times at which each is renewed and expires."""
ALWAYS_PREFIX = f"always.{DOMAIN}/"
"""On a lower Service: prefix of an annotation key that ends with the name of a virtual node whose
``services.always`` includes the Service."""
ANNOTATION_APPLIED = f"{DOMAIN}/applied"
"""JSON: label and annotation keys that we set, so that keys removed in the upper cluster are removed in the
lower cluster. On a Namespace and a virtual node: labels with their values, to distinguish them from labels of
the administrator."""

ANNOTATION_CREATED_BY = f"{DOMAIN}/created-by"
"""``join`` on objects that ``lower-cluster join`` created, in either cluster: ``lower-cluster leave`` deletes
only these."""
JOINED_PREFIX = f"joined.{DOMAIN}/"
"""On the ServiceAccount in a lower cluster: prefix of an annotation key that ends with the identity of an
upper cluster. The value is the name that the lower cluster has there."""


@functools.lru_cache(maxsize=1024)
def is_reserved(key: str) -> bool:
    """Return whether a label or annotation key is in the domain of this project.

    Such keys on upper objects are never copied to lower objects, because users can write them and programs
    trust them in the lower cluster.
    """
    domain = key.partition("/")[0]
    return domain == DOMAIN or domain.endswith(f".{DOMAIN}")


# --- ours: on objects in the upper cluster ----------------------------------------------------------
ANNOTATION_LOWER_UID = f"{DOMAIN}/lower-uid"
"""On an upper pod: ``<uid of its lower pod>/<its own uid>``. The pod's user can write it. It prevents a
second start of this pod and proves nothing about a lower pod."""
ANNOTATION_KUBERNETES_SERVICE = f"{DOMAIN}/kubernetes-service"
"""On an upper pod: the API server that KUBERNETES_SERVICE_HOST names, ``upper`` or ``lower``; overrides
``--kubernetes-service``."""
CONDITION_ADMITTED = f"{DOMAIN}/Admitted"
"""Condition of an upper pod, present only while False: the lower cluster refuses the pod (quota, admission,
policy)."""
ANNOTATION_SCHEDULER_NAME = f"{DOMAIN}/scheduler-name"
"""On an upper pod: scheduler of the lower cluster; without it, the default scheduler."""
ANNOTATION_POD_GROUP = f"{DOMAIN}/pod-group"
"""On an upper pod: name of the group, in its namespace, whose pods start together or not at all. Empty: the
pod is in no group, even if its labels name one."""
ANNOTATION_MIN_MEMBERS = f"{DOMAIN}/min-members"
"""On an upper pod of a group: number of pods that must get room at once."""
ANNOTATION_SCOPE = f"{DOMAIN}/scope"
"""On an upper pod of a group: ``cluster`` (default): all pods of the group run in one lower cluster;
``any``: they may run in several."""
ANNOTATION_GROUP_TOPOLOGY = f"{DOMAIN}/pod-group-topology"
"""On an upper pod of a group: label key of lower nodes; all pods of the group get nodes with one value."""
ANNOTATION_DIVISION = f"{DOMAIN}/division"
"""On an upper pod with a controller: how the controller's pods are divided over lower clusters. ``lower1=3,lower2=1``,
``room`` or ``price``."""
ANNOTATION_DIVISION_MAX_SKEW = f"{DOMAIN}/division-max-skew"
"""On an upper pod with ``ANNOTATION_DIVISION``: how many pods above its share a lower cluster may get if the others have no
room."""
ANNOTATION_DELETION_COST_WRITTEN = f"{DOMAIN}/deletion-cost"
"""On an upper pod with ``ANNOTATION_DIVISION``: the ``controller.kubernetes.io/pod-deletion-cost`` that the descheduler
wrote. A deletion cost with another value is the user's, who can write both annotations."""
ANNOTATION_PREFERRED_NODE = f"{DOMAIN}/preferred-node"
"""On an upper pod: lower node that the lower pod prefers. The multi-scheduler writes it when it binds the pod;
users can write it as well, so it is only a preference."""
ANNOTATION_REQUIRED_NODE = f"{DOMAIN}/required-node"
"""On an upper pod: lower node that the lower pod requires as long as it fits there. The multi-scheduler writes it when it binds
the pod; the virtual node empties it when it gives the node up. On a lower pod: the node that it requires."""
ANNOTATION_MOVE_ANTI_AFFINITY = f"{DOMAIN}/move-anti-affinity"
ANNOTATION_RESOURCE_CLAIMS = f"{DOMAIN}/resource-claims"
"""On an upper pod: JSON of its ``resourceClaims`` and of the ``resources.claims`` of its containers, which the webhook
moved out of its spec. Users can write it, with the same meaning as in the spec."""
ANNOTATION_ALLOCATED_DEVICES = f"{DOMAIN}/allocated-devices"
"""On an upper pod: JSON of the devices that the lower cluster allocated to its ResourceClaims, by the claim's name in
the pod."""
ANNOTATION_LOWER_NODE = f"{DOMAIN}/lower-node"
"""On an upper pod: name of the lower node that its lower pod runs on. The pod's user can write it, so it decides only how
this pod is reported and moved."""
REPORTED_ON_PODS = frozenset({ANNOTATION_LOWER_UID, ANNOTATION_LOWER_NODE, ANNOTATION_ALLOCATED_DEVICES})
"""Annotations that the virtual node itself writes on upper pods, so they are no change by a user."""
ANNOTATION_PROVISION_SECONDS = f"{DOMAIN}/provision-seconds"
"""On a virtual node: seconds for which a pod may wait for a node that the lower cluster's autoscaler adds. 0: it adds
none."""
ANNOTATION_WANTS_CA = f"{DOMAIN}/wants-ca"
"""``true`` on a webhook configuration that the webhook did not create but writes its CA into."""
LABEL_LOWER_CLUSTER = f"{DOMAIN}/lower-cluster"
"""On a virtual node: name of its lower cluster in the configuration."""
LABEL_ELECTION = f"{DOMAIN}/election"
"""On the Leases of a process with ``leaderElection.mode: Sharded``: name of the election."""
ANNOTATION_SHARE = f"{DOMAIN}/share"
"""On the Lease of a replica in mode ``Sharded``: weight with which lower clusters are assigned to it, up to 1."""
ANNOTATION_REPLICA = f"{DOMAIN}/replica"
"""On the Lease of a virtual node in ``kube-node-lease``: host name of the replica that runs its lower cluster."""
ANNOTATION_PROCESS = f"{DOMAIN}/process"
"""On the Lease of a virtual node in ``kube-node-lease``: identity of the process that mirrors the node, and the Lease's
``leaseTransitions`` when it wrote that."""
ANNOTATION_FAULTS = f"{DOMAIN}/faults"
"""On the Lease of a virtual node in ``kube-node-lease``: JSON of faults that only its process knows:
``rejected`` (configurations that are not applied) and ``failed`` (lower clusters that do not run), by cluster
name."""
LABEL_VERSION = f"{DOMAIN}/version"
"""On a virtual node: version of virtual-node. ``kubeletVersion`` is the lower cluster's, because pods run
there."""
LABEL_PRICE_CPU = f"{DOMAIN}/price-cpu"
"""On a virtual or lower node: price of one CPU per hour."""
LABEL_PRICE_MEMORY = f"{DOMAIN}/price-memory"
"""On a virtual or lower node: price of one GiB of memory per hour."""
ANNOTATION_PRESSURE = f"{DOMAIN}/pressure"
"""On a virtual node: mean load of its lower nodes by pods and pressure, 0 to 1."""
ANNOTATION_USAGE_AT = f"{DOMAIN}/usage-at"
"""On a node: when its usage annotations were written, RFC 3339."""
TAINT_STALE_CLUSTER = f"{DOMAIN}/stale-cluster"
"""On a virtual node whose cluster is lost: the descheduler keeps new pods away until the cluster recovers."""
ANNOTATION_SILENCE = f"{DOMAIN}/silence"
"""On a virtual node whose cluster is lost: JSON with the begin of the silence, and when running pods are moved."""
ANNOTATION_UNSCHEDULABLE_NODES = f"{DOMAIN}/unschedulable-nodes"
"""On a re-created bare pod: JSON of the nodes it avoids and since when (RFC 3339)."""
ANNOTATION_REPLACES = f"{DOMAIN}/replaces"
"""On a re-created bare pod: uid of the pod that it replaces."""
LABEL_DESCHEDULER_RECORD = f"{DOMAIN}/descheduler-record"
"""On a ControllerRevision that stores a pod while it is moved: ``true`` for a bare pod that is re-created, ``departure``
for a pod that waits for its replacement. The label is only for lookup; any user can set it."""
ANNOTATION_LEAVING = f"{DOMAIN}/leaving"
"""On a pod that its ReplicaSet released, so that its replacement starts first: the value of its label
``pod-template-hash`` before the release."""
ANNOTATION_DRAIN = f"{DOMAIN}/drain"
"""On a virtual node: requests that the descheduler moves all pods off it. JSON, may be empty."""
ANNOTATION_DRAIN_STATUS = f"{DOMAIN}/drain-status"
"""On a virtual node: JSON with the progress of the drain."""
EVENT_SCORED = "NodeScored"
"""Reason of the multi-scheduler's Event about a pod, with its agents' answers about the candidate nodes."""

# --- tensile-kube's, unchanged --------------------------------------------------------------------
LABEL_VIRTUAL_POD = "virtual-pod"
LABEL_CREATED_BY_DESCHEDULER = "create-by-descheduler"
LABEL_NODE_TYPE = "type"
NODE_TYPE_VIRTUAL = "virtual-kubelet"
LABEL_CLUSTER_ID = "clusterID"
ANNOTATION_CLUSTER_SELECTOR = "clusterSelector"
ANNOTATION_TRIPPED_LABELS = "tripped-labels"
ANNOTATION_UNSCHEDULABLE_NODE = "unschedulable-node"
ANNOTATION_DESCHEDULE_COUNT = "sigs.k8s.io/deschedule-count"
ANNOTATION_GLOBAL = "global"
TAINT_PROVIDER = "virtual-kubelet.io/provider"

# --- Kubernetes' own --------------------------------------------------------------------------------
ANNOTATION_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
LABEL_HOSTNAME = "kubernetes.io/hostname"
ANNOTATION_SELECTED_NODE = "volume.kubernetes.io/selected-node"
"""On a claim that waits for its first pod: the node for which the scheduler lets its volume be created."""
DEFAULT_SCHEDULER = "default-scheduler"
"""The ``schedulerName`` of pods that name none."""
NODE_LEASES = "kube-node-lease"
"""Namespace of the Leases that kubelets and virtual nodes renew."""
LABEL_EXCLUDE_BALANCERS = "node.kubernetes.io/exclude-from-external-load-balancers"
"""Keeps a Node out of cloud load balancers. Most readers check only whether the label is present; recent cloud controllers
read the value ``false`` as not excluded."""
ANNOTATION_DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
"""On a pod of a ReplicaSet: pods with a lower number are deleted first."""
