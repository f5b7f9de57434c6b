"""``virtual-node-multi-scheduler print-scheduler-configuration``: prints the configuration of the kube-scheduler.

It takes the command line of the extender, so that both agree on port, TLS, binding and paths.

A scheduler calls its extenders for all profiles; real nodes pass unless an agent bars the pod from them. ``ignorable`` is
false, because without the extender's answer a pod could get a virtual node without room. ``managedResources`` is unset,
so that every pod is checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import yaml

from controller_runtime.errors import ConfigError
from controller_runtime.process import terminal
from controller_runtime.process.program import Program
from controller_runtime.process.settings import Setting
from multi_scheduler import program
from multi_scheduler.program import SchedulerSettings
from multi_scheduler.safe_scheduler import PRIORITIES_ONLY

_SCHEDULER = "kube-scheduler"


class PrintSettings(SchedulerSettings, kw_only=True):
    """The flags of the extender, and the settings of the scheduler that calls it."""

    url: Annotated[str, Setting(_SCHEDULER, "--url URL")] = ""
    """URL of the extender. Empty: --address, or 127.0.0.1, and --port."""
    leader_elect: Annotated[bool, Setting(_SCHEDULER, "--leader-elect")] = False
    """Several schedulers elect a leader."""
    ca_file: Annotated[str, Setting(_SCHEDULER, "--ca-file FILE")] = ""
    """CA of the extender's certificate."""
    cert_file: Annotated[str, Setting(_SCHEDULER, "--cert-file FILE")] = ""
    """The scheduler's client certificate, for an extender that requires one."""
    key_file: Annotated[str, Setting(_SCHEDULER, "--key-file FILE")] = ""
    """Its private key."""

    def check(self) -> None:
        """Check the settings together, see ``ProgramSettings.check``. The extender's file is optional here.

        Raises:
            ConfigError: the settings contradict each other; the text names the flags.
        """
        if self.config_file:
            super().check()
        if bool(self.cert_file) != bool(self.key_file):
            raise ConfigError("--cert-file and --key-file: give both or neither")
        if self._extender_url.startswith("https://") and not self.ca_file:
            raise ConfigError("--ca-file: required, because the extender serves HTTPS")
        if self.safe_scheduler_routes and not self.config_file:
            raise ConfigError("--config: required with --safe-scheduler-routes; the file lists the agents")

    @property
    def _extender_url(self) -> str:
        if self.url:
            return self.url.rstrip("/")
        host = f"[{self.address}]" if ":" in self.address else self.address or "127.0.0.1"
        return f"{'https' if self.tlscert or self.secret_name else 'http'}://{host}:{self.port}"

    def text(self) -> str:
        """Return the scheduler's configuration as YAML."""
        agents = {agent.name: int(agent.weight) for agent in self.config.agents}
        configuration = scheduler_configuration(
            self._extender_url,
            kubeconfig=self.kubeconfig,
            bind=self.bind,
            leader_elect=self.leader_elect,
            ca_file=self.ca_file,
            cert_file=self.cert_file,
            key_file=self.key_file,
            agents=agents if self.safe_scheduler_routes else None,
        )
        return yaml.safe_dump(configuration, sort_keys=False).rstrip()


async def run(settings: PrintSettings) -> None:
    """Print the configuration."""
    terminal.block(settings.text())


PROGRAM = Program(
    name="virtual-node-multi-scheduler print-scheduler-configuration",
    about="Prints the KubeSchedulerConfiguration of the stock kube-scheduler that calls the extender. Give it the command "
    "line of the extender.",
    settings=PrintSettings,
    run="multi_scheduler.print_configuration:run",
    rights="multi_scheduler.program",
    examples=[
        (
            "For a scheduler and an extender on one host",
            "--kubeconfig upper.yaml --config clusters.yaml --bind",
        ),
    ],
    foreign=program.PROGRAM.foreign,
)


def scheduler_configuration(
    url: str,
    *,
    kubeconfig: str = "",
    weight: int = 5,
    bind: bool = True,
    leader_elect: bool = False,
    ca_file: str = "",
    cert_file: str = "",
    key_file: str = "",
    timeout: str = "10s",
    agents: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Return a KubeSchedulerConfiguration (kubescheduler.config.k8s.io/v1).

    Args:
        url: URL of the extender, such as ``http://127.0.0.1:8888``.
        kubeconfig: path of the scheduler's kubeconfig; empty: in-cluster configuration.
        weight: weight of the extender's scores among the scheduler's own.
        bind: whether the extender binds pods, so that no pod is bound without reserved room; the extender needs ``--bind``.
        leader_elect: whether schedulers elect a leader, for several replicas.
        ca_file: CA of an https extender.
        cert_file: the scheduler's client certificate, for an extender that requires one.
        key_file: key of that certificate.
        timeout: limit of a call to the extender; a filter call may wait two seconds for other pods' reservations.
        agents: weights by agent, for an extender with ``--safe-scheduler-routes``: each agent gets its own entry, and
            ``weight`` is ignored. None: one entry for all agents together.
    """
    extender: dict[str, Any] = {
        "urlPrefix": url,
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "preemptVerb": "preempt",
        "weight": weight,
        "enableHTTPS": url.startswith("https://"),
        "nodeCacheCapable": True,
        "ignorable": False,
        "httpTimeout": timeout,
    }
    tls = {"certFile": cert_file, "keyFile": key_file, "caFile": ca_file}
    if ca_file:
        extender["tlsConfig"] = {name: file for name, file in tls.items() if file}
    extenders = [extender]
    if agents:
        extenders = [_entry(extender, name, share) for name, share in agents.items()]
    if bind:
        # At most one extender may bind.
        extenders[0]["bindVerb"] = "bind"
    configuration: dict[str, Any] = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": leader_elect},
        "profiles": [{"schedulerName": "default-scheduler"}],
        "extenders": extenders,
    }
    if kubeconfig:
        configuration["clientConnection"] = {"kubeconfig": kubeconfig, "qps": 500, "burst": 1000}
    return configuration


def _entry(extender: Mapping[str, Any], name: str, weight: int) -> dict[str, Any]:
    entry = {**extender, "urlPrefix": f"{extender['urlPrefix']}/scheduler", "weight": weight}
    entry |= {"prioritizeVerb": f"priorities/{name}", "filterVerb": f"predicates/{name}"}
    if name in PRIORITIES_ONLY:
        del entry["filterVerb"]
    if name != "fit":
        del entry["preemptVerb"]
    else:
        entry["preemptVerb"] = "preemption"
    return entry
