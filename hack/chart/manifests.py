"""hack/*.yaml: one file per component for ``kubectl apply -f``, rendered from the chart, and one for their namespace.

The namespace has its own file so that ``kubectl delete -f`` of a component removes that component only.
Helm's labels and hooks are left out, because there is no Helm release. ``helm uninstall`` cleans up with a
hook, so the header of each file describes what to do instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from hack.chart.template import NAMESPACE, template
from hack.sandbox.programs import KUBERNETES_VERSION

DIRECTORY = Path(__file__).resolve().parents[1]
NAMESPACE_FILE = DIRECTORY / "namespace.yaml"
RELEASE = "virtual-node"
SECRET = "virtual-node-lower1"  # noqa: S105 - its name
_CLUSTERS = [{"name": "lower1", "kubeconfigSecret": {"name": SECRET}}]
_PARTS = ("virtualNode", "webhook", "descheduler", "multiScheduler", "swarm")
_HELM = re.compile(
    r"^ *(?:helm\.sh/chart: .*|app\.kubernetes\.io/managed-by: Helm|annotations:\n +helm\.sh/resource-policy: keep)\n"
    r"|^# Source: .*\n",
    re.MULTILINE,
)
_NAMESPACE = {
    "apiVersion": "v1",
    "kind": "Namespace",
    "metadata": {
        "name": NAMESPACE,
        "labels": {
            "app.kubernetes.io/part-of": "virtual-node",
            "pod-security.kubernetes.io/enforce": "restricted",
        },
    },
}
_NAMESPACE_HEAD = f"""# The namespace of all components. Apply it first.
#
# Made by `python -m hack.chart`.
#
#   kubectl apply -f hack/{NAMESPACE_FILE.name}
#
# Delete it last: `kubectl delete -f` deletes all other objects in it, too, such as Secrets with kubeconfigs.
---
"""
_WHERE_CLUSTERS_ARE = f"""Edit: the lower cluster "lower1" in the ConfigMap, the volume, its mount and, as the node's name, in the roles. Its
kubeconfig is in Secret {SECRET}, which

  virtual-node lower-cluster register lower1 --client-kubeconfig LOWER_ADMIN_KUBECONFIG \\
    --kubeconfig UPPER_KUBECONFIG --namespace {NAMESPACE}

makes. A second cluster is one more entry, volume and mount."""
_TEXTS: Mapping[str, tuple[str, str]] = {
    "virtualNode": (
        "Virtual nodes for one lower cluster.",
        _WHERE_CLUSTERS_ARE
        + """
Before it is deleted, `virtual-node cleanup` moves pods away and removes nodes and lower objects.""",
    ),
    "webhook": (
        "The webhook: makes pods labelled virtual-pod=true schedulable to virtual nodes.",
        """Edit: nothing is required; it makes its own certificates. Where multi-scheduler.yaml is applied, too, add the
argument --scheduler-name=virtual-node-scheduler.""",
    ),
    "descheduler": (
        "The descheduler: moves pods that a lower cluster cannot start, and pods of lost clusters.",
        """Edit: the name of the virtual node, lower1, in the ClusterRole: list all that there are.
--unschedulable-threshold is the time that a lower cluster has to start a pod.""",
    ),
    "swarm": (
        "The swarm controller: assigns jobs to workers; with the CustomResourceDefinition of Swarms.",
        """Edit: nothing is required. `kubectl delete -f` deletes the definition and all Swarms, too: delete the Swarms first,
so that their workers stop their jobs.""",
    ),
    "multiScheduler": (
        "The scheduler extender, and a stock kube-scheduler (virtual-node-scheduler) that asks it.",
        _WHERE_CLUSTERS_ARE
        + f"""
Edit, too: the version of kube-scheduler ({KUBERNETES_VERSION} here), which must not be newer than the cluster.""",
    ),
}


def files() -> dict[Path, Callable[[], str]]:
    """Return generated file → its renderer."""
    return {NAMESPACE_FILE: render_namespace} | components()


def components() -> dict[Path, Callable[[], str]]:
    """Return the file of each component → its renderer."""
    return {DIRECTORY / f"{_file(part)}.yaml": partial(render, part) for part in _PARTS}


def render_namespace() -> str:
    """Return the manifest of the namespace."""
    return _NAMESPACE_HEAD + yaml.safe_dump(_NAMESPACE, sort_keys=False)


def render(part: str) -> str:
    """Return the manifest of one component, given by its key in values.yaml."""
    text = template(yaml.safe_dump(_values(part)), release=RELEASE, arguments=["--no-hooks"])
    return _header(part) + _HELM.sub("", text)


def _values(part: str) -> dict[str, Any]:
    values: dict[str, Any] = {other: {"enabled": other == part} for other in _PARTS}
    if part in {"virtualNode", "multiScheduler"}:
        values["virtualNode"]["clusters"] = _CLUSTERS
    if part == "descheduler":
        values["descheduler"]["virtualNodes"] = [cluster["name"] for cluster in _CLUSTERS]
    # The metrics Service would be in every file; Prometheus finds each pod by its port "metrics" instead.
    return values | {"metrics": {"service": {"enabled": False}}}


def _header(part: str) -> str:
    what, edit = _TEXTS[part]
    name = f"hack/{_file(part)}.yaml"
    lines = f"""{what}

Made by `python -m hack.chart` from charts/virtual-node, which has more options. Change a copy:

  kubectl apply -f hack/{NAMESPACE_FILE.name} -f {name}

{edit}"""
    return "".join(f"# {line}".rstrip() + "\n" for line in lines.splitlines())


def _file(part: str) -> str:
    return re.sub("([A-Z])", lambda match: f"-{match[1].lower()}", part)
