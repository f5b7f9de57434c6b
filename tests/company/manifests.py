"""Published manifests: read from a Go module, and fitted to a node without a registry."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from hack.sandbox.command import command

FIRST = ("Namespace", "CustomResourceDefinition")
"""Kinds that others need."""


class _Loader(yaml.CSafeLoader):
    """Reads ``=`` as text, which CRDs have among the values of an enum."""


def _text(_loader: _Loader, node: yaml.ScalarNode) -> Any:
    return node.value


_Loader.add_constructor("tag:yaml.org,2002:value", _text)
_WITHOUT_NAMESPACE = (
    *("Namespace", "CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding", "APIService"),
    *("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration", "PriorityClass"),
)
_WORKLOADS = ("Deployment", "StatefulSet", "DaemonSet", "Job")


async def rendered(directory: Path) -> list[dict[str, Any]]:
    """Return the objects of a kustomization."""
    # The kustomization may name no remote files, because nothing is downloaded.
    done = await command(["kubectl", "kustomize", "--load-restrictor=LoadRestrictionsNone", directory])
    return parsed(done.stdout)


def read(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a file."""
    return parsed(path.read_text(encoding="utf-8"))


def parsed(text: str) -> list[dict[str, Any]]:
    """Return the objects of a text with several documents."""
    return [one for one in yaml.load_all(text, Loader=_Loader) if one]


def fitted(
    one: Mapping[str, Any],
    images: Mapping[str, str],
    scheduling: Mapping[str, Any],
    arguments: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, Any]:
    """Return an object whose pods, if it is a workload, use local images, and run on a given node.

    Requests of resources are removed, because the machine is smaller than a cluster.

    Args:
        one: the published object.
        images: container → image. Containers that are not named keep theirs.
        scheduling: fields of a PodSpec that select the node.
        arguments: container → further arguments.
    """
    result = copy.deepcopy(dict(one))
    if result["kind"] in _WORKLOADS:
        spec = result["spec"]["template"]["spec"]
        spec.update(scheduling)
        for container in [*spec.get("initContainers", []), *spec["containers"]]:
            container["image"] = images.get(container["name"], container["image"])
            container["imagePullPolicy"] = "IfNotPresent"
            container.pop("resources", None)
            if more := (arguments or {}).get(container["name"]):
                container["args"] = [*container.get("args", []), *more]
    return result


def in_namespace(one: Mapping[str, Any], namespace: str) -> dict[str, Any]:
    """Return an object in a namespace, unless its kind has none or it names one, as ``kubectl -n`` does."""
    if one["kind"] in _WITHOUT_NAMESPACE or one["metadata"].get("namespace"):
        return dict(one)
    return {**one, "metadata": {**one["metadata"], "namespace": namespace}}


def moved(one: Mapping[str, Any], namespace: str) -> dict[str, Any]:
    """Return an object of kube-system in another namespace, because pods of kube-system do not run on virtual nodes.

    A RoleBinding stays, because it gives rights there.
    """
    result = copy.deepcopy(dict(one))
    service = result.get("spec", {}).get("service") if one["kind"] == "APIService" else None
    places = [*result.get("subjects", []), *([service] if service else [])]
    if one["kind"] != "RoleBinding":
        places.append(result["metadata"])
    for place in places:
        if place.get("namespace") == "kube-system":
            place["namespace"] = namespace
    return result
