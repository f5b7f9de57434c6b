"""The ``policy`` of a lower cluster in the configuration.

Every rule defines what is *allowed*: a boolean allows or forbids, a list contains the allowed values
(``"*"``: all). A rule that is not set has the value of the preset, or the default that ``presets`` gives to
all presets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from controller_runtime.apimachinery.decoding import ConfigStruct

PresetName = Literal["privileged", "baseline", "restricted"]


class ImageRules(ConfigStruct):
    """Which images pods may use."""

    allow: list[str] = msgspec.field(default_factory=lambda: ["*"])
    """Shell patterns of allowed images, such as ``registry.example.com/*``. A pattern is compared with the full name:
    ``nginx`` is ``docker.io/library/nginx:latest``."""
    deny: list[str] = []
    """Shell patterns of forbidden images. They win over ``allow``."""


_GRANTING = (
    # Cloud roles: kube2iam and kiam.
    "iam.amazonaws.com/*",
    # Networks: Multus and GKE.
    *("k8s.v1.cni.cncf.io/*", "v1.multus-cni.io/*"),
    *("networking.gke.io/default-interface", "networking.gke.io/interfaces"),
    # Volumes, images and other fields of sidecars, and Secrets by name. Injectors add them after the policy has checked the
    # pod. So they would give tenants directories of nodes, privileged containers, and Secrets of others.
    *("proxy.istio.io/overrides", "sidecar.istio.io/bootstrapOverride", "sidecar.istio.io/enableCoreDump"),
    *("sidecar.istio.io/proxyImage", "sidecar.istio.io/userVolume*"),
    *("config.linkerd.io/*-image", "config.linkerd.io/close-wait-timeout"),
    "consul.hashicorp.com/consul-sidecar-user-volume*",
    *("vault.hashicorp.com/agent-extra-secret", "vault.hashicorp.com/agent-image"),
    *("vault.hashicorp.com/agent-*json-patch", "vault.hashicorp.com/tls-secret"),
    "vault.security.*/*-image",
    *("dapr.io/api-token-secret", "dapr.io/app-token-secret", "dapr.io/sidecar-image"),
    "admission.datadoghq.com/*.custom-image",
    "appmesh.k8s.aws/secretMounts",
    # Devices, directories, network interfaces and limits of the node: plugins of the container runtime (NRI) add them.
    *("*devices.nri.io*", "mounts.nri.io*", "*.nri.containerd.io*", "*.noderesource.dev*"),
    # Secrets: Datadog's agent runs these checks itself, and puts Secrets of any namespace into their requests (``ENC[…]``).
    *("ad.datadoghq.com/*.checks", "*.datadoghq.com/*.check_names"),
)
"""Shell patterns of annotations by which programs of the lower cluster give a pod what the policy does not check.

Sources: Istio ``pkg/kube/inject`` (container overrides are merged over the injected container), Linkerd ``charts/partials``
(``linkerd-init`` is privileged with a close-wait timeout), vault-k8s ``agent-inject/agent`` (patches of the container), Dapr
``pkg/injector``, Datadog ``admission/mutate/autoinstrumentation``, NRI ``plugins/`` (containerd/nri), Datadog
``secret_scope_integration_to_their_k8s_namespace``, which is off by default.
"""
_IDENTIFYING = ("azure.workload.identity/use", "aadpodidbinding")
"""Shell patterns of labels by which programs of the lower cluster give a pod a cloud role: that of its lower ServiceAccount, or the
role that the label names (Azure)."""
DEFAULT_ENTRY = "default"
"""The entry of ``deny`` that stands for the patterns of the default."""


