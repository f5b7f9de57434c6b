"""Every label, annotation and taint that appears on the wire. Ours live under ``virtual-node.io``."""

from __future__ import annotations

DOMAIN = "virtual-node.io"

# --- ours: on objects in lower clusters -------------------------------------------------------------
LABEL_UPPER_CLUSTER = f"{DOMAIN}/upper-cluster"
"""Identity of the upper cluster an object was made for: the ownership label. Nothing without it is touched."""
LABEL_UPPER_UID = f"{DOMAIN}/upper-uid"
"""Uid of the upper object."""
LABEL_NODE = f"{DOMAIN}/node"
"""Name of the virtual node a lower pod belongs to."""
LABEL_TOKEN_OF = f"{DOMAIN}/token-of"
"""On a Secret with tokens: uid of the upper pod they are bound to."""
ANNOTATION_UPPER_NAMESPACE = f"{DOMAIN}/upper-namespace"
ANNOTATION_MADE_FOR = f"{DOMAIN}/made-for"
"""On a lower pod: ``<upper cluster>/<namespace>/<name>/<uid>`` of its upper pod; proves ownership without labels. On a
lower Namespace: ``<upper cluster>/<name>``."""
ANNOTATION_SOURCE = f"{DOMAIN}/source"
"""Name of the upper object where the copy's name differs."""
ANNOTATION_PLACEHOLDER = f"{DOMAIN}/placeholder"
"""``true`` on a ConfigMap or Secret without data that holds a name which a lower pod references and which the upper
cluster does not have."""
ANNOTATION_TOKEN_EXPIRES = f"{DOMAIN}/token-expires"
"""When the first token in a Secret expires, RFC 3339."""
ALWAYS_PREFIX = f"always.{DOMAIN}/"
"""On a Service: with a virtual node's name behind it, an annotation that says whose ``services.always`` wants it."""
ANNOTATION_APPLIED = f"{DOMAIN}/applied"
"""JSON: label and annotation keys that we set, so that ones removed above are removed below. On a Namespace
and a virtual node: labels with their values, so that those of the administrator are told from ours."""

ANNOTATION_CREATED_BY = f"{DOMAIN}/created-by"
"""``join`` on what ``lower-cluster join`` created, in either cluster: ``lower-cluster leave`` deletes nothing else."""
JOINED_PREFIX = f"joined.{DOMAIN}/"
"""On the account in a lower cluster: with an upper cluster's identity behind it, an annotation with the name under which
that upper cluster joined it."""


def is_reserved(key: str) -> bool:
    """Return whether a label or annotation key is ours.

    Programs read such keys on lower objects as their own record, so those of upper users are never copied there.
    """
    domain = key.partition("/")[0]
    return domain == DOMAIN or domain.endswith(f".{DOMAIN}")


# --- ours: on objects in the upper cluster ----------------------------------------------------------
ANNOTATION_LOWER_UID = f"{DOMAIN}/lower-uid"
"""On an upper pod: ``<uid of its lower pod>/<its own uid>``. Its user can write it: it keeps this pod from being started
twice, and proves nothing about a lower pod."""
ANNOTATION_KUBERNETES_SERVICE = f"{DOMAIN}/kubernetes-service"
"""On an upper pod: which apiserver KUBERNETES_SERVICE_HOST names, ``upper`` or ``lower``, over the flag."""
CONDITION_ADMITTED = f"{DOMAIN}/Admitted"
"""Condition of an upper pod, only while it is False: the lower cluster refuses the pod (quota, admission, policy)."""
ANNOTATION_SCHEDULER_NAME = f"{DOMAIN}/scheduler-name"
"""On an upper pod: scheduler of the lower cluster; its default one otherwise."""
ANNOTATION_WANTS_CA = f"{DOMAIN}/wants-ca"
"""``true`` on a webhook configuration that the webhook did not make and is to write its CA into."""
LABEL_LOWER_CLUSTER = f"{DOMAIN}/lower-cluster"
"""On a virtual node: name of its lower cluster in the configuration."""
ANNOTATION_FAULTS = f"{DOMAIN}/faults"
"""On the Lease of a virtual node in ``kube-node-lease``: JSON of what only its process knows, while something is wrong:
``rejected`` (configurations that are not applied) and ``failed`` (lower clusters that do not run), by cluster name."""
LABEL_VERSION = f"{DOMAIN}/version"
"""On a virtual node: our own release. ``kubeletVersion`` is the lower cluster's, for that is what pods find there."""
LABEL_PRICE_CPU = f"{DOMAIN}/price-cpu"
"""On a virtual or lower node: price of one CPU in an hour."""
LABEL_PRICE_MEMORY = f"{DOMAIN}/price-memory"
"""On a virtual or lower node: price of one GiB of memory in an hour."""
ANNOTATION_PRESSURE = f"{DOMAIN}/pressure"
"""On a virtual node: mean load of its lower nodes by pods and pressure, 0 to 1."""
ANNOTATION_USAGE_AT = f"{DOMAIN}/usage-at"
"""On a node: when its annotations of usage were written, RFC 3339."""
TAINT_STALE_CLUSTER = f"{DOMAIN}/stale-cluster"
"""On a virtual node whose cluster is lost: the descheduler keeps new pods away until it has healed."""
ANNOTATION_UNSCHEDULABLE_NODES = f"{DOMAIN}/unschedulable-nodes"
"""On a re-created bare pod: JSON of the nodes it avoids and since when (RFC 3339)."""
ANNOTATION_REPLACES = f"{DOMAIN}/replaces"
"""On a re-created bare pod: uid of the pod it stands for."""
LABEL_DESCHEDULER_RECORD = f"{DOMAIN}/descheduler-record"
"""On a ControllerRevision that holds a bare pod while it is being re-created. The label finds it and proves nothing."""

# --- tensile-kube's, kept word for word -------------------------------------------------------------
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
