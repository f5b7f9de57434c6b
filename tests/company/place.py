"""Where an entry's job runs: directly in the lower cluster, or in the upper cluster with pods on the virtual node."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clusterset.model import names
from clusterset.model.pod.conditions import is_true
from hack.sandbox import Cluster, Sandbox
from hack.sandbox.builds.images import Image
from hack.sandbox.command import command as run_command
from tests.company import manifests
from tests.waiting import PATIENCE, becomes, eventually
from tests.workloads import manifest

VIRTUAL_NODE = "vn-lower1"
_SCRIPTS = Path(__file__).with_name("scripts")


@dataclass(frozen=True, slots=True)
class Tools:
    """What the entries need on this machine."""

    binaries: Mapping[str, Path]
    """Go program → file."""
    modules: Mapping[str, Path]
    """Go program → folder with the source of its module, which has the published manifests."""
    python: Mapping[str, Path]
    """Environment → its Python."""


@dataclass
class Place:
    """One cluster and the node for all pods of an entry.

    What an entry installs or creates is removed when the place is left.
    """

    sandbox: Sandbox
    tools: Tools
    python: Path | None
    """Python of the entry's environment."""
    virtual: bool
    """Whether pods run on the virtual node of the upper cluster."""
    namespace: str
    """Namespace for the job."""
    installed: AsyncExitStack = field(default_factory=AsyncExitStack)
    """Removes the software."""
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    """Removes what the job created, and stops its processes."""

    @property
    def cluster(self) -> Cluster:
        """Return the cluster whose API the software uses."""
        return self.sandbox.upper if self.virtual else self.sandbox.lower[0]

    @property
    def node(self) -> str:
        """Return the name of the node for pods."""
        assert self.sandbox.real_node is not None
        return VIRTUAL_NODE if self.virtual else self.sandbox.real_node.name

    @property
    def tolerations(self) -> list[dict[str, str]]:
        """Return what pods must tolerate on the node."""
        return [{"key": names.TAINT_PROVIDER, "operator": "Exists"}] if self.virtual else []

    @property
    def scheduling(self) -> dict[str, Any]:
        """Return the fields of a PodSpec that put a pod on the node."""
        return {"nodeSelector": {"kubernetes.io/hostname": self.node}, "tolerations": self.tolerations}

    def pod_spec(self, container: Mapping[str, Any]) -> dict[str, Any]:
        """Return the PodSpec of a pod on the node with one container, which ends at once when it is deleted."""
        return {"terminationGracePeriodSeconds": 1, "containers": [container], **self.scheduling}

    def deployment(
        self, name: str, container: Mapping[str, Any], *, replicas: int = 1, **spec: Any
    ) -> dict[str, Any]:
        """Return a Deployment of pods as ``pod_spec`` describes, with label ``app`` and further fields of their PodSpec."""
        labels = {"app": name}
        template = {"metadata": {"labels": labels}, "spec": {**spec, **self.pod_spec(container)}}
        return manifest(
            "Deployment",
            name,
            api="apps/v1",
            metadata={"namespace": self.namespace},
            spec={"replicas": replicas, "selector": {"matchLabels": labels}, "template": template},
        )

    def import_program(self, program: str, path: str, *, name: str = "", command: Sequence[str] = ()) -> str:
        """Make an image that has only a Go program, and return its name.

        Args:
            program: one of the entry's programs.
            path: of the program in the image, such as ``/manager``.
            name: repository of the image; empty: the program's name.
            command: the image's default arguments.
        """
        tag = f"company.example/{name or program}:test"
        file = path.lstrip("/")
        texts = {"etc/ssl/certs/ca-certificates.crt": ""}
        image = Image(
            (tag,),
            files={file: self.tools.binaries[program]},
            texts=texts,
            entrypoint=(path,),
            command=command,
            user="65532",
        )
        self.import_image(image)
        return tag

    def import_image(self, image: Image) -> None:
        """Import an image into the node of the lower cluster, which runs the pods in both cases."""
        assert self.sandbox.real_node is not None
        self.sandbox.real_node.import_images([image])

    def import_archive(self, archive: Path) -> None:
        """Import the images of an archive into the same node."""
        assert self.sandbox.real_node is not None
        self.sandbox.real_node.import_archive(archive)

    async def install(
        self,
        *objects: Mapping[str, Any],
        images: Mapping[str, str] | None = None,
        arguments: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """Apply the manifest of a program, and wait until its Deployments are ready.

        Args:
            objects: the published manifest.
            images: container → image.
            arguments: container → further arguments.
        """
        fitted = [manifests.fitted(one, images or {}, self.scheduling, arguments) for one in objects]
        first = [one for one in fitted if one["kind"] in manifests.FIRST]
        rest = [one for one in fitted if one["kind"] not in manifests.FIRST]
        self.installed.push_async_callback(self._remove, fitted)
        await self._apply(first)
        for one in first:
            if one["kind"] == "CustomResourceDefinition":
                await self.established(one["metadata"]["name"])
        await self._apply(rest)
        for one in rest:
            if one["kind"] == "Deployment":
                await self._rolled_out(one["metadata"]["namespace"], one["metadata"]["name"])

    async def apply(self, *objects: Mapping[str, Any]) -> None:
        """Apply objects of the job, and remove them before the software that acts on them is removed.

        Repeats it until webhooks of the software answer.
        """
        self.stack.push_async_callback(self._remove, list(objects))

        async def applied() -> bool:
            await self._apply(objects)
            return True

        await becomes(applied, True, what=f"{self.cluster.name} accepts the objects")

    async def established(self, definition: str) -> None:
        """Wait until the API server serves a CustomResourceDefinition."""

        async def so() -> bool:
            await self.cluster.kubectl("wait", "--for=condition=established", f"crd/{definition}")
            return True

        await becomes(so, True, what=f"{self.cluster.name} serves {definition}")

    async def get(self, path: str, **query: str) -> dict[str, Any]:
        """Return an object or a list by its path."""
        return await self.cluster.api.read(path, query=query or None)

    async def pods(self, selector: str = "", namespace: str = "") -> list[dict[str, Any]]:
        """Return the pods of the job."""
        path = f"/api/v1/namespaces/{namespace or self.namespace}/pods"
        items: list[dict[str, Any]] = (await self.get(path, labelSelector=selector))["items"]
        return items

    async def reasons(self, kind: str, name: str) -> list[str]:
        """Return the reasons of an object's events, sorted."""
        path = f"/api/v1/namespaces/{self.namespace}/events"
        fields = f"involvedObject.kind={kind},involvedObject.name={name}"
        return sorted({event["reason"] for event in (await self.get(path, fieldSelector=fields))["items"]})

    async def becomes(
        self, read: Callable[[], Awaitable[Any]], wanted: Any, what: str, *, within: float = PATIENCE
    ) -> None:
        """Wait until ``read`` returns the wanted value; the error quotes the last one."""
        await becomes(read, wanted, within=within, what=f"{self.cluster.name}: {what}")

    async def start(
        self, program: str, *arguments: str | Path, name: str = "", env: Mapping[str, str] | None = None
    ) -> Path:
        """Run a program on this machine until the place is left; return the file with its output.

        Args:
            program: one of the entry's programs, or one that is installed on this machine.
            arguments: of its command line.
            name: of the process; empty: the program's name.
            env: added to this process's environment.
        """
        argv = [self.tools.binaries.get(program, program), *arguments]
        process = await self.sandbox.start_process(f"{name or program}-{self.cluster.name}", argv, env=env)
        self.stack.push_async_callback(process.stop)
        return process.log

    async def account(self, name: str) -> Path:
        """Create a ServiceAccount that may edit the job's namespace; return a kubeconfig with its token.

        Most Java programs do not read the sandbox's client certificates, which have keys of elliptic curves.
        """
        subject = f"--serviceaccount={self.namespace}:{name}"
        where = ("-n", self.namespace)
        await self.cluster.kubectl("create", "serviceaccount", name, *where)
        await self.cluster.kubectl("create", "rolebinding", name, "--clusterrole=edit", subject, *where)
        token = (await self.cluster.kubectl("create", "token", name, "--duration=1h", *where)).stdout
        config = json.loads(self.cluster.kubeconfig.read_text(encoding="utf-8"))
        for user in config["users"]:
            user["user"] = {"token": token}
        path = self.sandbox.directory / f"{self.cluster.name}-{self.namespace}.kubeconfig"
        path.write_text(json.dumps(config), encoding="utf-8")
        return path

    async def script(self, name: str, *arguments: str, kubeconfig: Path | None = None) -> dict[str, Any]:
        """Run a script of ``scripts`` in the entry's environment, and return the JSON that it prints.

        Raises:
            SandboxError: it failed; quotes its output.
        """
        assert self.python is not None
        own = (self.namespace, json.dumps(self.scheduling))
        return await self._observed(name, [self.python, _SCRIPTS / name, *own, *arguments], kubeconfig)

    async def program(self, name: str, *arguments: str) -> dict[str, Any]:
        """Run a Go program on this machine to its end, and return the JSON that it prints.

        Raises:
            SandboxError: it failed; quotes its output.
        """
        return await self._observed(name, [self.tools.binaries[name], *arguments])

    async def java(self, source: Path, class_path: str, kubeconfig: Path) -> dict[str, Any]:
        """Run a Java program of one source file, and return the JSON that it prints.

        Raises:
            SandboxError: it failed; quotes its output.
        """
        own = (self.namespace, json.dumps(self.scheduling))
        # The machine may be busy.
        patience = "-Dkubernetes.connection.timeout=120000"
        argv: list[str | Path] = ["java", patience, "-cp", class_path, source, *own]
        return await self._observed(source.name, argv, kubeconfig)

    async def _observed(
        self, name: str, argv: Sequence[str | Path], kubeconfig: Path | None = None
    ) -> dict[str, Any]:
        own = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        env = {**own, "KUBECONFIG": str(kubeconfig or self.cluster.kubeconfig)}
        done = await run_command(argv, name=name, timeout=900, env=env)
        seen: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return seen

    async def logs(self) -> list[tuple[str, str]]:
        """Return titles and the ends of the logs of pods that are not ready."""
        shown = []
        for pod in (await self.get("/api/v1/pods"))["items"]:
            if not is_true(pod["status"], "Ready"):
                namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
                arguments = ("logs", "-n", namespace, name, "--all-containers", "--tail=12", "--prefix")
                done = await self.cluster.kubectl(*arguments, check=False)
                waiting = [one.get("state") for one in pod["status"].get("containerStatuses", [])]
                shown.append((f"log of {namespace}/{name}", f"{waiting}\n{done.stdout or done.stderr}"))
        return shown

    @asynccontextmanager
    async def own_namespace(self) -> AsyncIterator[None]:
        """Create the job's namespace, whose default ServiceAccount pods need; delete it at the end.

        Entered before the software is installed, because a namespace is not deleted while an APIService does not answer.
        """
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}}
        await self.cluster.api.create("/api/v1/namespaces", body)

        async def usable() -> bool:
            return bool(await self.get(f"/api/v1/namespaces/{self.namespace}/serviceaccounts/default"))

        try:
            await eventually(
                usable, what=f"{self.cluster.name}: the default ServiceAccount of {self.namespace}"
            )
            yield
        finally:
            await self._remove([body])

    async def _apply(self, objects: Sequence[Mapping[str, Any]]) -> None:
        if objects:
            body = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
            await self.cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", input=body)

    async def _rolled_out(self, namespace: str, name: str) -> None:
        where = ("-n", namespace, f"deployment/{name}")
        await self.cluster.kubectl("rollout", "status", *where, "--timeout=170s")

    async def _remove(self, objects: Sequence[Mapping[str, Any]]) -> None:
        """Delete objects and wait until they are gone, webhooks first, because they refuse requests without their program."""
        order = sorted(objects, key=lambda one: "Webhook" not in one["kind"])
        body = json.dumps({"apiVersion": "v1", "kind": "List", "items": order})
        await self.cluster.kubectl("delete", "--ignore-not-found", "-f", "-", input=body)
