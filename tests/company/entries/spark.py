"""Spark on Kubernetes: a driver in the cluster, executors that shuffle and are replaced, and what is left afterwards."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

from tests.company import spark_image
from tests.company.place import Place
from tests.company.software import Observations, Software
from tests.recipes import block

_ENVIRONMENT = "spark"
_SECONDS = 400.0
"""Longest wait for virtual machines of Java, which may take minutes to start on a busy machine."""


async def _run(place: Place) -> Observations:
    image, archive = await spark_image.write(_ENVIRONMENT, print)
    place.import_archive(archive)
    seen = await _until_finished(place, image)
    return {**seen, **await _until_deleted(place, image)}


async def _until_finished(place: Place, image: str) -> dict[str, Any]:
    """Run an application of which an executor is deleted; return what Spark reported of it."""
    output = await _submit(place, "once", image)
    first = await _executors(place, "once", [])
    await place.cluster.kubectl("-n", place.namespace, "delete", "pod", first[0], "--wait=false")
    second = await _executors(place, "once", first[:1])
    await place.cluster.kubectl("-n", place.namespace, "exec", "once", "--", "touch", "/tmp/finish")

    async def reported() -> bool:
        return "termination reason" in output.read_text(encoding="utf-8")

    await place.becomes(reported, True, "spark-submit reports the end of the driver")

    async def executors() -> int:
        return len(await place.pods("spark-role=executor"))

    await place.becomes(executors, 0, "the driver removes its executors")
    text = output.read_text(encoding="utf-8")
    (sums,) = [line["sums"] for line in await _lines(place, "once") if "sums" in line]
    assert sums == [[rest, 3 * sum(range(rest, 1000, 4))] for rest in range(4)], sums
    return {
        "sums of a shuffle": [total for _, total in sums],
        "executors": [len(first), len(second)],
        "phases that spark-submit reports": sorted(set(re.findall(r"phase: (\w+)", text))),
        "end that spark-submit reports": re.findall(r"(?:exit code|termination reason): (\w+)", text)[-2:],
        # Spark creates the ConfigMap of a driver after its pod, so the first attempt to mount it may fail.
        "events of the driver": [
            reason for reason in await place.reasons("Pod", "once") if reason != "FailedMount"
        ],
    }


async def _until_deleted(place: Place, image: str) -> dict[str, Any]:
    """Delete the driver of an application that runs; return what is left."""
    await _submit(place, "deleted", image)
    executors = await _executors(place, "deleted", [])
    await place.cluster.kubectl("-n", place.namespace, "delete", "pod", "deleted", "--wait=false")

    async def left() -> list[str]:
        lists = [
            await place.get(f"/api/v1/namespaces/{place.namespace}/{kind}")
            for kind in ("pods", "services", "configmaps")
        ]
        names = [item["metadata"]["name"] for listed in lists for item in listed["items"]]
        return sorted(name for name in names if name.startswith("deleted"))

    await place.becomes(left, [], "executors, Service and ConfigMaps go with the driver")
    return {"executors of a driver that is deleted": len(executors)}


async def _submit(place: Place, name: str, image: str) -> Path:
    """Start spark-submit for an application; return the file with its output."""
    assert place.python is not None
    (site,) = (place.python.parents[1] / "lib").glob("python*/site-packages")
    kubeconfig = await place.account(name)
    pod = block("Spark", "spark-pod.yaml") if place.virtual else {"spec": place.scheduling}
    template = place.sandbox.directory / f"spark-{place.cluster.name}.yaml"
    template.write_text(yaml.safe_dump(pod), encoding="utf-8")
    settings = {
        "spark.kubernetes.namespace": place.namespace,
        "spark.kubernetes.container.image": image,
        "spark.kubernetes.authenticate.driver.serviceAccountName": name,
        "spark.kubernetes.driver.pod.name": name,
        "spark.kubernetes.executor.podNamePrefix": name,
        "spark.kubernetes.driver.podTemplateFile": template,
        "spark.kubernetes.executor.podTemplateFile": template,
        "spark.kubernetes.driver.request.cores": "100m",
        "spark.kubernetes.executor.request.cores": "100m",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.executor.instances": "2",
        # Tasks wait for both executors.
        "spark.scheduler.minRegisteredResourcesRatio": "1",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "150s",
        "spark.pyspark.python": "python3.11",
        "spark.ui.enabled": "false",
    }
    options = [option for key, value in settings.items() for option in ("--conf", f"{key}={value}")]
    master = ("--master", f"k8s://{place.cluster.server}", "--deploy-mode", "cluster")
    home = site / "pyspark"
    env = {
        "KUBECONFIG": str(kubeconfig),
        "SPARK_HOME": str(home),
        "JAVA_TOOL_OPTIONS": spark_image.JAVA_OPTIONS,
    }
    return await place.start(
        str(home / "bin" / "spark-submit"), *master, "--name", name, *options, f"local:///opt/{spark_image.JOB.name}",
        name=f"spark-submit-{name}", env=env,
    )  # fmt: skip


async def _executors(place: Place, driver: str, without: list[str]) -> list[str]:
    """Wait until two executors other than these compute together; return their pods."""
    seen: list[str] = []

    async def together() -> bool:
        seen[:] = [line["executors"] for line in await _lines(place, driver) if "executors" in line][-1]
        return len(set(seen)) == 2 and not set(seen) & set(without)

    what = f"two executors of {driver} compute together, without {without}"
    await place.becomes(together, True, what, within=_SECONDS)
    nodes = {
        pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in await place.pods("spark-role=executor")
    }
    assert {nodes[name] for name in seen} == {place.node}, nodes
    return seen


async def _lines(place: Place, driver: str) -> list[dict[str, Any]]:
    """Return what the job printed."""
    log = (await place.cluster.kubectl("-n", place.namespace, "logs", driver)).stdout
    return [json.loads(line) for line in log.splitlines() if line.startswith("{")]


SOFTWARE = Software(
    name="spark",
    job="spark-submit in cluster mode, as in [Spark](../operate/other-programs.md#spark): a driver and two executors that "
    "shuffle, a deleted executor that is replaced, and a deleted driver, whose executors, Service and ConfigMaps are removed",
    run=_run,
    environment=_ENVIRONMENT,
    packages=("pyspark",),
)
