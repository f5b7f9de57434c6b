"""The configuration file: lower clusters, agents and weights, as the project's YAML or tensile-kube's JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from clusterset.inventory import settings
from clusterset.inventory.settings import ClusterProfiles
from clusterset.model import autoscaling as growth
from clusterset.model.autoscaling import Autoscaling
from clusterset.model.namespace_map import NamespaceConfig
from clusterset.model.overrides import validation as overrides_validation
from clusterset.model.overrides.config import Override
from clusterset.model.pod.eligibility import KNOWN_CONTROLLERS
from clusterset.model.pod.resource_claims import ResourceClaimsConfig
from clusterset.model.policy import validation as policy_validation
from clusterset.model.policy.config import Policy
from controller_runtime.apimachinery import matching
from controller_runtime.apimachinery.decoding import convert, decode_yaml
from controller_runtime.errors import ConfigError
from controller_runtime.process.flags import read_text
from multi_scheduler.usage import config as usage_config
from multi_scheduler.usage.config import UsageConfig

API_VERSION = "virtual-node.io/v1alpha1"
KIND = "MultiSchedulerConfiguration"
_TENSILE_PLUGIN = "multi-scheduler"


class _Base(msgspec.Struct, rename="camel", forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    pass


class NodeConfig(_Base):
    """One virtual node and the part of the lower cluster behind it."""

    name: str
    node_selector: dict[str, str] = {}
    """Labels of the lower nodes that the virtual node represents. Empty: all lower nodes."""
    autoscaling: Autoscaling | None = None
    """Nodes that the lower cluster's autoscaler adds. Must match the virtual node's settings."""


class VolumeConfig(_Base):
    """Which volumes pods may use. Must match the virtual node's settings."""

    allowed_host_paths: list[str] = []
    """Directories of lower nodes that pods may mount, in addition to ``policy.hostPaths``."""


class SchedulerClusterConfig(_Base):
    """One lower cluster."""

    name: str
    kubeconfig: str
    context: str = ""
    server: str = ""
    """Overrides the API server's URL in the kubeconfig."""
    cache_bytes: Annotated[int, Meta(ge=0)] = 128 * 1024**2
    """Maximum memory for cached objects of this cluster. Beyond it, its virtual nodes are rejected, and it is read again
    after five minutes; other clusters go on. 128 MiB are enough for about 60,000 pods. 0: no limit."""
    nodes: list[NodeConfig] = []
    """Virtual nodes of the cluster. Empty: Nodes with label ``virtual-node.io/lower-cluster: <name>``, and the Node with the
    cluster's name."""
    autoscaling: Autoscaling | None = None
    """Like ``nodes[].autoscaling``, for a cluster without ``nodes``."""
    namespaces: NamespaceConfig = msgspec.field(default_factory=NamespaceConfig)
    """How upper namespaces map to lower ones, and which upper ones are allowed. Must match the virtual node's settings."""
    pod_selector: dict[str, Any] = {}
    """LabelSelector of the pods that the virtual node takes. Empty: all."""
    volumes: VolumeConfig = msgspec.field(default_factory=VolumeConfig)
    resource_claims: ResourceClaimsConfig = msgspec.field(default_factory=ResourceClaimsConfig)
    """Whether pods with ResourceClaims are accepted. The devices are not counted. Must match the virtual node's settings."""
    enable_controllers: list[str] = msgspec.field(default_factory=lambda: list(KNOWN_CONTROLLERS))
    """Optional controllers of the virtual node: PVControllers, ServiceControllers. Without PVControllers, pods with
    PersistentVolumeClaims are rejected. Must match the virtual node's settings."""
    policy: Policy = msgspec.field(default_factory=Policy)
    """What pods may request in this lower cluster; other pods are rejected. Must match the virtual node's settings."""
    overrides: list[Override] = []
    """Changes of pods in this lower cluster. Must match the virtual node's settings."""
    usage: UsageConfig | None = None
    """Source of the usage of the cluster's nodes; null: the top-level ``usage`` applies."""


