"""Argo CD's GitOps engine: a sync with hooks, the health of what it synced, a failing Deployment, and pruning."""

from __future__ import annotations

import json

from tests.company.place import Place
from tests.company.software import Observations, Software


async def _run(place: Place) -> Observations:
    seen = await place.program("gitops-engine", place.namespace, json.dumps(place.scheduling))
    assert seen["health"]["Deployment"] == seen["health"]["Pod"] == "Healthy", seen
    assert seen["health of a failing Deployment"]["Deployment"] == "Degraded", seen
    return seen


SOFTWARE = Software(
    name="gitops-engine",
    job="the engine of Argo CD syncs a Deployment, a Service and a pod between hooks that are Jobs, waits until they are "
    "Healthy, then until a failing Deployment is Degraded, and prunes them",
    run=_run,
    programs=("gitops-engine",),
)