class AnnotationRules(ConfigStruct):
    """Which annotations pods may bring into the lower cluster."""

    allow: list[str] = msgspec.field(default_factory=lambda: ["*"])
    """Shell patterns of allowed annotation keys, such as ``prometheus.io/*``."""
    deny: list[str] = msgspec.field(default_factory=lambda: list(_GRANTING))
    """Shell patterns of forbidden annotation keys. They win over ``allow``. The default has annotations that grant cloud roles,
    networks, devices and directories of nodes, Secrets of other namespaces, and images, volumes, Secrets or privileges of
    injected sidecars. A list of your own replaces it; the entry ``default`` stands for all its patterns."""
    keep: list[str] = []
    """Shell patterns of keys that lower pods get, although the built-in list of annotations that stay in the upper cluster
    or ``leaveOut`` matches them."""
    leave_out: list[str] = []
    """Shell patterns of further keys that stay in the upper cluster. They do not cause a refusal. The built-in list has what
    network plugins, kubelets and admission of the upper cluster write, and names that upper programs publish; see
    ``docs/operate/other-programs.md``."""

    @property
    def denied(self) -> list[str]:
        """Return the patterns of ``deny``, with those of the default in place of ``default``."""
        return _expanded(self.deny, _GRANTING)


class LabelRules(ConfigStruct):
    """Which labels pods may bring into the lower cluster."""

    allow: list[str] = msgspec.field(default_factory=lambda: ["*"])
    """Shell patterns of allowed label keys, such as ``app.kubernetes.io/*``. The labels that controllers add to pods, such as
    ``pod-template-hash``, need a pattern, too."""
    deny: list[str] = msgspec.field(default_factory=lambda: list(_IDENTIFYING))
    """Shell patterns of forbidden label keys. They win over ``allow``. The default has labels that grant cloud roles. A list of
    your own replaces it; the entry ``default`` stands for all its patterns."""

    @property
    def denied(self) -> list[str]:
        """Return the patterns of ``deny``, with those of the default in place of ``default``."""
        return _expanded(self.deny, _IDENTIFYING)


def _expanded(entries: Sequence[str], default: Sequence[str]) -> list[str]:
    return [key for entry in entries for key in (default if entry == DEFAULT_ENTRY else (entry,))]


class MetadataRules(ConfigStruct):
    """Which labels and annotations copies have, except pods. ``docs/operate/policy.md`` has the built-in list."""

    keep: list[str] = []
    """Shell patterns of keys that copies have, although the built-in list or ``leaveOut`` matches them."""
    leave_out: list[str] = []
    """Shell patterns of further keys that copies do not have."""


