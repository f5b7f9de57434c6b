"""Rules about what must be right before a virtual node is started."""

from __future__ import annotations

from controller_runtime.apimachinery.versions import minor_version
from virtual_node.examine.clusters import VERSION
from virtual_node.examine.codes import Code
from virtual_node.examine.engine import Level, rule
from virtual_node.examine.finding import UPPER, Findings
from virtual_node.examine.path import DIFFERENCES, NODE_NAMES, PROFILES, RIGHTS, SERVICE_RANGES, UID
from virtual_node.examine.snapshot import Snapshot, View

_OLDEST = (1, 24)


@rule(Code.VERSION_UNSUPPORTED, where=[VERSION], level=Level.CLUSTER)
def supported(_snapshot: Snapshot, cluster: View) -> Findings:
    """Yield that a cluster has a version of Kubernetes that is too old."""
    if (minor := minor_version(cluster[VERSION])) and minor < _OLDEST:
        cause = f"{cluster[VERSION]} is too old"
        step = f"Kubernetes {_OLDEST[0]}.{_OLDEST[1]} or newer is needed"
        yield cluster.sentence(Code.VERSION_UNSUPPORTED, "Cluster", cluster.name, cause, step)


@rule(Code.ACCOUNT_RIGHT_MISSING, where=[RIGHTS], level=Level.CLUSTER)
def rights(_snapshot: Snapshot, cluster: View) -> Findings:
    """Yield resources to which an account lacks rights."""
    for each in cluster[RIGHTS]:
        if each.fix:
            cause = f"the account lacks a right to {each.resource}"
            yield cluster.sentence(Code.ACCOUNT_RIGHT_MISSING, "Right", each.resource, cause, each.fix)


@rule(Code.IDENTITY_UNKNOWN, level=Level.PATH)
def identity(snapshot: Snapshot) -> Findings:
    """Yield that the identity of the upper cluster cannot be read."""
    if why := snapshot.upper.unread.get(UID):
        step = "grant get on namespace kube-system, or give --cluster-id"
        yield snapshot.upper.sentence(Code.IDENTITY_UNKNOWN, "Namespace", "kube-system", why, step)


@rule(Code.SAME_CLUSTER, needs=[UID], where=[UID], level=Level.LOWER)
def same_cluster(snapshot: Snapshot, lower: View) -> Findings:
    """Yield that a lower cluster is the upper one: its pods would be mirrored onto themselves."""
    if lower[UID] == snapshot.upper[UID]:
        step = "its kubeconfig leads to the upper cluster: give that of another cluster"
        yield lower.sentence(Code.SAME_CLUSTER, "Cluster", lower.name, lower[UID], step)


@rule(Code.NODE_NAME_TAKEN, needs=[NODE_NAMES], level=Level.PATH)
def node_names(snapshot: Snapshot) -> Findings:
    """Yield names of virtual nodes that real nodes have."""
    for name, why in snapshot.upper[NODE_NAMES].items():
        if why:
            yield snapshot.upper.sentence(Code.NODE_NAME_TAKEN, "Node", name, name, why)


@rule(Code.CLUSTER_PROFILE_REFUSED, level=Level.PATH)
def profiles(snapshot: Snapshot) -> Findings:
    """Yield ClusterProfiles that are not used, or that they cannot be read."""
    code, upper = Code.CLUSTER_PROFILE_REFUSED, snapshot.upper
    if why := upper.unread.get(PROFILES):
        yield upper.finding(code, "ClusterProfile", "*", "cannot be read", why)
    for key, why in (upper.get(PROFILES) or {}).items():
        step = "correct it; it is read again by itself"
        yield upper.finding(code, "ClusterProfile", key, f"is not used: {why}", step)


@rule(Code.SETTINGS_DIFFER, needs=[DIFFERENCES], level=Level.PATH)
def differences(snapshot: Snapshot) -> Findings:
    """Yield settings that the multi-scheduler's own file gives differently."""
    step = "give both programs the same file, or correct the value"
    for path, differing in snapshot.upper[DIFFERENCES].items():
        for each in differing:
            cause = f"{each.field}: {each.one}, in {path}: {each.other}"
            place = next((one for one in snapshot.lowers if one.name == each.cluster), snapshot.upper)
            yield place.sentence(Code.SETTINGS_DIFFER, "Cluster", each.cluster or UPPER, cause, step)


@rule(Code.SERVICE_RANGE_MISSING, where=[SERVICE_RANGES], level=Level.LOWER)
def service_ranges(_snapshot: Snapshot, lower: View) -> Findings:
    """Yield that a lower cluster cannot give Services the addresses of the upper cluster."""
    ranges = lower[SERVICE_RANGES]
    if missing := [each for each, fit in ranges.fits.items() if fit is False]:
        outside = ", ".join(missing[:3])
        cause = f"{', '.join(ranges.own[:3]) or 'its range'} does not contain {outside} of the upper cluster"
        step = (
            f"give the lower cluster a Service range with {outside}: a ServiceCIDR object (Kubernetes 1.33 or newer), or "
            "--service-cluster-ip-range of its kube-apiserver; or set services.clusterIP: own"
        )
        yield lower.sentence(Code.SERVICE_RANGE_MISSING, "Cluster", lower.name, cause, step)
