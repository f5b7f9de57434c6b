"""One cluster's control plane, and kubectl for it."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from hack.sandbox.api import Api
from hack.sandbox.builds.programs import KUBERNETES_MINOR, apiserver
from hack.sandbox.command import Completed, command
from hack.sandbox.errors import SandboxError
from hack.sandbox.pki import Pki
from hack.sandbox.ports import free_ports
from hack.sandbox.process import Process

_READY_SECONDS = 180.0
"""Long, because a machine under load takes many times as long; waits end as soon as their condition holds."""
LOOPBACK = "127.0.0.1"
GO_ENVIRONMENT = {"GOGC": "400", "GODEBUG": "tlssha1=1"}
"""With Go's default, control planes this small collect garbage all the time; memory is cheaper here than CPU time.

The wget of busybox, a client in pods of tests, names no signature algorithms, which means SHA-1. Go refuses it from 1.25 on.
"""

_NO_SERVER = "--secure-port=0"
"""Nothing reads these programs' health and metrics; making a certificate would take half of their start-up."""


class Cluster:
    """A kube-apiserver, a controller manager and a scheduler, with an etcd prefix of their own.

    Attributes:
        name: such as ``upper`` or ``lower1``.
        directory: certificates, logs, kubeconfigs.
        api: the API server, without kubectl.
        minor: minor version of the API server, such as ``1.37``.
        apiserver: the process; tests kill it, and ``restore`` starts it again on the same port.
    """

    def __init__(
        self,
        name: str,
        *,
        directory: Path,
        binaries: Mapping[str, Path],
        etcd_url: str,
        number: int,
        address: str = LOOPBACK,
        dies_with_parent: bool = False,
        apiserver_args: Sequence[str] = (),
        features: Sequence[str] = (),
        minor: str = KUBERNETES_MINOR,
    ) -> None:
        """Write the certificates and kubeconfigs; ``start`` starts the processes."""
        self.name = name
        self.directory = directory
        self.address = address
        self.service_cidr = f"10.{96 + number}.0.0/16"
        self.service_ip = f"10.{96 + number}.0.1"
        self._binaries = binaries
        self._gates = [f"--feature-gates={','.join(f'{one}=true' for one in features)}"] if features else []
        self._dies_with_us = dies_with_parent
        (self.port,) = free_ports(1)
        self.server = f"https://{address}:{self.port}"
        addresses = [LOOPBACK] if address == LOOPBACK else [LOOPBACK, address]
        self.pki = Pki(directory / "pki", name=name, addresses=addresses, service_ip=self.service_ip)
        self.ca = self.pki.certificate("ca")
        self.kubeconfig = self.write_kubeconfig("admin")
        self.api = Api(
            self.server, ca=self.ca, certificate=self.pki.certificate("admin"), key=self.pki.key("admin")
        )
        self._arguments = self._apiserver_args(etcd_url, apiserver_args)
        self._set_version(minor)
        self.nodes: list[Process] = []
        """Processes that simulate or run this cluster's nodes."""

    @property
    def processes(self) -> list[Process]:
        """Return the processes of this cluster, in the order to stop them."""
        return [*self.nodes, self.scheduler, self.controller_manager, self.apiserver]

    async def start(self) -> None:
        """Start the control plane and wait until it is ready.

        Raises:
            SandboxError: it does not become ready.
        """
        await self.apiserver.start()
        # The other programs are refused before the bootstrap RBAC exists, and the controller manager exits then.
        await self.wait_ready()
        await asyncio.gather(self.controller_manager.start(), self.scheduler.start())
        # Every pod needs this ServiceAccount. The wait also shows that the controller manager, which creates it, works.
        await self._wait(self._without_account, self.controller_manager, self.scheduler)

    async def wait_ready(self) -> None:
        """Wait until ``/readyz`` returns ok.

        Raises:
            SandboxError: it did not return ok in time, or the apiserver ended.
        """
        await self._wait(self.api.ready, self.apiserver)

    async def _wait(self, trouble: Callable[[], Awaitable[str]], *needed: Process) -> None:
        """Wait until ``trouble`` returns an empty text, while the needed processes run."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _READY_SECONDS
        while said := await trouble():
            for process in needed:
                process.check()
            if loop.time() > deadline:
                raise SandboxError(f"{self.name} is not ready after {_READY_SECONDS:g} s: {said}")
            await asyncio.sleep(0.1)

    async def _without_account(self) -> str:
        try:
            await self.api.read("/api/v1/namespaces/default/serviceaccounts/default")
        except SandboxError as error:
            return str(error)
        return ""

    async def restore(self) -> None:
        """Start an API server that was killed, wait until it is ready, and restart its controllers.

        Raises:
            SandboxError: it does not become ready.
        """
        await self.apiserver.start()
        await self.wait_ready()
        await self.restart_controllers()

    async def restart_controllers(self) -> None:
        """Restart the controller manager and the scheduler after an outage of the API server.

        Without a restart each watch of the controllers would retry only after its back-off of up to a minute, and a
        controller manager with stale caches would treat nodes as dead because it missed their heartbeats.
        """
        for process in (self.controller_manager, self.scheduler):
            if process.running:
                await process.kill()
                await process.start()

    async def upgrade(self, minor: str) -> None:
        """Replace the control plane by one of another minor version, with the same data, address and nodes.

        Raises:
            SandboxError: it does not become ready.
        """
        for process in (self.scheduler, self.controller_manager, self.apiserver):
            await process.kill()
        self._set_version(minor)
        await self.start()

    def _set_version(self, minor: str) -> None:
        """Choose the API server; a newer controller manager or scheduler would wait forever for APIs that it lacks."""
        self.minor = minor
        program = apiserver(minor)
        emulated = [] if minor == KUBERNETES_MINOR else [f"--emulated-version={minor}"]
        self.apiserver = self._process("kube-apiserver", self._arguments, binary=program)
        self.controller_manager = self._process(
            "kube-controller-manager", [*self._controller_manager_args(), *emulated]
        )
        self.scheduler = self._process("kube-scheduler", [*self._scheduler_args(), *emulated])

    async def kubectl(
        self,
        *arguments: str,
        input: str | bytes | None = None,  # noqa: A002 - as subprocess.run calls it
        check: bool = True,
        timeout: float = 180,  # noqa: ASYNC109 - of the command
        env: Mapping[str, str] | None = None,
    ) -> Completed:
        """Run the real kubectl against this cluster.

        Args:
            arguments: kubectl's, after the kubeconfig.
            input: for its standard input.
            check: whether a failure is an error.
            timeout: seconds after which it is killed; must exceed any ``--timeout`` among the arguments.
            env: added to this process's environment.

        Raises:
            SandboxError: it took too long, or failed and ``check`` is set.
        """
        argv = [str(self._binaries["kubectl"]), "--kubeconfig", str(self.kubeconfig), *arguments]
        name = f"kubectl {' '.join(arguments)}"
        own = {key: value for key, value in os.environ.items() if key != "KUBECONFIG"}
        return await command(
            argv, name=name, input=input, check=check, timeout=timeout, env={**own, **(env or {})}
        )

    async def apply(self, *objects: Mapping[str, object]) -> None:
        """Run ``kubectl apply`` with these objects."""
        body = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        await self.kubectl("apply", "-f", "-", input=body)

    def write_kubeconfig(self, user: str, *, path: Path | None = None) -> Path:
        """Write a kubeconfig for one of the cluster's users, with embedded certificates; return its path."""

        def inline(file: Path) -> str:
            return base64.b64encode(file.read_bytes()).decode()

        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": self.name,
            "contexts": [{"name": self.name, "context": {"cluster": self.name, "user": user}}],
            "clusters": [
                {
                    "name": self.name,
                    "cluster": {"server": self.server, "certificate-authority-data": inline(self.ca)},
                }
            ],
            "users": [
                {
                    "name": user,
                    "user": {
                        "client-certificate-data": inline(self.pki.certificate(user)),
                        "client-key-data": inline(self.pki.key(user)),
                    },
                }
            ],
        }
        path = path or self.directory / ("kubeconfig" if user == "admin" else f"{user}.kubeconfig")
        path.touch(mode=0o600)
        path.write_text(json.dumps(config, indent=1), encoding="utf-8")
        return path

    def _process(self, program: str, arguments: Sequence[str], *, binary: str = "") -> Process:
        return Process(
            program,
            [self._binaries[binary or program], *arguments],
            directory=self.directory,
            env=GO_ENVIRONMENT,
            dies_with_parent=self._dies_with_us,
        )

    def _apiserver_args(self, etcd_url: str, extra: Sequence[str]) -> list[str]:
        pki = self.pki
        return [
            f"--etcd-servers={etcd_url}",
            f"--etcd-prefix=/{self.name}",
            f"--advertise-address={self.address}",
            f"--bind-address={self.address}",
            f"--secure-port={self.port}",
            f"--service-cluster-ip-range={self.service_cidr}",
            "--authorization-mode=Node,RBAC",
            "--allow-privileged=true",
            # No kube-proxy runs with the apiserver, so webhooks and aggregated APIs are reached at their endpoints.
            "--enable-aggregator-routing=true",
            f"--client-ca-file={self.ca}",
            f"--tls-cert-file={pki.certificate('apiserver')}",
            f"--tls-private-key-file={pki.key('apiserver')}",
            f"--kubelet-client-certificate={pki.certificate('kubelet-client')}",
            f"--kubelet-client-key={pki.key('kubelet-client')}",
            "--kubelet-preferred-address-types=InternalIP,Hostname",
            f"--requestheader-client-ca-file={pki.certificate('front-proxy-ca')}",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-username-headers=X-Remote-User",
            f"--proxy-client-cert-file={pki.certificate('front-proxy-client')}",
            f"--proxy-client-key-file={pki.key('front-proxy-client')}",
            f"--service-account-issuer=https://kubernetes.default.svc.{self.name}",
            f"--service-account-key-file={pki.directory / 'sa.pub'}",
            f"--service-account-signing-key-file={pki.directory / 'sa.key'}",
            # A test measures the virtual node, not the server's rate limits.
            "--max-requests-inflight=4000",
            "--max-mutating-requests-inflight=2000",
            "--v=1",
            *self._gates,
            # The endpoints of Service kubernetes may not be on loopback, and the API server does not start with them.
            *(["--endpoint-reconciler-type=none"] if self.address == LOOPBACK else []),
            *extra,
        ]

    def _controller_manager_args(self) -> list[str]:
        pki = self.pki
        kubeconfig = self.write_kubeconfig("controller-manager")
        return [
            f"--kubeconfig={kubeconfig}",
            "--controllers=*,bootstrapsigner,tokencleaner",
            f"--root-ca-file={self.ca}",
            f"--service-account-private-key-file={pki.directory / 'sa.key'}",
            # Only this signer is used, and each one takes an inotify instance (see inotify.py).
            f"--cluster-signing-kubelet-serving-cert-file={self.ca}",
            f"--cluster-signing-kubelet-serving-key-file={pki.key('ca')}",
            "--use-service-account-credentials=true",
            "--leader-elect=false",
            "--kube-api-qps=500",
            "--kube-api-burst=1000",
            # Short, so that a test can wait for an autoscaler.
            "--horizontal-pod-autoscaler-sync-period=5s",
            "--horizontal-pod-autoscaler-initial-readiness-delay=1s",
            _NO_SERVER,
            *self._gates,
        ]

    async def reconfigure_scheduler(self, configuration: Mapping[str, object]) -> None:
        """Restart the stock scheduler with a KubeSchedulerConfiguration; its kubeconfig is filled in."""
        file = self.directory / "scheduler.json"
        kubeconfig = self.write_kubeconfig("scheduler")
        client = {"clientConnection": {"kubeconfig": str(kubeconfig), "qps": 500, "burst": 1000}}
        file.write_text(json.dumps({**configuration, **client}, indent=1), encoding="utf-8")
        await self.scheduler.stop()
        self.scheduler = self._process("kube-scheduler", [f"--config={file}", _NO_SERVER, *self._gates])
        await self.scheduler.start()

    def _scheduler_args(self) -> list[str]:
        kubeconfig = self.write_kubeconfig("scheduler")
        return [
            f"--kubeconfig={kubeconfig}",
            "--leader-elect=false",
            "--kube-api-qps=500",
            "--kube-api-burst=1000",
            _NO_SERVER,
            *self._gates,
        ]
