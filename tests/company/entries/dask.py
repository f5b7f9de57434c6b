"""Dask: the operator with its chart, and a cluster whose workers compute and scale."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hack.sandbox.builds import binaries
from hack.sandbox.command import command
from tests.company import manifests, python_image
from tests.company.place import Place
from tests.company.software import Observations, Software

_OPERATOR = ["python3.11", "-m", "kopf", "run", "-m", "dask_kubernetes.operator.controller"]
"""The entrypoint of the published image."""


async def _run(place: Place) -> Observations:
    image, archive = await python_image.write("dask", print)
    place.import_archive(archive)
    await place.install(*await _chart(place), images={"dask-kubernetes-operator": image})
    seen = await place.script("dask_cluster.py", image)

    async def left() -> int:
        return len(await place.pods("dask.org/cluster-name"))

    await place.becomes(left, 0, "the operator removes the pods of a closed cluster")
    assert seen["sum of two workers"] == sum(number * number for number in range(40)), seen
    return seen


async def _chart(place: Place) -> list[dict[str, Any]]:
    """Return the manifest of the operator's own chart."""
    assert place.python is not None
    (site,) = (place.python.parents[1] / "lib").glob("python*/site-packages")
    chart: Path = site / "dask_kubernetes/operator/deployment/helm/dask-kubernetes-operator"
    helm = await binaries.helm()
    done = await command([helm, "template", "dask", chart, "--namespace", place.namespace, "--include-crds"])
    objects = [manifests.in_namespace(one, place.namespace) for one in manifests.parsed(done.stdout)]
    for one in objects:
        if one["kind"] == "Deployment":
            (container,) = one["spec"]["template"]["spec"]["containers"]
            container["command"] = _OPERATOR
            # The chart's user has a name in the published image, and none in this one.
            container["env"] = [*(container.get("env") or ()), {"name": "LOGNAME", "value": "dask"}]
    return objects


SOFTWARE = Software(
    name="dask-kubernetes",
    job="the operator from its chart, a KubeCluster that computes, scales to two workers, shows logs and is removed",
    run=_run,
    environment="dask",
    packages=("dask-kubernetes", "distributed"),
)
