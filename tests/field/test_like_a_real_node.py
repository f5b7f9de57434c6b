"""What a user sees of pods on a virtual node equals what the same pods show directly on its lower node."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hack.sandbox import Sandbox
from tests.field.real_node import Place, both, same_on
from tests.waiting import becomes, eventually, get, ready
from tests.workloads import manifest

pytestmark = [pytest.mark.e2e, pytest.mark.real_node]
_IMAGE = "busybox:1.36"
_LINES = "i=0; while [ $i -lt 300 ]; do i=$((i+1)); echo line $i; done; sleep 3600"
_LOGS: list[tuple[str, ...]] = [
    ("--tail=1",),
    ("--limit-bytes=10",),
    ("--tail=-1", "--limit-bytes=30"),
    ("--since=1h", "--tail=2"),
    ("--since-time=2000-01-01T00:00:00Z", "--tail=1", "--timestamps"),
    ("--since-time=2100-01-01T00:00:00Z",),
    ("--previous",),
    ("-c", "unknown"),
]
_PARAMETERS = (
    "tailLines=-1",
    "tailLines=x",
    "sinceSeconds=0",
    "sinceSeconds=5&sinceTime=2000-01-01T00:00:00Z",
    "limitBytes=0",
    "stream=Stdout",
    "container=&tailLines=1",
)


def _containers(status: dict[str, Any]) -> list[Any]:
    """Return name, state, reason, message and exit code of each container, and whether it is ready and started."""
    found = []
    for container in [*status.get("initContainerStatuses", []), *status["containerStatuses"]]:
        ((state, facts),) = container["state"].items()
        seen = [facts.get(key) for key in ("reason", "message", "exitCode")]
        found.append([container["name"], state, *seen, container["ready"], container.get("started")])
    return found


def _end(status: dict[str, Any]) -> list[Any]:
    conditions = sorted((one["type"], one["status"], one.get("reason")) for one in status["conditions"])
    return [status.get(key) for key in ("phase", "reason", "message")] + [
        _containers(status),
        conditions,
    ]


async def test_variables_and_paths(sandbox: Sandbox):
    """Order, expansion, names that are no identifiers, missing optional keys, and a path from a missing annotation."""
    content = {"GOOD": "1", "bad-key.x": "2", "0x": "3", "LAST": "from the map"}

    async def look(place: Place) -> dict[str, Any]:
        def missing(kind: str, name: str) -> dict[str, Any]:
            return {"valueFrom": {kind: {"name": name, "key": "missing", "optional": True}}}

        variables = [
            {"name": "EMPTY"},
            {"name": "A", "value": "first"},
            {"name": "B", "value": "$(A) $(C) $$(A)"},
            {"name": "C", "value": "later"},
            {"name": "A", "value": "second"},
            {"name": "NO_KEY", **missing("configMapKeyRef", "content")},
            {"name": "NO_SECRET", **missing("secretKeyRef", "none")},
            {"name": "LAST", "value": "own"},
            {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "ALL", "value": "$(P_GOOD) $(POD) $(NO_KEY)"},
        ]
        sources = [
            {"configMapRef": {"name": "content"}},
            {"prefix": "P_", "configMapRef": {"name": "content"}},
            {"configMapRef": {"name": "none", "optional": True}},
            {"prefix": "S-", "secretRef": {"name": "none", "optional": True}},
        ]
        annotation = {"fieldRef": {"fieldPath": "metadata.annotations['path']"}}
        expression = {"name": "w", "mountPath": "/sub", "subPathExpr": "$(PATH_OF)/x"}
        await place.create(
            manifest("ConfigMap", "content", data=content),
            place.pod(
                "env",
                "env | grep -v -e KUBERNETES -e HOSTNAME | sort",
                restartPolicy="Never",
                enableServiceLinks=False,
                container={"env": variables, "envFrom": sources},
            ),
            place.pod(
                "path",
                "touch /sub/file; find /whole; sleep 3600",
                container={
                    "env": [{"name": "PATH_OF", "valueFrom": annotation}],
                    "volumeMounts": [expression, {"name": "w", "mountPath": "/whole"}],
                },
                volumes=[{"name": "w", "emptyDir": {}}],
            ),
        )

        async def waits() -> tuple[str, str]:
            facts = (await place.status("path"))["containerStatuses"][0]["state"]["waiting"]
            return facts["reason"], facts["message"]

        refused = ("CreateContainerConfigError", "missing value for PATH_OF")
        await becomes(waits, refused, what="the path lacks a value")
        await place.cluster.kubectl("-n", place.namespace, "annotate", "pod", "path", "path=a")
        phase = (await place.finished("env"))["phase"]
        await ready(place.cluster, place.namespace, "path")
        return {"env": (phase, await place.output("logs", "env")), "path": await place.output("logs", "path")}

    async with both(sandbox) as places:
        found = await same_on(places, look)
    phase, env = found["env"]
    assert phase == "Succeeded"
    assert {"C=later", "B=first $(C) $(A)", "ALL=1 env $(NO_KEY)", "P_0x=3"} <= set(env.split("\n"))
    assert "/whole/a/x/file" in found["path"]


async def test_ends_of_pods_and_jobs(sandbox: Sandbox):
    """Deadlines of new and of running pods, messages, exit codes, a failing init container, and policies of Jobs."""

    async def look(place: Place) -> dict[str, Any]:
        once = {"restartPolicy": "Never"}
        fail = {"containerName": "main", "operator": "In", "values": [42]}
        policy = {"rules": [{"action": "FailJob", "onExitCodes": fail}]}
        indexed = {"completionMode": "Indexed", "completions": 2, "parallelism": 2, "backoffLimitPerIndex": 0}
        await place.create(
            place.pod("deadline", "sleep 3600", activeDeadlineSeconds=2),
            place.pod("shortened", "sleep 3600"),
            place.pod(
                "log",
                "echo why; exit 3",
                **once,
                container={"terminationMessagePolicy": "FallbackToLogsOnError"},
            ),
            place.pod(
                "file", "printf why > /tmp/x; exit 4", **once, container={"terminationMessagePath": "/tmp/x"}
            ),
            place.pod(
                "init",
                "true",
                **once,
                initContainers=[{"name": "first", "image": _IMAGE, "command": ["sh", "-c", "exit 7"]}],
            ),
            place.job("policy", "exit 42", podFailurePolicy=policy),
            place.job("indexed", "exit $JOB_COMPLETION_INDEX", **indexed),
        )
        await ready(place.cluster, place.namespace, "shortened")
        patch = json.dumps({"spec": {"activeDeadlineSeconds": 1}})
        await place.cluster.kubectl("-n", place.namespace, "patch", "pod", "shortened", "-p", patch)
        found: dict[str, Any] = {
            name: _end(await place.finished(name))
            for name in ("deadline", "shortened", "log", "file", "init")
        }
        for name in ("policy", "indexed"):

            async def failed(name: str = name) -> bool:
                conditions = (await place.status(name, "job")).get("conditions", ())
                return any(one["type"] == "Failed" for one in conditions)

            await eventually(failed, what=f"{place.cluster.name}: Job {name} has failed")
            status = await place.status(name, "job")
            found[name] = [
                [one.get("reason") for one in status["conditions"]],
                *(status.get(key) for key in ("completedIndexes", "failedIndexes", "failed")),
            ]
        for arguments in (("init",), ("init", "-c", "main"), ("init", "-c", "first"), ("log",)):
            found[f"logs {arguments}"] = await place.output("logs", *arguments)
        return found

    async with both(sandbox) as places:
        found = await same_on(places, look)
    assert found["deadline"][:2] == found["shortened"][:2] == ["Failed", "DeadlineExceeded"]
    assert found["log"][3] == [["main", "terminated", "Error", "why\n", 3, False, False]]
    assert found["policy"] == [["PodFailurePolicy", "PodFailurePolicy"], None, None, 1]
    assert found["indexed"][1:3] == ["0", "1"]


async def test_logs_exec_and_debug_containers(sandbox: Sandbox):
    """Options at their limits, messages of errors, much output and input, three debug containers in a row."""

    async def look(place: Place) -> dict[str, Any]:
        second = {"name": "second", "image": _IMAGE, "command": ["sh", "-c", "echo b; sleep 3600"]}
        web = place.pod(
            "web",
            _LINES,
            metadata={"annotations": {"kubectl.kubernetes.io/default-container": "main"}},
        )
        web["spec"]["containers"].append(second)
        await place.create(web, place.pod("done", "true", restartPolicy="Never"))
        await ready(place.cluster, place.namespace, "web")
        await place.finished("done")
        for number in range(3):
            debugger = {
                "name": f"debug-{number}", "image": _IMAGE, "targetContainerName": "main",
                "command": ["sh", "-c", f"echo {number}; sleep 3600"],
            }  # fmt: skip
            patch = json.dumps({"spec": {"ephemeralContainers": [debugger]}})
            await place.output("patch", "pod", "web", "--subresource=ephemeralcontainers", "-p", patch)
        prefix = f"/api/v1/namespaces/{place.namespace}/pods/web/log"
        found = {" ".join(options): await place.output("logs", "web", *options) for options in _LOGS}
        for parameters in _PARAMETERS:
            found[parameters] = await place.output("get", "--raw", f"{prefix}?{parameters}")
        for pod, *command in (
            ("web", "sh", "-c", "exit 42"),
            ("web", "unknown"),
            ("done", "true"),
            ("web", "sh", "-c", "head -c 2000000 /dev/zero | tr '\\0' x"),
        ):
            found[f"exec {pod} {command}"] = await place.output("exec", pod, "--", *command)
        found["stdin"] = await place.output("exec", "-i", "web", "--", "wc", "-c", input="y" * 2_000_000)
        found["attach"] = await place.output("attach", "done")

        async def debuggers() -> list[str]:
            statuses = (await place.status("web")).get("ephemeralContainerStatuses", [])
            return sorted(one["name"] for one in statuses if "running" in one["state"])

        await becomes(debuggers, [f"debug-{number}" for number in range(3)], what="all debug containers run")
        for number in range(3):

            async def log(number: int = number) -> str:
                return await place.output("logs", "web", "-c", f"debug-{number}")

            await becomes(log, f"0 {number}\n", what="each has its own log")
        return found

    async with both(sandbox) as places:
        found = await same_on(places, look)
    assert found["--limit-bytes=10"] == "0 line 1\nlin"
    assert found["stdin"].startswith("0 2000000")


async def test_missing_pull_secrets_are_reported(sandbox: Sandbox):
    """A kubelet reports them from 1.37 on only if a pull fails."""

    async def look(place: Place) -> dict[str, Any]:
        secrets = [{"name": "absent"}, {"name": "gone"}]
        image = {"image": "registry.invalid/absent:1"}
        await place.create(place.pod("web", "sleep 3600", container=image, imagePullSecrets=secrets))

        async def events() -> set[tuple[str, ...]]:
            items = (await get(place.cluster, place.namespace, "events"))["items"]
            fields = ("type", "reason", "message")
            return {tuple(one[field] for field in fields) for one in items if "PullSecret" in one["reason"]}

        async def are_there() -> bool:
            return bool(await events())

        await becomes(are_there, True, what="the event is there")
        return {"events": await events()}

    async with both(sandbox) as places:
        assert len((await same_on(places, look))["events"]) == 1
