"""The declaration of ``virtual-node``'s daemon: tensile-kube's flags and environment unchanged, and our own flags.

A flag overrides the environment, which overrides the file of ``--config``, which overrides the default, as in
the kubelet. With a file, flags that describe the only lower cluster have no effect, which a warning reports.
Booleans have Go's syntax: ``--flag`` and ``--flag=false``. The fields of the configuration declare their own flags.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Annotated

import msgspec

from clusterset.config import KNOWN_CONTROLLERS, LOWER, NODE, PODS, CapacityPolicy, Cluster
from clusterset.model import names
from clusterset.model.autoscaling import TAINT_EFFECTS, Taint
from clusterset.model.namespace_map import NamespaceConfig
from clusterset.model.policy.config import Policy, PresetName
from clusterset.model.policy.rules import DEFAULT_PRESET
from controller_runtime.errors import ConfigError
from controller_runtime.process.flags import duration, take_klog
from controller_runtime.process.program import Program, ProgramSettings, load
from controller_runtime.process.settings import UPPER, Setting, add_flags, attribute_docstrings, settings
from controller_runtime.process.terminal import Parser
from virtual_node.config import program
from virtual_node.config.types import KUBELET, SHARDED, Config

DEFAULT_NODE_NAME = "virtual-kubelet"
_OF_CLUSTER = {
    **{setting.dest: field.encode_name for field, setting in settings(Cluster)},
    "adopt_namespaces": "namespaces.adopt",
    "policy_preset": "policy.preset",
    "disable_taint": "taints",
    "taint": "taints",
}
"""Flags that describe the only lower cluster, with the field of ``clusters[]`` that each sets."""


class Implied(msgspec.Struct, kw_only=True):
    """Flags of tensile-kube that are accepted for compatibility, because their purpose is fulfilled without them."""

    os: Annotated[str, Setting(NODE, "--os OS")] = ""
    """Accepted for compatibility; read from the lower nodes."""
    enable_node_lease: Annotated[bool, Setting(NODE, "--enable-node-lease")] = True
    """Accepted for compatibility; Leases are always renewed."""
    namespace: Annotated[str, Setting(PODS, "--namespace NS")] = ""
    """Accepted for compatibility; pods of every namespace are mirrored."""
    authentication_token_webhook: Annotated[bool, Setting(KUBELET, "--authentication-token-webhook")] = True
    """Accepted for compatibility; bearer tokens are always reviewed."""


class Ignored(msgspec.Struct, kw_only=True):
    """Flags of tensile-kube without effect: a warning says what applies instead. Any value is accepted, as none is used."""

    provider_config: Annotated[str, Setting(NODE, "--provider-config FILE")] = ""
    """Accepted for compatibility; the lower cluster is named by --client-kubeconfig or --config."""
    reviewed: Annotated[str, Setting(KUBELET, "--authentication-token-webhook-cache-ttl D")] = ""
    """Accepted for compatibility; accepted tokens are cached for 2 minutes."""
    authorized: Annotated[str, Setting(KUBELET, "--authorization-webhook-cache-authorized-ttl D")] = ""
    """Accepted for compatibility; allowed requests are cached for 5 minutes."""
    unauthorized: Annotated[str, Setting(KUBELET, "--authorization-webhook-cache-unauthorized-ttl D")] = ""
    """Accepted for compatibility; denied requests are cached for 30 seconds."""


class DaemonSettings(ProgramSettings, kw_only=True):
    """The flags that are not fields of the configuration, the configuration, and what is wrong with it."""

    startup_timeout: Annotated[float, Setting(UPPER, "--startup-timeout D", parse=duration)] = 0.0
    """Time limit for the first response of the upper cluster at start. 0: none."""
    config_file: Annotated[str, Setting(LOWER, "--config FILE")] = ""
    """YAML that declares many lower clusters; changes of ``clusters`` are applied live. Empty: flags describe the only
    lower cluster."""
    waits: Annotated[bool, Setting(LOWER, "--wait-for-config")] = False
    """While the file of --config, or a file that it names, cannot be used, report why and wait, not ready, instead of
    exiting."""
    adopt_namespaces: Annotated[tuple[str, ...], Setting(LOWER, "--adopt-namespaces LIST")] = ()
    """Existing lower namespaces that pods may use: shell patterns, '*' for all. Empty: none."""
    policy_preset: Annotated[PresetName, Setting(LOWER, "--policy-preset")] = DEFAULT_PRESET
    """Preset of the policy: what pods may use of the lower cluster."""
    provider: Annotated[str, Setting(NODE, "--provider NAME")] = "k8s"
    """k8s is the only one."""
    disable_taint: Annotated[bool, Setting(NODE, "--disable-taint")] = False
    """Register without the virtual-node taint."""
    taint: Annotated[str, Setting(NODE, "--taint KEY", "VKUBELET_TAINT_KEY")] = names.TAINT_PROVIDER
    """Key of the Node's taint. The flag is deprecated. Not with ``--config``."""
    taint_value: Annotated[str, Setting(NODE, "", "VKUBELET_TAINT_VALUE")] = ""
    """Value of the Node's taint. Empty: that of ``--provider``. Not with ``--config``."""
    taint_effect: Annotated[str, Setting(NODE, "", "VKUBELET_TAINT_EFFECT")] = "NoSchedule"
    """Effect of the Node's taint. Not with ``--config``."""
    node_label: Annotated[str, Setting(NODE, "", "VKUBELET_NODE_LABEL")] = ""
    """``key:value``: another label of the Node; ignored with a warning if it does not have exactly one colon. Not with
    ``--config``."""
    no_verify_clients: Annotated[bool, Setting(KUBELET, "--no-verify-clients")] = False
    """Serve anyone who can reach the port (never in production)."""
    rotate_server_certificates: Annotated[bool, Setting(KUBELET, "--rotate-server-certificates")] = False
    """Serve a certificate that the upper cluster signs (CSR), and renew it. Off: self-signed."""
    cluster: Cluster = msgspec.field(default_factory=lambda: Cluster(name="", capacity=CapacityPolicy()))
    """The only lower cluster without ``--config``."""
    implied: Implied = msgspec.field(default_factory=Implied)
    ignored: Ignored = msgspec.field(default_factory=Ignored)
    config: Config = msgspec.field(default_factory=Config)
    accepts_rejected: bool = False
    """Whether an invalid file of ``--config`` is only reported in ``rejected``, as with ``--wait-for-config``."""
    rejected: str = ""
    """Why the file of ``--config`` is invalid, if that is accepted; ``config`` then contains its valid part. Empty: the
    configuration is valid."""
    warnings: tuple[str, ...] = ()
    """Texts for the log about flags and variables that have no effect or are skipped."""

    def load(self) -> None:
        """Read the file of ``--config``, or describe the only lower cluster by flags, see ``ProgramSettings.load``."""
        from virtual_node.config import file  # noqa: PLC0415 - help needs no validation

        if self.provider != "k8s":
            raise ConfigError(f"--provider {self.provider}: the only provider is k8s")
        self.accepts_rejected = bool(self.config_file) and (self.accepts_rejected or self.waits)
        if not self.config_file:
            self._describe_cluster()
            return
        try:
            self.config = file.load(self.config_file)
        except ConfigError as error:
            if not self.accepts_rejected:
                raise
            self.config, self.rejected = file.load_usable(self.config_file), str(error)

    def _describe_cluster(self) -> None:
        """Make the configuration of the only lower cluster that flags and environment describe."""
        cluster = self.cluster
        if not cluster.kubeconfig:
            raise ConfigError(
                "--client-kubeconfig: required: the kubeconfig of the lower cluster (or --config for many)"
            )
        if self.taint_effect not in TAINT_EFFECTS:
            raise ConfigError(
                f"VKUBELET_TAINT_EFFECT: {self.taint_effect!r} is not one of {', '.join(TAINT_EFFECTS)}"
            )
        cluster.name = cluster.node_name = cluster.node_name or DEFAULT_NODE_NAME
        cluster.labels = self._labels()
        taint = Taint(
            key=self.taint or names.TAINT_PROVIDER,
            value=self.taint_value or self.provider,
            effect=self.taint_effect,
        )
        cluster.taints = [] if self.disable_taint else [taint]
        cluster.namespaces = NamespaceConfig(adopt=list(self.adopt_namespaces))
        cluster.policy = Policy(preset=self.policy_preset if "policy_preset" in self.given else None)
        self.config = Config(clusters=[cluster])

    def _labels(self) -> dict[str, str]:
        key, _, value = self.node_label.partition(":")
        if self.node_label.count(":") == 1 and key.strip():
            return {key.strip(): value.strip()}
        if self.node_label:
            self._warn(f"VKUBELET_NODE_LABEL: {self.node_label!r} is not key:value and is ignored")
        return {}

    def check(self) -> None:
        """Apply the flags that set several fields of the configuration, and check it, see ``ProgramSettings.check``."""
        from virtual_node.config import file  # noqa: PLC0415 - see load

        self._warn_without_effect()
        self.waits = self.waits and bool(self.config_file)
        config, kubelet = self.config, self.config.kubelet
        if config.workers > 1:
            config.leader_election.enabled, config.leader_election.mode = True, SHARDED
        if "enable_controllers" in self.given:
            # tensile-kube skips unknown names with a warning, and existing manifests depend on that.
            unknown = [name for name in config.enable_controllers if name not in KNOWN_CONTROLLERS]
            self._warn(*(f"--enable-controllers: {name!r} is unknown and skipped" for name in unknown))
            config.enable_controllers = [name for name in config.enable_controllers if name not in unknown]
        if self.rotate_server_certificates:
            kubelet.serving_certificate = "CSR"
        elif "rotate_server_certificates" in self.given and kubelet.serving_certificate == "CSR":
            kubelet.serving_certificate = None
        if "no_verify_clients" in self.given:
            kubelet.anonymous_auth, kubelet.authorization = self.no_verify_clients, not self.no_verify_clients
        # The file is already validated, but flags and environment may contradict it.
        problems = "" if self.rejected else "; ".join(file.validate(config))
        if problems and not self.accepts_rejected:
            raise ConfigError(problems)
        self.rejected = self.rejected or problems

    def _warn_without_effect(self) -> None:
        told = attribute_docstrings(Ignored)
        for field, setting in settings(Ignored):
            if setting.dest in self.given:
                instead = told[field.name].partition("; ")[2].removesuffix(".")
                self._warn(f"{setting.flag} has no effect: {instead}")
        for dest, name in _OF_CLUSTER.items():
            if self.config_file and dest in self.given:
                flag = f"--{dest.replace('_', '-')}"
                self._warn(f"{flag} has no effect beside --config; set clusters[].{name}")

    def _warn(self, *texts: str) -> None:
        self.warnings += texts