class AgentConfig(_Base):
    """One agent."""

    name: str
    """Name of the agent's entry point."""
    weight: Annotated[float, Meta(ge=0)] = 1.0
    """Weight of the agent's scores among all agents. 0: the agent only filters."""
    config: dict[str, Any] = {}
    """Settings of the agent."""


class Config(_Base):
    """The complete configuration."""

    api_version: str = API_VERSION
    kind: str = KIND
    clusters: list[SchedulerClusterConfig] = []
    cluster_profiles: ClusterProfiles | None = None
    """ClusterProfiles of the upper cluster as further lower clusters. ``defaults`` has fields of ``clusters[]``, and
    ``nodeSelector``. Must match the virtual node's settings."""
    usage: UsageConfig = msgspec.field(default_factory=UsageConfig)
    """Source of the usage of lower nodes."""
    upper_usage: UsageConfig | None = None
    """Source of the usage of the upper cluster's real nodes, which agents then score like lower nodes. null: agents do
    not score real nodes."""
    unknown_nodes: Literal["Reject", "Pass"] = "Reject"
    """What happens to virtual nodes of the upper cluster (label ``type=virtual-kubelet``) that belong to none of the lower
    clusters. Reject: no pod gets them, and the reason names the missing entry. Pass: pods get them without any check."""
    agents: list[AgentConfig] = msgspec.field(default_factory=lambda: [AgentConfig(name="fit")])


def load(path: str | Path) -> Config:
    """Read a configuration file; relative kubeconfig paths are resolved against its directory.

    Raises:
        ConfigError: the file cannot be read or is invalid; the message names the field.
    """
    path = Path(path)
    config = parse(read_text("--config", path), source=str(path))
    for cluster in config.clusters:
        cluster.kubeconfig = _beside(path, cluster.kubeconfig)
    if config.cluster_profiles is not None:
        config.cluster_profiles.providers_file = _beside(path, config.cluster_profiles.providers_file)
    return config


def _beside(config_file: Path, path: str) -> str:
    expanded = Path(path).expanduser()
    return str(expanded if expanded.is_absolute() else config_file.parent / expanded)


def profile_cluster(config: Config, name: str, path: str) -> SchedulerClusterConfig:
    """Return the lower cluster of a ClusterProfile: the defaults with this name and the kubeconfig ``path``.

    Raises:
        ValueError: the defaults are invalid; the message names the field.
    """
    profiles = config.cluster_profiles
    defaults = dict(profiles.defaults) if profiles is not None else {}
    node: dict[str, Any] = {
        field: defaults.pop(field) for field in ("nodeSelector", "autoscaling") if field in defaults
    }
    whole: dict[str, Any] = {**defaults, "name": name, "kubeconfig": path, "nodes": [{"name": name, **node}]}
    return convert(whole, SchedulerClusterConfig, where="clusterProfiles.defaults")


def parse(text: str, *, source: str = "config") -> Config:
    """Parse a configuration in the project's form or in tensile-kube's.

    Raises:
        ConfigError: the configuration is invalid; the message names source and field.
    """
    try:
        document = decode_yaml(text)
    except ValueError as error:
        raise ConfigError(f"{source}: neither YAML nor JSON: {error}") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{source}: expected a mapping with apiVersion, kind and clusters")
    if "pluginConfig" in document:
        document = _from_tensile(document, source)
    try:
        config = convert(document, Config)
    except ValueError as error:
        raise ConfigError(f"{source}: {error}") from None
    if config.api_version != API_VERSION or config.kind != KIND:
        raise ConfigError(f"{source}: expected apiVersion {API_VERSION} and kind {KIND}")
    _validate(config, source)
    return config


