"""KubeRay: a RayCluster whose workers wait for the head by name, scale, and are replaced. The image has a small ``ray``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hack.sandbox.builds.images import Image
from hack.sandbox.command import command
from tests.company import manifests
from tests.company.place import Place
from tests.company.software import Observations, Software
from tests.workloads import manifest

_API = "ray.io/v1"
_VERSION = "2.52.0"
_IMAGE = "company.example/ray:test"
_RAY = """#!/bin/sh
# Serves what probes and workers of Ray ask for, and does nothing else.
serve() {
  mkdir -p /tmp/ray/api
  for name in api/local_raylet_healthz api/gcs_healthz index.html; do echo success > /tmp/ray/$name; done
  for port in "$@"; do httpd -p "$port" -h /tmp/ray; done
}
ask() { /bin/busybox wget -q -O- "http://$1/"; }
echo "ray $*"
case "$1" in
health-check) ask "$3" ;;
start)
  address=
  for option in "$@"; do case "$option" in --address=*) address=${option#--address=} ;; esac; done
  if [ -n "$address" ]; then ask "$address" && serve 52365; else serve 6379 8265 52365; fi
  exec sleep 36000 ;;
esac
"""
_WGET = """#!/bin/sh
# The probes have options of GNU wget, which busybox lacks.
for last; do :; done
exec /bin/busybox wget -q -O- "$last"
"""


async def _run(place: Place) -> Observations:
    operator = place.import_program("ray-operator", "/manager")
    place.import_image(await _image())
    await place.install(*await _published(place), images={"kuberay-operator": operator})
    await place.apply(_cluster(place, workers=1))
    path = f"/apis/{_API}/namespaces/{place.namespace}/rayclusters/company"

    async def ready() -> tuple[str | None, int]:
        status = (await place.get(path)).get("status", {})
        return status.get("state"), status.get("readyWorkerReplicas", 0)

    await place.becomes(ready, ("ready", 1), "the Ray cluster is ready")
    await place.apply(_cluster(place, workers=2))
    await place.becomes(ready, ("ready", 2), "a second worker is ready")
    worker = (await place.pods("ray.io/node-type=worker"))[0]["metadata"]["name"]
    await place.cluster.kubectl("delete", "pod", "-n", place.namespace, worker)

    async def replaced() -> bool:
        names = [pod["metadata"]["name"] for pod in await place.pods("ray.io/node-type=worker")]
        return worker not in names and await ready() == ("ready", 2)

    await place.becomes(replaced, True, "the operator replaces a deleted worker")
    cluster = await place.get(path)
    (head,) = await place.pods("ray.io/node-type=head")
    return {
        "conditions": sorted(
            one["type"] for one in cluster["status"]["conditions"] if one["status"] == "True"
        ),
        "address of the head": cluster["status"]["head"]["podIP"] == head["status"]["podIP"],
        "events": await place.reasons("RayCluster", "company"),
    }


async def _published(place: Place) -> list[dict[str, Any]]:
    """Return the operator's manifest; kustomize would need minutes for its definitions, which are megabytes."""
    config = place.tools.modules["ray-operator"] / "config"
    objects = [one for path in sorted((config / "crd" / "bases").iterdir()) for one in manifests.read(path)]
    for part in ("rbac", "manager"):
        objects += await manifests.rendered(config / part)
    for one in objects:
        one["metadata"].pop("namespace", None)
        for subject in one.get("subjects", []):
            subject["namespace"] = place.namespace
    return [manifests.in_namespace(one, place.namespace) for one in objects]


async def _image() -> Image:
    """Return busybox and this machine's bash with its libraries, because the operator starts containers with bash."""
    bash, busybox = Path("/bin/bash"), Path("/bin/busybox")
    listed = (await command(["ldd", bash])).stdout.split()
    libraries = [Path(word) for word in listed if word.startswith("/")]
    applets = (await command([busybox, "--list"])).stdout.split()
    programs = {"bin/bash": bash, "bin/busybox": busybox}
    texts = {"usr/local/bin/ray": _RAY, "usr/local/bin/wget": _WGET}
    return Image(
        (_IMAGE,),
        files=programs | {str(path).lstrip("/"): path for path in libraries},
        texts=texts,
        modes=dict.fromkeys(texts, 0o755),
        links={f"bin/{name}": "busybox" for name in applets if name not in ("bash", "busybox")},
    )


def _cluster(place: Place, *, workers: int) -> dict[str, Any]:
    group = {
        "groupName": "workers",
        "replicas": workers,
        "minReplicas": 0,
        "maxReplicas": 3,
        "rayStartParams": {},
        "template": {"spec": _pod(place, "ray-worker")},
    }
    head = {"rayStartParams": {}, "template": {"spec": _pod(place, "ray-head")}}
    spec = {"rayVersion": _VERSION, "headGroupSpec": head, "workerGroupSpecs": [group]}
    return manifest("RayCluster", "company", api=_API, metadata={"namespace": place.namespace}, spec=spec)


def _pod(place: Place, container: str) -> dict[str, Any]:
    resources = {"requests": {"cpu": "20m", "memory": "20Mi"}, "limits": {"cpu": "1", "memory": "200Mi"}}
    one = {"name": container, "image": _IMAGE, "imagePullPolicy": "IfNotPresent", "resources": resources}
    return place.pod_spec(one)


SOFTWARE = Software(
    name="kuberay",
    job="a RayCluster whose workers wait for the head by name, a second worker, and a deleted one that is replaced; "
    "the image only answers as Ray does",
    run=_run,
    programs=("ray-operator",),
)
