"""k8s-swarm's command line: ``controller internal|external`` with its flags and environment.

k8s-swarm's controller manages one StatefulSet and reads its jobs from a file. Here the same command line creates and
updates a Swarm object, which the ordinary controller reconciles.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from clusterset.model.names import SWARMS
from controller_runtime.client.client import Client
from controller_runtime.errors import AlreadyExists, ConfigError
from controller_runtime.leaderelection import Election
from controller_runtime.process.flags import read_text
from controller_runtime.process.program import ClientSettings, Program
from controller_runtime.process.settings import PROCESS, Port, Setting
from controller_runtime.process.terminal import Parser
from swarm import program
from swarm.program import SwarmSettings
from swarm.spec import read_list

_SWARM = "swarm"


class LegacySettings(ClientSettings, kw_only=True):
    """The flags of k8s-swarm's controller."""

    config: Annotated[str, Setting(_SWARM, "--config TEXT")] = "config.yml"
    """File with the list of jobs."""
    config_path: Annotated[str, Setting(_SWARM, "--config-path TEXT", "CONFIG_PATH")] = (
        "services/controller/config"
    )
    """Directory of that file."""
    namespace: Annotated[str, Setting(_SWARM, "--namespace TEXT", "NAMESPACE")] = "swarm"
    """Namespace of the StatefulSet."""
    label: Annotated[str, Setting(_SWARM, "--label TEXT", "WATCHED_LABEL")] = "swarm-worker"
    """Name of the StatefulSet and of the Swarm."""
    config_map: Annotated[str, Setting(_SWARM, "--configmap TEXT", "WORKERS_CONFIGMAP_NAME")] = (
        "swarm-worker-config"
    )
    """ConfigMap for the table of assignments."""
    http_port: Annotated[Port, Setting(_SWARM, "--http-port N", "HTTP_PORT")] = 9090
    """Port of the controller, and of the workers' /internal/version. 0: none."""
    env: Annotated[str, Setting(_SWARM, "--env TEXT")] = "dev"
    """Accepted, without effect."""
    leader_elect: Annotated[bool, Setting(PROCESS, "--leader-elect")] = True
    """Only one of several replicas works."""
    jobs: tuple[str, ...] = ()
    """The content of the list."""

    def load(self) -> None:
        """Read the list of jobs, see ``ProgramSettings.load``."""
        path = Path(self.config_path) / self.config
        try:
            self.jobs = tuple(job.name for job in read_list(read_text("--config", path)))
        except ValueError as error:
            raise ConfigError(f"--config: {path}: {error}") from None

    def body(self) -> dict[str, Any]:
        """Return the Swarm object."""
        return {
            "apiVersion": SWARMS.api_version,
            "kind": SWARMS.kind,
            "metadata": {"name": self.label, "namespace": self.namespace},
            "spec": {
                "jobs": [{"name": job} for job in self.jobs],
                "workers": {"statefulSet": self.label, "httpPort": self.http_port},
                "configMap": self.config_map,
                "strategy": "Contiguous",
                "refresh": "Restart",
            },
        }

    async def ensure(self, client: Client) -> None:
        """Create the Swarm, or update its jobs, workers and ConfigMap; other fields keep their values."""
        body = self.body()
        try:
            await client.create(SWARMS, body)
        except AlreadyExists:
            kept = {field: body["spec"][field] for field in ("jobs", "workers", "configMap")}
            await client.patch(SWARMS, self.label, {"spec": kept}, namespace=self.namespace)

    @property
    def controller(self) -> SwarmSettings:
        """Return the settings of the controller that reconciles the Swarm."""
        return SwarmSettings(
            kubeconfig=self.kubeconfig,
            master=self.master,
            health_addr=f":{self.http_port}" if self.http_port else "",
            namespace=self.namespace,
            lease_namespace=self.namespace,
            election=Election(enabled=self.leader_elect),
        )


class _Compatible(Program[LegacySettings]):
    """k8s-swarm's command line, which begins with where the controller runs."""

    def parser(self) -> Parser:
        """Return the parser of the flags and of the mode."""
        parser = super().parser()
        parser.add_argument(
            "mode", choices=("internal", "external"), help="internal: in a cluster; external: kubeconfig"
        )
        return parser


PROGRAM = _Compatible(
    name=f"{program.PROGRAM.name} controller",
    about="Like k8s-swarm's controller: creates a Swarm for one StatefulSet and assigns its jobs.",
    settings=LegacySettings,
    run="swarm.app:run_legacy",
    rights="swarm.program",
    examples=[("As in k8s-swarm's manifests", "internal --namespace swarm --label swarm-worker")],
)
