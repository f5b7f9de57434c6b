"""Validation of the lower clusters beyond their types: names, pairs of fields and contradictions.

No two upper namespaces may share a lower namespace. Conflicts that the configuration does not show (with another process,
another upper cluster or existing namespaces) are refused at run time, because the owner is recorded on the lower namespace.
"""

from __future__ import annotations

import ipaddress
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import msgspec

from clusterset.config import (
    API_VERSION,
    FORMER_KINDS,
    KIND,
    KNOWN_CONTROLLERS,
    SERVICE_CONTROLLERS,
    Cluster,
    ClusterSet,
    NodeConfig,
    profile_cluster,
    profile_problems,
)
from clusterset.config import problems as usage_problems
from clusterset.model import autoscaling, names, namespace_map
from clusterset.model.autoscaling import TAINT_EFFECTS
from clusterset.model.namespace_map import DNS_LABEL, NamespaceConfig
from clusterset.model.overrides import ContainerPatch, ImageRewrite, Override, Toleration
from clusterset.model.policy.config import Policy, Rules
from clusterset.model.policy.rules import ALL, PROC_MOUNTS, PROFILE_TYPES, field_of, repository_name
from clusterset.model.policy.rules import problems as volume_problems
from clusterset.profiles import CLUSTERS_PER_PROCESS
from controller_runtime.apimachinery import matching, quantity
from controller_runtime.apimachinery.decoding import field_name

_DNS1123 = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_OF_NODE = (
    "node_name",
    "node_selector",
    "labels",
    "taints",
    "capacity",
    "autoscaling",
    "port",
    "node_ip",
    "provider_id",
    "exclude_from_load_balancers",
)
"""Fields of a cluster that describe its only virtual node."""
_RESERVED_PREFIX = "kube-"
_SYSTEM = ("default", "kube-node-lease", "kube-public", "kube-system")
"""Namespaces of every cluster. A lower one is used only for the upper namespace of that name, if ``adopt`` allows it."""
_MOST = 100
"""Maximum overrides of a cluster, because each is compared with each pod."""
_GENERATED = re.compile(r"[a-z0-9][-a-z0-9.]*/.+")
"""A resource without wildcards, and a shell pattern of names."""
_NAME = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)", re.ASCII)
_DOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_IMAGE = re.compile(r"[A-Za-z0-9.-]+(:[0-9]+)?(/[a-z0-9._-]+)*/?", re.ASCII)
_OBJECT_NAME_LENGTH = 253
_OURS = (
    names.LABEL_VIRTUAL_POD,
    names.ANNOTATION_TRIPPED_LABELS,
    names.ANNOTATION_CLUSTER_SELECTOR,
    names.ANNOTATION_LAST_APPLIED,
)
"""Keys outside our domain that the virtual node reads, writes or leaves out."""
_CHOICES = {
    "seccomp_profiles": PROFILE_TYPES,
    "app_armor_profiles": PROFILE_TYPES,
    "proc_mounts": PROC_MOUNTS,
}


def problems(config: ClusterSet) -> Iterator[str]:
    """Yield the problems of what all programs read, each as ``field: problem``; none: it is valid."""
    if config.api_version != API_VERSION:
        yield f"apiVersion: expected {API_VERSION}, got {config.api_version!r}"
    if config.kind not in {KIND, *FORMER_KINDS}:
        yield f"kind: expected {KIND}, got {config.kind!r}"
    yield from _controller_problems("enableControllers", config.enable_controllers)
    yield from _profile_problems(config)
    if len(config.clusters) > CLUSTERS_PER_PROCESS:
        yield f"clusters: {len(config.clusters)} are too many for one process; at most {CLUSTERS_PER_PROCESS}"
    else:
        yield from _cluster_problems(config)


def _controller_problems(where: str, controllers: Iterable[str]) -> Iterator[str]:
    for name in controllers:
        if name not in KNOWN_CONTROLLERS:
            yield f"{where}: unknown {name!r}, known are {', '.join(KNOWN_CONTROLLERS)}"


