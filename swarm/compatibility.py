"""k8s-swarm's command line: ``controller internal|external`` with its flags and environment.

k8s-swarm's controller manages one StatefulSet and reads its jobs from a file. Here the same command line creates and
updates a Swarm object, which the ordinary controller reconciles.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controller_runtime.client.client import Client
from controller_runtime.errors import AlreadyExists, ConfigError
from controller_runtime.process.argparser import Parser
from controller_runtime.process.flags import add_boolean, add_log_flags, add_upper_flags, read_text
from controller_runtime.resources import SWARMS
from swarm.job_lists import read_list

COMMAND = "controller"
"""First argument of k8s-swarm's command line."""


@dataclass(frozen=True, slots=True)
class Legacy:
    """The Swarm that k8s-swarm's flags describe."""

    namespace: str
    name: str
    """Name of the Swarm and of its StatefulSet (flag ``--label``)."""
    config_map: str
    jobs: tuple[str, ...]
    http_port: int

    def body(self) -> dict[str, Any]:
        """Return the Swarm object."""
        return {
            "apiVersion": SWARMS.api_version,
            "kind": SWARMS.kind,
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": {
                "jobs": [{"name": job} for job in self.jobs],
                "workers": {"statefulSet": self.name, "httpPort": self.http_port},
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
            await client.patch(SWARMS, self.name, {"spec": kept}, namespace=self.namespace)


def parser(program: str, environment: Mapping[str, str] = os.environ) -> Parser:
    """Return the parser of ``controller``."""
    whole = Parser(
        f"{program} {COMMAND}",
        about="Like k8s-swarm's controller: creates a Swarm for one StatefulSet and assigns its jobs.",
        examples=[("As in k8s-swarm's manifests", "internal --namespace swarm --label swarm-worker")],
    )
    whole.add_argument(
        "mode", choices=("internal", "external"), help="internal: in a cluster; external: kubeconfig"
    )
    add_upper_flags(whole)
    for flag, variable, default, text in (
        ("--config", "", "config.yml", "file with the list of jobs"),
        ("--config-path", "CONFIG_PATH", "services/controller/config", "directory of that file"),
        ("--namespace", "NAMESPACE", "swarm", "namespace of the StatefulSet"),
        ("--label", "WATCHED_LABEL", "swarm-worker", "name of the StatefulSet and of the Swarm"),
        (
            "--configmap",
            "WORKERS_CONFIGMAP_NAME",
            "swarm-worker-config",
            "ConfigMap for the table of assignments",
        ),
        ("--http-port", "HTTP_PORT", "9090", "port of the controller, and of the workers' /internal/version"),
    ):
        whole.add_argument(
            flag,
            default=environment.get(variable) or default,
            metavar="TEXT",
            help=f"{text} ({variable + ', ' if variable else ''}{default})",
        )
    whole.add_argument("--env", default="dev", metavar="TEXT", help="accepted, without effect")
    add_boolean(whole, "--leader-elect", default=True, help_text="only one of several replicas works (true)")
    add_log_flags(whole)
    return whole


def read(given: argparse.Namespace) -> Legacy:
    """Return the Swarm that a command line describes.

    Raises:
        ConfigError: the list of jobs or the port is wrong.
    """
    path = Path(given.config_path) / given.config
    try:
        jobs = tuple(job.name for job in read_list(read_text("--config", path)))
    except ValueError as error:
        raise ConfigError(f"--config: {path}: {error}") from None
    if not (given.http_port.isascii() and given.http_port.isdigit() and int(given.http_port) < 1 << 16):
        raise ConfigError(f"--http-port: {given.http_port!r} is not a port")
    return Legacy(given.namespace, given.label, given.configmap, jobs, int(given.http_port))