class _Daemon(Program[DaemonSettings]):
    """The daemon ``virtual-node``. Unlike other programs it also has commands, and can be a plugin of kubectl."""

    def parser(self) -> Parser:
        """Return the parser of the flags, with the name that the user typed."""
        parser = Parser(
            program.name(),
            "run" if program.is_plugin() else "",
            about=f"{self.about} Commands for people: {program.name('help')}.",
            examples=[
                (purpose, f"run {line}" if program.is_plugin() else line) for purpose, line in self.examples
            ],
            notes="A flag overrides the environment, the environment the file of --config, the file the default. "
            "Beside --config, flags that describe one lower cluster have no effect.",
        )
        self.add_flags(parser)
        return parser

    def add_flags(self, parser: Parser) -> None:
        """Add the flags to the parser of a command that takes them, too."""
        add_flags(parser, DaemonSettings(), titles=(UPPER, LOWER, NODE, PODS, KUBELET))

    def parse_with(self, parser: Parser, argv: Sequence[str]) -> tuple[argparse.Namespace, DaemonSettings]:
        """Return a command's own flags and the settings that a command line gives.

        Args:
            parser: the parser of the command, with the daemon's flags.
            argv: the arguments.

        Raises:
            ConfigError: flags or configuration are wrong.
        """
        return parser.parse_args(take_klog(argv)[0]), self.parse(argv, parser=parser)

    async def _run(self, settings: DaemonSettings) -> int:
        # The daemon handles signals itself, because the grace period depends on the configuration.
        code: int = await load(self.run)(settings)
        return code


PROGRAM = _Daemon(
    name="virtual-node",
    about="The daemon: virtual nodes in an upper cluster that stand for lower ones.",
    settings=DaemonSettings,
    run="virtual_node.daemon:run",
    rights="virtual_node.rights.daemon",
    examples=[
        ("One lower cluster", "--nodename vn-tokyo --kubeconfig upper.yaml --client-kubeconfig tokyo.yaml"),
        ("Many, in a file that is applied live", "--config clusters.yaml"),
    ],
)
