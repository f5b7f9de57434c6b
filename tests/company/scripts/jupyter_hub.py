"""Start a JupyterHub whose KubeSpawner makes notebook servers; print what it observed as JSON.

Runs in the suite's environment: jupyter_hub.py NAMESPACE SCHEDULING IMAGE ADDRESS, with KUBECONFIG in the environment. Pods
reach the hub at ADDRESS of this machine.
"""

# mypy: ignore-errors
# ruff: noqa: ASYNC110, ASYNC220, PERF401 - a short script

import asyncio
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import aiohttp
from kubernetes_asyncio import client, config

NAMESPACE, SCHEDULING, IMAGE, ADDRESS = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3], sys.argv[4]
SETTINGS = Path(__file__).parents[1] / "configurations" / "jupyterhub_config.py"
SECONDS = 240
TOKEN = secrets.token_hex(16)


def free_port():
    with socket.socket() as listener:
        listener.bind((ADDRESS, 0))
        return listener.getsockname()[1]


async def until(read, what):
    """Return what ``read`` returns as soon as it is true."""
    async with asyncio.timeout(SECONDS):
        while not (seen := await read()):
            await asyncio.sleep(0.5)
    print(what, file=sys.stderr, flush=True)
    return seen


async def use(hub, url, api):
    """Spawn a server, use it, lose its pod, spawn and stop it again; return what was observed."""

    async def answers():
        try:
            async with hub.get(f"{url}/info") as answer:
                return answer.ok
        except aiohttp.ClientError:
            return False

    async def server():
        async with hub.get(f"{url}/users/company") as answer:
            return (await answer.json())["servers"].get("")

    async def ready():
        made = await server()
        return made if made and made["ready"] else None

    async def stopped():
        return not await server()

    async def no_pods():
        return not (await api.list_namespaced_pod(NAMESPACE)).items

    async def spawn():
        async with hub.post(f"{url}/users/company/server") as answer:
            assert answer.status in (201, 202), await answer.text()
        lines = []
        async with hub.get(f"{url}/users/company/server/progress") as answer:
            async for line in answer.content:
                if line.startswith(b"data:"):
                    lines.append(json.loads(line.removeprefix(b"data:")))
        return lines, await until(ready, "the server is ready")

    await until(answers, "the hub answers")
    async with hub.post(f"{url}/users/company") as answer:
        assert answer.status == 201, await answer.text()
    lines, made = await spawn()
    (pod,) = (await api.list_namespaced_pod(NAMESPACE)).items
    notebook = f"http://{pod.status.pod_ip}:8888{made['url']}api/contents"
    async with hub.post(notebook, json={"type": "notebook"}) as answer:
        created = (answer.status, (await answer.json())["path"])
    await api.delete_namespaced_pod(pod.metadata.name, NAMESPACE)
    await until(stopped, "the hub notices that the pod is gone")
    await until(no_pods, "the pod is gone")
    await spawn()
    async with hub.delete(f"{url}/users/company/server") as answer:
        assert answer.status in (202, 204), await answer.text()
    await until(stopped, "the server is stopped")
    await until(no_pods, "its pod is gone")
    return {
        "last progress": lines[-1].get("ready", lines[-1]),
        "events in the progress": any(
            "Pulled" in text or "Started" in text or "Created" in text for text in map(str, lines)
        ),
        "notebook": created,
        "pod name in the hub": made["state"]["pod_name"] == pod.metadata.name,
    }


async def main():
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="jupyterhub-") as home:
        own = {
            **os.environ,
            "COMPANY": json.dumps(
                {
                    "namespace": NAMESPACE,
                    "scheduling": SCHEDULING,
                    "image": IMAGE,
                    "address": ADDRESS,
                    "port": port,
                    "token": TOKEN,
                }
            ),
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "jupyterhub", "-f", SETTINGS], cwd=home, env=own, stdout=sys.stderr
        )
        try:
            await config.load_kube_config(os.environ["KUBECONFIG"])
            async with (
                aiohttp.ClientSession(headers={"Authorization": f"token {TOKEN}"}) as hub,
                client.ApiClient() as connection,
            ):
                return await use(hub, f"http://{ADDRESS}:{port}/hub/api", client.CoreV1Api(connection))
        finally:
            process.terminate()
            process.wait(30)


print(json.dumps(asyncio.run(main())))