def _cluster_problems(config: ClusterSet) -> Iterator[str]:
    seen_clusters: set[str] = set()
    seen_nodes: set[str] = set()
    for position, cluster in enumerate(config.clusters):
        where = f"clusters[{position}]"
        if not cluster.name:
            yield f"{where}.name: required"
        if cluster.name in seen_clusters:
            yield f"{where}.name: {cluster.name!r} is there twice"
        seen_clusters.add(cluster.name)
        if not cluster.kubeconfig:
            yield f"{where}.kubeconfig: required (the lower cluster {cluster.name!r})"
        yield from matching.selector_problems(f"{where}.podSelector", cluster.pod_selector)
        yield from policy_problems(f"{where}.policy", cluster.policy)
        yield from _controller_problems(f"{where}.enableControllers", cluster.enable_controllers or ())
        has_services = SERVICE_CONTROLLERS in config.controllers(cluster)
        yield from _follow_problems(where, cluster, has_services=has_services)
        yield from _shared_storage_problems(f"{where}.volumes.shared", cluster)
        yield from _dns_problems(f"{where}.dns.servers", cluster.dns.servers)
        if cluster.usage is not None:
            yield from usage_problems(f"{where}.usage", cluster.usage)
        yield from override_problems(f"{where}.overrides", cluster.overrides)
        if cluster.nodes:
            given = [field for field in _OF_NODE if getattr(cluster, field) not in ("", {}, None)]
            yield from (
                f"{where}.{field_name(field)}: has no effect beside nodes; put it into each of them"
                for field in given
            )
        for number, node in enumerate(cluster.virtual_nodes()):
            yield from _node_problems(f"{where}.nodes[{number}]" if cluster.nodes else where, node)
            if node.name in seen_nodes:
                yield f"{where}: the node name {node.name!r} is there twice"
            seen_nodes.add(node.name)
    yield from _namespace_problems(config.clusters)


def _dns_problems(where: str, servers: Sequence[str]) -> Iterator[str]:
    for position, server in enumerate(servers):
        try:
            ipaddress.ip_address(server)
        except ValueError:
            yield f"{where}[{position}]: {server!r} is not an IP address, such as 10.96.0.53"


def _shared_storage_problems(where: str, cluster: Cluster) -> Iterator[str]:
    names, drivers = set[str](), set[str]()
    for position, storage in enumerate(cluster.volumes.shared):
        if storage.name in names:
            yield f"{where}[{position}].name: {storage.name!r} is there twice"
        if again := drivers.intersection(storage.drivers):
            yield f"{where}[{position}].drivers: {min(again)!r} is in another entry, too"
        names.add(storage.name)
        drivers.update(storage.drivers)


def _follow_problems(where: str, cluster: Cluster, *, has_services: bool) -> Iterator[str]:
    for kind, field, classes in (
        ("ingresses", "ingressClasses", cluster.ingress_classes),
        ("gateways", "gatewayClasses", cluster.gateway_classes),
    ):
        if kind in cluster.follow and not has_services:
            yield f"{where}.follow: {kind} needs {SERVICE_CONTROLLERS} in enableControllers"
        if classes and kind not in cluster.follow:
            yield f"{where}.{field}: has no effect without {kind} in follow"
        if "" in {*classes, *classes.values()}:
            yield f"{where}.{field}: a class has no name"


def _profile_problems(config: ClusterSet) -> list[str]:
    """Return what is wrong with ``clusterProfiles``; its defaults are validated as those of an ordinary cluster."""
    if (profiles := config.cluster_profiles) is None:
        return []
    if found := list(profile_problems(profiles)):
        return found
    try:
        cluster = profile_cluster(profiles, "profile", "profile")
    except ValueError as error:
        return [str(error)]
    sample = ClusterSet(clusters=[cluster], enable_controllers=config.enable_controllers)
    problems = _cluster_problems(sample)
    return [problem.replace("clusters[0]", "clusterProfiles.defaults", 1) for problem in problems]


