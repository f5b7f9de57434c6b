"""Splits debug containers by whether their ConfigMaps and Secrets exist in the lower cluster. No IO."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from virtual_node.controllers.base.problems import Problem
from virtual_node.translate.pods import dependencies

Container = Mapping[str, Any]


def split(
    containers: Iterable[Container], found: Iterable[Problem]
) -> tuple[list[Container], dict[str, Problem]]:
    """Return the containers that may be added to the lower pod, and by name the Problems of those that must wait.

    A container that references a missing object is not added yet. In the lower pod it would start as soon as
    any user creates an object of that name in the lower cluster.

    Args:
        containers: ephemeral containers that the lower pod does not have yet.
        found: Problems of objects that the pod references and that are missing, or unmanaged in the lower
            cluster.
    """
    problems = {problem.about: problem for problem in found}
    ready: list[Container] = []
    waiting: dict[str, Problem] = {}
    for container in containers:
        needs = dependencies.dependencies({"spec": {"ephemeralContainers": [container]}})
        missing = [problems[key] for need in needs if (key := (need.kind, need.name)) in problems]
        if of_pod := problems.get(("", "")):
            missing = [of_pod]  # a problem of the whole pod, found before its objects were checked
        if missing:
            waiting[container["name"]] = missing[0]
        else:
            ready.append(container)
    return ready, waiting
