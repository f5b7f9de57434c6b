"""Use the asyncio client as programs do; print what it observed as JSON.

Runs in the suite's environment: kubernetes_asyncio_client.py NAMESPACE SCHEDULING, with KUBECONFIG in the environment.
"""

# mypy: ignore-errors

import asyncio
import json
import sys

from kubernetes_asyncio import client, config, watch
from kubernetes_asyncio.client.api_client import ApiClient
from kubernetes_asyncio.stream import WsApiClient

NAMESPACE, SCHEDULING = sys.argv[1], json.loads(sys.argv[2])
SELECTOR = "metadata.name=async"


async def main():
    await config.load_kube_config()
    container = {"name": "main", "image": "busybox:1.36", "command": ["sh", "-c", "echo started; sleep 3600"]}
    spec = {"terminationGracePeriodSeconds": 1, "containers": [container], **SCHEDULING}
    async with ApiClient() as api:
        core = client.CoreV1Api(api)
        await core.create_namespaced_pod(NAMESPACE, {"metadata": {"name": "async"}, "spec": spec})
        phases = []
        async with watch.Watch().stream(
            core.list_namespaced_pod, NAMESPACE, field_selector=SELECTOR, timeout_seconds=120
        ) as events:
            async for event in events:
                phase = event["object"].status.phase
                if phase not in phases:
                    phases.append(phase)
                if phase == "Running":
                    break
        log = await core.read_namespaced_pod_log("async", NAMESPACE)
        async with WsApiClient() as sockets:
            answer = await client.CoreV1Api(api_client=sockets).connect_get_namespaced_pod_exec(
                "async", NAMESPACE, command=["sh", "-c", "echo out; echo err >&2"], stderr=True, stdin=False,
                stdout=True, tty=False,
            )  # fmt: skip
        async with WsApiClient() as sockets:
            connection = await client.CoreV1Api(api_client=sockets).connect_get_namespaced_pod_exec(
                "async", NAMESPACE, command=["sh", "-c", "exit 7"], stderr=True, stdin=False, stdout=True,
                tty=False, _preload_content=False,
            )  # fmt: skip
            async with connection as websocket:
                error = [message async for message in websocket][-1]
                code = sockets.parse_error_data(error.data[1:].decode())
        await core.delete_namespaced_pod("async", NAMESPACE)
        last = "stays"
        async with watch.Watch().stream(
            core.list_namespaced_pod, NAMESPACE, field_selector=SELECTOR, timeout_seconds=60
        ) as events:
            async for event in events:
                if event["type"] == "DELETED":
                    last = event["object"].status.phase
                    break
    return {
        "asyncio: phases": phases,
        "asyncio: log": log.strip(),
        "asyncio: exec": sorted(answer.split()),
        "asyncio: exit code": code,
        "asyncio: phase at deletion": last,
    }


print(json.dumps(asyncio.run(main())))