def _node_problems(where: str, node: NodeConfig) -> Iterator[str]:
    if not _DNS1123.fullmatch(node.name) or len(node.name) > 63:
        yield f"{where}: node name {node.name!r} must be a DNS-1123 name of at most 63 characters (it is also a label value)"
    for taint in node.taints or []:
        if taint.effect not in TAINT_EFFECTS:
            yield f"{where}.taints: effect {taint.effect!r} is not one of {', '.join(TAINT_EFFECTS)}"
    for resource, reserve in node.capacity.reserve.items():
        if not _is_reserve(reserve):
            yield f"{where}.capacity.reserve.{resource}: {reserve!r} is neither a quantity nor a percentage"
    if node.node_ip and not _is_address(node.node_ip):
        yield f"{where}.nodeIP: {node.node_ip!r} is not an IP address"
    if node.autoscaling is not None:
        yield from autoscaling.problems(f"{where}.autoscaling", node.autoscaling)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _is_reserve(text: str) -> bool:
    if text.endswith("%"):
        return text[:-1].replace(".", "", 1).isdigit() and float(text[:-1]) <= 100
    try:
        return quantity.milli(text) >= 0
    except ValueError:
        return False


def _namespace_problems(clusters: Sequence[Cluster]) -> Iterator[str]:
    by_place: dict[tuple[str, str], dict[bytes, int]] = defaultdict(dict)
    for position, cluster in enumerate(clusters):
        yield from _namespaces_of_one(f"clusters[{position}].namespaces", cluster.namespaces)
        # The first position of each different setting for the same lower cluster.
        different = by_place[cluster.kubeconfig, cluster.context]
        different.setdefault(msgspec.json.encode(cluster.namespaces), position)
    for different in by_place.values():
        for first, second in combinations(different.values(), 2):
            meeting = _meeting(clusters[first].namespaces, clusters[second].namespaces)
            if meeting:
                yield (
                    f"clusters[{second}].namespaces: leads to the same lower cluster as clusters[{first}], and {meeting}; "
                    "give both the same namespaces, or prefixes of which none begins with the other"
                )


def _namespaces_of_one(where: str, config: NamespaceConfig) -> Iterator[str]:
    prefix = config.prefix
    if prefix and not DNS_LABEL.fullmatch(prefix + "x"):
        yield f"{where}.prefix: {prefix!r} cannot begin a namespace's name"
    made = (name for name in _SYSTEM if prefix and name.startswith(prefix))
    system = next((name for name in made if DNS_LABEL.fullmatch(name.removeprefix(prefix))), "")
    if system or prefix.startswith(_RESERVED_PREFIX):
        what = f"would make {system}" if system else "belongs to the lower cluster's own system"
        yield f"{where}.prefix: {prefix!r} {what}; choose another prefix"
    for position, pattern in enumerate(config.generated):
        if not _GENERATED.fullmatch(pattern):
            yield (
                f"{where}.generated[{position}]: {pattern!r} is not a resource and a name, such as "
                "configmaps/example-ca or networkpolicies.networking.k8s.io/default-*"
            )
    targets: dict[str, str] = {}
    for upper, lower in config.map.items():
        field = f"{where}.map.{upper}"
        if not DNS_LABEL.fullmatch(lower):
            yield f"{field}: {lower!r} is not a namespace's name (DNS-1123 label)"
        elif lower != upper and (lower in _SYSTEM or lower.startswith(_RESERVED_PREFIX)):
            yield f"{field}: {lower!r} belongs to the lower cluster's own system; choose another name"
        elif lower in targets:
            yield f"{where}.map: {targets[lower]!r} and {upper!r} both lead to {lower!r}"
        elif other := _unmapped(lower, config):
            yield (
                f"{field}: {lower!r} is the lower namespace of upper namespace {other!r}, too; "
                f"map that one elsewhere, or leave it out with {where}.allowed"
            )
        targets[lower] = upper


def _unmapped(lower: str, config: NamespaceConfig) -> str:
    """Return the upper namespace that maps to ``lower`` without an entry in ``map``; empty: none."""
    upper = lower.removeprefix(config.prefix)
    is_led_here = lower.startswith(config.prefix) and DNS_LABEL.fullmatch(upper) and upper not in config.map
    return upper if is_led_here and namespace_map.allowed(upper, config.allowed) else ""