class Rules(ConfigStruct):
    """What pods may ask of this lower cluster. A rule that is not set has the value of the preset."""

    preset: PresetName | None = None
    """A level of the Kubernetes Pod Security Standards (v1.34): ``privileged``, ``baseline`` or ``restricted``. It sets
    all rules from ``hostNamespaces`` to ``csiDrivers``. Not set: ``baseline``."""
    host_namespaces: list[Literal["hostNetwork", "hostPID", "hostIPC"]] | None = None
    """Namespaces of the node that pods may share: ``hostNetwork``, ``hostPID``, ``hostIPC``."""
    host_users: bool | None = None
    """Pods may use the user namespace of the node, which is Kubernetes' default. ``false``: pods must set
    ``hostUsers: false``."""
    host_ports: bool | None = None
    """Containers may use ports of the node (``hostPort``)."""
    host_paths: list[str] | None = None
    """Directories of the node that pods may mount (``hostPath``), with everything in them. ``volumes.allowedHostPaths``
    is added to this list."""
    privileged: bool | None = None
    """Containers may be privileged."""
    windows_host_process: bool | None = None
    """Windows containers may be HostProcess containers."""
    allow_privilege_escalation: bool | None = None
    """``false``: containers must set ``allowPrivilegeEscalation: false``."""
    run_as_root: bool | None = None
    """``false``: pods must set ``runAsNonRoot: true``, and no ``runAsUser: 0``."""
    capabilities: list[str] | None = None
    """Linux capabilities that containers may add, such as ``NET_BIND_SERVICE``."""
    debug_capabilities: list[str] | None = None
    """Linux capabilities that debug containers (``kubectl debug``) may add in addition to ``capabilities``. They do not
    apply to pods that share a namespace of the node, because with ``hostPID`` ``SYS_PTRACE`` reaches its processes."""
    default_capabilities: bool | None = None
    """``false``: containers must drop ``ALL`` capabilities."""
    seccomp_profiles: list[str] | None = None
    """Allowed seccomp profile types: ``RuntimeDefault``, ``Localhost``, ``Unconfined``; ``Undefined`` allows
    pods without a profile."""
    app_armor_profiles: list[str] | None = None
    """Allowed AppArmor profile types, as for ``seccompProfiles``."""
    se_linux_types: list[str] | None = None
    """Allowed ``seLinuxOptions.type``. ``user`` and ``role`` may be set only with ``"*"``."""
    sysctls: list[str] | None = None
    """Shell patterns of sysctls that pods may set."""
    proc_mounts: list[str] | None = None
    """Allowed ``procMount``: ``Default``, ``Unmasked``."""
    probe_hosts: bool | None = None
    """Probes and lifecycle hooks may name a ``host`` other than the pod."""
    volume_types: list[str] | None = None
    """Allowed types of volumes, such as ``emptyDir``, ``configMap``, ``nfs``. Three types have rules of their own: hostPath
    (``hostPaths``), csi (``csiDrivers``), and ephemeral, which counts as ``persistentVolumeClaim``. The token volume that
    API servers add to pods is always allowed."""
    csi_drivers: list[str] | None = None
    """Shell patterns of CSI drivers that pods may use for inline volumes."""
    pod_certificates: list[str] | None = None
    """Shell patterns of signers of the lower cluster. They issue the certificates of ``podCertificate`` projections for the
    lower pod, not for the upper ServiceAccount. All other signers are those of the upper cluster. Not set: none."""
    control_plane: bool | None = None
    """Pods may run on control-plane nodes: they may select these nodes and tolerate their taints. Not set: ``false``."""
    toleration_keys: list[str] | None = None
    """Shell patterns of taint keys that pods may tolerate. A toleration without a key needs ``"*"``. Not set: all, except
    those of control-plane nodes."""
    node_selector_keys: list[str] | None = None
    """Shell patterns of label keys that pods may use in the node selector and node affinity of their ``clusterSelector``.
    Not set: all, except those of control-plane nodes."""
    scheduler_names: list[str] | None = None
    """Shell patterns of schedulers that pods may choose by ``virtual-node.io/scheduler-name``. ``default-scheduler`` is
    always allowed. Not set: no other."""
    priority_classes: list[str] | None = None
    """Shell patterns of PriorityClasses that pods keep in the lower cluster, where the class must exist. Other classes are
    left out, but pods of ``system-node-critical`` and ``system-cluster-critical`` are refused. Not set: none."""
    service_accounts: list[str] | None = None
    """Shell patterns of ServiceAccounts that pods keep in the lower cluster, where the account must exist in the lower
    namespace. Programs of the lower cluster, such as service meshes, identify the pods by this account, and grant them its
    permissions. With ``enableServiceaccount: false``, the pods also get its tokens. Other pods have account ``default``.
    Not set: none."""
    runtime_classes: list[str] | None = None
    """Shell patterns of RuntimeClasses that pods may use in the lower cluster, where the class must exist. Pods of other
    classes are refused. Not set: none."""
    labels: LabelRules | None = None
    """Labels that pods may have in the lower cluster. Not set: all, except those that ``labels.deny`` has by default."""
    annotations: AnnotationRules | None = None
    """Annotations that pods may have in the lower cluster. Not set: all, except those that ``annotations.deny`` has by
    default."""
    images: ImageRules | None = None
    """Images that pods may use. Not set: all."""
    metadata: MetadataRules | None = None
    """Labels and annotations of copies other than pods. Not set: all, except those of the built-in list."""


class Policy(Rules):
    """What pods may ask of this lower cluster. A rule that is not set has the value of the preset."""

    namespaces: dict[str, Rules] = {}
    """Rules for single upper namespaces, by shell pattern. The most specific pattern that matches is used: a name
    before a pattern, more literal characters before fewer, then alphabetical order. Its rules replace the cluster's one by
    one; a ``preset`` in it replaces all rules that a preset sets."""