def _validate(config: Config, source: str) -> None:
    clusters = [*config.clusters, *_cluster_of_defaults(config, source)]
    if not clusters:
        raise ConfigError(f"{source}: clusters: at least one lower cluster is required")
    usage_config.check(config.usage, f"{source}: usage")
    if config.upper_usage is not None:
        usage_config.check(config.upper_usage, f"{source}: upperUsage")
    for cluster in clusters:
        where = f"{source}: clusters: {cluster.name}"
        if cluster.usage is not None:
            usage_config.check(cluster.usage, f"{where}: usage")
        for problem in _problems(cluster):
            raise ConfigError(f"{where}: {problem}")
    if not config.agents:
        raise ConfigError(f"{source}: agents: at least one agent is required, such as fit")
    for what, found in (
        ("clusters", [cluster.name for cluster in config.clusters]),
        ("nodes", [node.name for cluster in config.clusters for node in cluster.nodes]),
        ("agents", [agent.name for agent in config.agents]),
    ):
        twice = {name for name in found if found.count(name) > 1}
        if twice:
            raise ConfigError(f"{source}: {what}: {', '.join(sorted(twice))}: there twice")


def _cluster_of_defaults(config: Config, source: str) -> Iterator[SchedulerClusterConfig]:
    """Yield a lower cluster with the defaults of ``clusterProfiles``, to validate them."""
    if config.cluster_profiles is None:
        return
    for problem in settings.problems(config.cluster_profiles):
        raise ConfigError(f"{source}: {problem}")
    try:
        yield profile_cluster(config, "clusterProfiles.defaults", "unused")
    except ValueError as error:
        raise ConfigError(f"{source}: {error}") from None


def _problems(cluster: SchedulerClusterConfig) -> Iterator[str]:
    try:
        matching.compile_selector(cluster.pod_selector)
    except ValueError as error:
        yield f"podSelector: {error}"
    for name in cluster.enable_controllers:
        if name not in KNOWN_CONTROLLERS:
            yield f"enableControllers: unknown {name!r}, known are {', '.join(KNOWN_CONTROLLERS)}"
    if cluster.autoscaling is not None:
        if cluster.nodes:
            yield "autoscaling: has no effect beside nodes; put it into each of them"
        yield from growth.problems("autoscaling", cluster.autoscaling)
    for node in cluster.nodes:
        if node.autoscaling is not None:
            yield from growth.problems(f"nodes: {node.name}: autoscaling", node.autoscaling)
    yield from policy_validation.problems("policy", cluster.policy)
    yield from overrides_validation.problems("overrides", cluster.overrides)


def _from_tensile(document: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Convert tensile-kube's KubeSchedulerConfiguration; its plug-in's arguments list the lower clusters."""
    for plugin in document.get("pluginConfig") or ():
        arguments = (plugin or {}).get("args") or {}
        clusters = arguments.get("cluster_configuration")
        if plugin.get("name") == _TENSILE_PLUGIN or clusters:
            if not isinstance(clusters, dict):
                raise ConfigError(f"{source}: pluginConfig[].args.cluster_configuration: expected an object")
            return {"apiVersion": API_VERSION, "kind": KIND, "clusters": [
                _tensile_cluster(name, entry, source) for name, entry in clusters.items()
            ]}  # fmt: skip
    raise ConfigError(f"{source}: pluginConfig: no entry has args.cluster_configuration")


def _tensile_cluster(name: str, entry: Any, source: str) -> dict[str, Any]:
    where = f"{source}: cluster_configuration.{name}"
    if not isinstance(entry, dict) or not isinstance(entry.get("kube_config"), str):
        raise ConfigError(f"{where}.kube_config: the path of a kubeconfig is required")
    return {
        "name": str(entry.get("name") or name),
        "kubeconfig": entry["kube_config"],
        "server": str(entry.get("kube_master") or ""),
        # In tensile-kube the key of a cluster is its clusterID and, by convention, the name of its virtual node.
        "nodes": [{"name": name}],
        # tensile-kube has no setting for adoption, and uses every existing namespace.
        "namespaces": {"adopt": True},
    }