def _meeting(one: NamespaceConfig, other: NamespaceConfig) -> str:
    """Return how two upper namespaces would share a lower one under two configurations; empty: they would not."""
    for first, second in ((one, other), (other, one)):
        for upper, lower in first.map.items():
            mapped = next((name for name, target in second.map.items() if target == lower), "")
            rival = mapped or _unmapped(lower, second)
            if rival and rival != upper:
                return f"{upper!r} and {rival!r} would share {lower!r}"
        rest = second.prefix.removeprefix(first.prefix)
        begins = second.prefix.startswith(first.prefix) and DNS_LABEL.fullmatch(f"{rest}x")
        if rest and begins and _may_begin(rest, first.allowed):
            return f"{rest + 'x'!r} and 'x' would share {second.prefix + 'x'!r}"
    return ""


def _may_begin(prefix: str, patterns: Sequence[str]) -> bool:
    """Report whether a name with that prefix may match a shell pattern; no patterns match every name."""
    beginnings = [re.split(r"[*?\[]", pattern, maxsplit=1)[0] for pattern in patterns]
    return not patterns or any(
        beginning.startswith(prefix) or prefix.startswith(beginning) for beginning in beginnings
    )


def override_problems(where: str, overrides: Sequence[Override]) -> list[str]:
    """Return the errors of a cluster's overrides, each as ``field: what``; empty: none."""
    if len(overrides) > _MOST:
        return [f"{where}: {len(overrides)} are too many for one cluster; at most {_MOST}"]
    found: list[str] = []
    seen: set[str] = set()
    for position, override in enumerate(overrides):
        field = f"{where}[{position}]"
        if not DNS_LABEL.fullmatch(override.name):
            found.append(f"{field}.name: {override.name!r} must be a DNS label of at most 63 characters")
        elif override.name in seen:
            found.append(f"{field}.name: {override.name!r} is there twice")
        seen.add(override.name)
        found += _override_problems(field, override)
    return found


def _override_problems(where: str, override: Override) -> Iterator[str]:
    yield from matching.selector_problems(f"{where}.podSelector", override.pod_selector)
    for position, rewrite in enumerate(override.images):
        yield from _of_rewrite(f"{where}.images[{position}]", rewrite)
    yield from _of_tolerations(f"{where}.tolerations", override.tolerations)
    metadata, spec = override.patch.metadata, override.patch.spec
    for kind, values in (("labels", metadata.labels), ("annotations", metadata.annotations)):
        field = f"{where}.patch.metadata.{kind}"
        for key in values:
            if names.is_reserved(key) or key in _OURS:
                yield f"{field}[{key}]: belongs to virtual-node and cannot be changed"
        yield from _of_pairs(field, values, is_label=kind == "labels")
    yield from _of_pairs(f"{where}.patch.spec.nodeSelector", spec.node_selector, is_label=True)
    yield from _of_tolerations(f"{where}.patch.spec.tolerations", spec.tolerations or ())
    for kind, containers in (("containers", spec.containers), ("initContainers", spec.init_containers)):
        for position, container in enumerate(containers):
            yield from _of_container(f"{where}.patch.spec.{kind}[{position}]", container)
    references = [reference.name for reference in spec.image_pull_secrets]
    yield from _of_references(f"{where}.patch.spec.imagePullSecrets", references)


def _of_rewrite(where: str, rewrite: ImageRewrite) -> Iterator[str]:
    for field, text in (("from", rewrite.source), ("to", rewrite.to)):
        whole = f"{text.removesuffix('/')}/x/y"
        if not _IMAGE.fullmatch(text) or not repository_name(whole).endswith(whole):
            yield f"{where}.{field}: {text!r} must begin with a registry in lower case, such as docker.io/ or quay.io/team"
        elif repository_name(whole) != whole:
            yield f"{where}.{field}: {text!r} never begins a full name; write {repository_name(whole).removesuffix('/x/y')!r}"
    if rewrite.source.endswith("/") != rewrite.to.endswith("/"):
        yield f"{where}: from {rewrite.source!r} and to {rewrite.to!r} must both end with / or both not"


