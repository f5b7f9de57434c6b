"""Argo Workflows: a graph of tasks that pass parameters, and a workflow that its controller terminates."""

from __future__ import annotations

import json
from typing import Any

from tests.company import manifests
from tests.company.place import Place
from tests.company.software import Observations, Software
from tests.workloads import manifest

_API = "argoproj.io/v1alpha1"


async def _run(place: Place) -> Observations:
    await _install(place)
    await place.apply(_workflow(place))
    await place.becomes(lambda: _phase(place, "company"), "Succeeded", "the workflow succeeds")
    nodes = (await _read(place, "company"))["status"]["nodes"].values()
    pods = {node["displayName"].removeprefix("company."): node for node in nodes if node["type"] == "Pod"}
    values = {name: _parameters(pod) for name, pod in sorted(pods.items())}
    seen: dict[str, Any] = {
        "pods": sorted(f"{name} {pod['phase']} {_exit_code(pod)}" for name, pod in pods.items()),
        "parameters": {name: texts for name, texts in values.items() if texts},
        "messages": sorted({pod["message"] for pod in pods.values() if pod.get("message")}),
        "events": await place.reasons("Workflow", "company"),
        "terminated": await _terminated(place),
    }
    assert seen["parameters"]["collect"] == ["from-file 1 2 3 page"], seen
    assert seen["parameters"]["onExit"] == ["Succeeded"], seen
    return seen


async def _terminated(place: Place) -> list[str]:
    """Return how a workflow ends whose container is ended by the controller."""
    spec = {"entrypoint": "endless", "templates": [_template("endless", "exec sleep 36000")]}
    await place.apply(_object(place, "endless", spec))

    async def pod() -> str:
        (only,) = await place.pods("workflows.argoproj.io/workflow=endless")
        return str(only["status"]["phase"])

    await place.becomes(pod, "Running", "the endless workflow runs")
    patch = json.dumps({"spec": {"shutdown": "Terminate"}})
    where = ("workflow", "endless", "-n", place.namespace, "--type=merge")
    await place.cluster.kubectl("patch", *where, f"--patch={patch}")
    await place.becomes(lambda: _phase(place, "endless"), "Failed", "the endless workflow is terminated")
    await place.becomes(pod, "Failed", "its pod ends")
    return [(await _read(place, "endless"))["status"]["message"], await pod()]


async def _install(place: Place) -> None:
    """Install the controller for one namespace, and the rights of the executor."""
    executor = place.import_program("argoexec", "/bin/argoexec")
    image = place.import_program("workflow-controller", "/bin/workflow-controller")
    root = place.tools.modules["argoexec"] / "manifests"
    objects = [
        body
        for path in sorted((root / "base" / "crds" / "minimal").glob("argoproj.io_*.yaml"))
        for body in manifests.read(path)
    ]
    for part in ("base/workflow-controller", "namespace-install/workflow-controller-rbac"):
        objects += await manifests.rendered(root / part)
    for part in ("executor/emissary/executor-role.yaml", "executor-default-rolebinding.yaml"):
        objects += manifests.read(root / "quick-start" / "base" / part)
    for body in objects:
        if body["kind"] == "Deployment":
            # A lower cluster need not have the class.
            body["spec"]["template"]["spec"].pop("priorityClassName")
    await place.install(
        *(
            manifests.in_namespace(body, place.namespace)
            for body in objects
            if body["kind"] != "PriorityClass"
        ),
        images={"workflow-controller": image},
        arguments={"workflow-controller": ["--namespaced", f"--executor-image={executor}"]},
    )


def _workflow(place: Place) -> dict[str, Any]:
    tasks = [
        {"name": "generate", "template": "generate"},
        {"name": "flaky", "template": "flaky", "depends": "generate"},
        {"name": "numbers", "template": "number", "depends": "flaky", "withItems": [1, 2, 3]}
        | _arguments(text="{{item}}"),
        {"name": "serve", "template": "serve", "depends": "generate"},
        {"name": "collect", "template": "collect", "depends": "numbers && serve"}
        | _arguments(
            generated="{{tasks.generate.outputs.parameters.text}}",
            numbers="{{tasks.numbers.outputs.parameters.text}}",
            page="{{tasks.serve.outputs.result}}",
        ),
    ]
    sidecar = _container("mkdir /tmp/w; echo page > /tmp/w/index.html; exec httpd -f -p 8080 -h /tmp/w")
    templates = [
        {"name": "main", "dag": {"tasks": tasks}},
        _template("generate", "echo from-file > /tmp/text", **_OUTPUTS),
        _template("flaky", "test {{retries}} != 0 || exit 3", retryStrategy={"limit": "2"}),
        _template(
            "number", "echo {{inputs.parameters.text}} > /tmp/text", inputs=_inputs("text"), **_OUTPUTS
        ),
        _template(
            "serve",
            "until wget -q -O- http://localhost:8080; do sleep 1; done",
            sidecars=[{"name": "server", **sidecar}],
        ),
        _template(
            "collect",
            "echo '{{inputs.parameters.numbers}}' | tr -dc '1-9' | sed 's/./& /g' > /tmp/numbers; "
            "echo {{inputs.parameters.generated}} $(cat /tmp/numbers) {{inputs.parameters.page}} > /tmp/text",
            inputs=_inputs("generated", "numbers", "page"),
            **_OUTPUTS,
        ),
        _template("farewell", "echo {{workflow.status}} > /tmp/text", **_OUTPUTS),
    ]
    return _object(place, "company", {"entrypoint": "main", "onExit": "farewell", "templates": templates})


def _object(place: Place, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    spec = {**spec, **place.scheduling}
    return manifest("Workflow", name, api=_API, metadata={"namespace": place.namespace}, spec=spec)


_OUTPUTS: dict[str, Any] = {"outputs": {"parameters": [{"name": "text", "valueFrom": {"path": "/tmp/text"}}]}}


def _template(name: str, script: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "container": _container(script), **fields}


def _container(script: str) -> dict[str, Any]:
    return {"image": "busybox:1.36", "command": ["sh", "-c"], "args": [script]}


def _inputs(*names: str) -> dict[str, Any]:
    return {"parameters": [{"name": name} for name in names]}


def _arguments(**values: str) -> dict[str, Any]:
    return {"arguments": {"parameters": [{"name": name, "value": text} for name, text in values.items()]}}


async def _read(place: Place, name: str) -> dict[str, Any]:
    return await place.get(f"/apis/{_API}/namespaces/{place.namespace}/workflows/{name}")


async def _phase(place: Place, name: str) -> str:
    return str((await _read(place, name)).get("status", {}).get("phase"))


def _parameters(node: dict[str, Any]) -> list[str]:
    return [output["value"] for output in node.get("outputs", {}).get("parameters", [])]


def _exit_code(node: dict[str, Any]) -> str:
    return str(node.get("outputs", {}).get("exitCode"))


SOFTWARE = Software(
    name="argo-workflows",
    job="a DAG with parameters from files and from standard output, a retry, a loop, a sidecar that is ended by exec, and an "
    "exit handler, and a workflow that is terminated",
    run=_run,
    programs=("workflow-controller", "argoexec"),
)
