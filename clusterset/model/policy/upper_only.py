"""Labels and annotations of upper pods that lower pods do not get, because they are state of the upper cluster.

A network plugin records the addresses of a pod in its annotations, and reads them later. In the lower cluster, values of the
upper cluster would be wrong, and would overwrite lower values. ``policy.annotations`` changes the list.

Sources: Calico ``libcalico-go/lib/backend/k8s/conversion``, Kube-OVN ``pkg/util/const.go``, OVN-Kubernetes ``go-controller/pkg/util``,
Multus ``network-attachment-definition-client``, Amazon VPC CNI, kubelet ``pkg/kubelet/types``, KEP-4742 (topology labels).
"""

from __future__ import annotations

from collections.abc import Mapping

from clusterset.model import names
from clusterset.model.key_patterns import KeyPatterns
from clusterset.model.policy.config import AnnotationRules

STATE: Mapping[str, tuple[str, ...]] = {
    "networks": (
        "cni.projectcalico.org/containerID",
        "cni.projectcalico.org/podIP",
        "cni.projectcalico.org/podIPs",
        "ovn.kubernetes.io/*",
        "*.ovn.kubernetes.io/*",
        "k8s.ovn.org/pod-networks",
        "k8s.v1.cni.cncf.io/network-status",
        "k8s.v1.cni.cncf.io/networks-status",
        "vpc.amazonaws.com/pod-eni",
        "vpc.amazonaws.com/pod-ips",
        "vpc.amazonaws.com/PrivateIPv4Address",
    ),
    "kubelet": ("kubernetes.io/config.hash", "kubernetes.io/config.seen", "kubernetes.io/config.source"),
    "admission": ("kubernetes.io/limit-ranger", "openshift.io/scc"),
}
"""Shell patterns of annotations that programs of a cluster write on its pods, by program."""
_BUILT_IN = tuple(pattern for patterns in STATE.values() for pattern in patterns)
TOPOLOGY = frozenset({"topology.kubernetes.io/region", "topology.kubernetes.io/zone", names.LABEL_HOSTNAME})
"""Labels that the API server copies from a node to the pods that are bound to it. A lower pod has those of its lower node."""
_OWN = frozenset(
    {names.ANNOTATION_LAST_APPLIED, names.ANNOTATION_DELETION_COST, names.ANNOTATION_REQUIRED_NODE}
)
"""Annotations that only upper controllers read, or that lower pods have with another value. No setting copies them."""


def is_upper_only(field: str, key: str, rules: AnnotationRules) -> bool:
    """Report whether a label or annotation of a pod stays in the upper cluster.

    Args:
        field: ``labels`` or ``annotations``.
        key: its key.
        rules: ``policy.annotations`` for the pod's namespace.
    """
    if field == "labels":
        return key in TOPOLOGY
    if key in _OWN:
        return True
    return key in KeyPatterns((*_BUILT_IN, *rules.leave_out)) and key not in KeyPatterns(tuple(rules.keep))