def _of_tolerations(where: str, tolerations: Sequence[Toleration]) -> Iterator[str]:
    for position, one in enumerate(tolerations):
        field = f"{where}[{position}]"
        if one.operator == "Exists" and one.value:
            yield f"{field}.value: not allowed with operator Exists"
        if one.operator == "Equal" and not one.key:
            yield f"{field}.key: required, except with operator Exists"
        if one.key and not _is_key(one.key):
            yield f"{field}.key: {one.key!r} is not the key of a taint"
        if one.toleration_seconds is not None and one.effect != "NoExecute":
            yield f"{field}.tolerationSeconds: needs effect NoExecute"


def _of_pairs(where: str, pairs: Mapping[str, str | None], *, is_label: bool) -> Iterator[str]:
    for key, value in pairs.items():
        if not _is_key(key if is_label else key.lower()):
            yield f"{where}[{key}]: {key!r} is not a valid key"
        if is_label and value and not _NAME.fullmatch(value):
            yield f"{where}[{key}]: {value!r} is not a valid value of a label"


def _of_container(where: str, container: ContainerPatch) -> Iterator[str]:
    if not container.name:
        yield f"{where}.name: required; '*' is every container"
    for position, variable in enumerate(container.env):
        field = f"{where}.env[{position}]"
        if not variable.name or "=" in variable.name:
            yield f"{field}.name: {variable.name!r} is not the name of a variable"
        source = variable.value_from
        if variable.directive and (source or variable.value is not None):
            yield f"{field}: $patch: delete contradicts a value"
        if source is None:
            continue
        if variable.value is not None:
            yield f"{field}: value and valueFrom contradict each other"
        given = [one for one in (source.config_map_key_ref, source.secret_key_ref) if one is not None]
        if len(given) + sum(one is not None for one in (source.field_ref, source.resource_field_ref)) != 1:
            yield f"{field}.valueFrom: exactly one source is required"
        yield from _of_references(f"{field}.valueFrom", [one.name for one in given])
    for kind in ("limits", "requests"):
        for resource, value in getattr(container.resources, kind).items():
            if value is not None and not _is_amount(value):
                yield f"{where}.resources.{kind}.{resource}: {value!r} is not a quantity such as 500m, 2 or 1Gi"


def _of_references(where: str, referenced: Sequence[str]) -> Iterator[str]:
    for name in referenced:
        if not _DOMAIN.fullmatch(name) or len(name) > _OBJECT_NAME_LENGTH:
            yield f"{where}: {name!r} is not the name of a ConfigMap or Secret"


def _is_key(key: str) -> bool:
    """Report whether a text is a qualified name, such as ``example.com/name``."""
    domain, separator, name = key.rpartition("/")
    is_domain = not separator or (bool(_DOMAIN.fullmatch(domain)) and len(domain) <= _OBJECT_NAME_LENGTH)
    return is_domain and bool(_NAME.fullmatch(name))


def _is_amount(value: str | int) -> bool:
    try:
        return quantity.milli(value) >= 0
    except ValueError:
        return False


def policy_problems(where: str, policy: Policy) -> list[str]:
    """Return the errors of a policy, each as ``field: what``; empty: none."""
    found = list(_rule_problems(where, policy))
    for pattern, rules in policy.namespaces.items():
        found += _rule_problems(f"{where}.namespaces[{pattern}]", rules)
    return found


def _rule_problems(where: str, rules: Rules) -> Iterator[str]:
    for rule, known in _CHOICES.items():
        yield from _unknown_values(f"{where}.{field_of(rule)}", getattr(rules, rule) or (), (*known, ALL))
    yield from volume_problems(where, rules.volume_types or (), rules.host_paths or ())
    if rules.images is None:
        return
    for field in ("allow", "deny"):
        for pattern in getattr(rules.images, field):
            if "/" not in pattern and not pattern.startswith("*"):
                yield (
                    f"{where}.images.{field}: {pattern!r} matches no image, because full names begin with a registry: "
                    f"docker.io/library/{pattern}"
                )


def _unknown_values(where: str, found: Sequence[Any], known: Sequence[str]) -> Iterator[str]:
    for value in found:
        if value not in known:
            yield f"{where}: unknown {value!r}, known are {', '.join(known)}"
