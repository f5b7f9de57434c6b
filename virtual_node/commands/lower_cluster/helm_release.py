"""Reads the chart's Helm release from its record, a Secret, and runs ``helm upgrade`` with changed values.

The chart is taken from the release's record as installed. So a change of values never upgrades the chart, and
this machine needs no chart. Format: helm.sh/helm/v3/pkg/storage/driver/secrets.go.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import copy
import gzip
import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import yaml

from clusterset.model.namespace_map import NamespaceConfig
from controller_runtime import resources
from controller_runtime.auth.kubeconfig_file import at_home
from controller_runtime.client.client import Client
from controller_runtime.errors import ConfigError
from virtual_node.rights import manifests

_CHART = "virtual-node"
_STDERR_LINES = 3
"""Number of last lines of helm's error to print; the cause is at its end."""


@dataclass(frozen=True, slots=True)
class Release:
    """A revision of a Helm release."""

    name: str
    namespace: str
    revision: int
    values: Mapping[str, Any] = field(default_factory=dict)
    """Values that the user gave."""
    chart: Mapping[str, Any] = field(default_factory=dict)
    """The chart as recorded by Helm."""


class _Record(msgspec.Struct):
    """The fields that are read of a record. Helm writes ``null`` for empty maps."""

    name: str
    namespace: str
    version: int
    config: dict[str, Any] | None = None
    chart: dict[str, Any] | None = None


def decode(data: str) -> Release:
    """Return the release of a record.

    Args:
        data: value of ``release`` in the data of the record's Secret, in base64.

    Raises:
        ValueError: the value is not a release record.
    """
    try:
        packed = base64.b64decode(base64.b64decode(data))
        text = gzip.decompress(packed) if packed[:2] == b"\x1f\x8b" else packed
        found = msgspec.json.decode(text, type=_Record)
    except (ValueError, OSError, EOFError, zlib.error, msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"not a Helm release record: {error}") from None
    return Release(found.name, found.namespace, found.version, found.config or {}, found.chart or {})


def _is_ours(release: Release) -> bool:
    metadata = release.chart.get("metadata")
    return isinstance(metadata, Mapping) and metadata.get("name") == _CHART


def chart_files(chart: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the files of a recorded chart, by path."""
    files = {
        "Chart.yaml": yaml.safe_dump(chart["metadata"]).encode(),
        "values.yaml": yaml.safe_dump(chart.get("values") or {}).encode(),
    }
    if chart.get("schema"):
        files["values.schema.json"] = base64.b64decode(chart["schema"])
    for each in (*(chart.get("templates") or ()), *(chart.get("files") or ())):
        files[each["name"]] = base64.b64decode(each.get("data") or "")
    return files


def clusters(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the lower clusters in values."""
    return list((values.get("virtualNode") or {}).get("clusters") or ())


def entry(name: str) -> dict[str, Any]:
    """Return the entry that ``join`` adds to ``virtualNode.clusters``."""
    return {
        "name": name,
        "kubeconfigSecret": {"name": manifests.secret_name(name)},
        "config": {"labels": {"clusterID": name}},
    }


def cluster(values: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """Return the entry of a lower cluster in values; None: there is none."""
    return next((each for each in clusters(values) if each.get("name") == name), None)


def with_tunnel(found: Mapping[str, Any], address: str) -> dict[str, Any]:
    """Return an entry with the tunnel of an address, of which further settings stay; empty: without a tunnel."""
    rest = {key: value for key, value in found.items() if key != "tunnel"}
    return {**rest, "tunnel": {**found.get("tunnel", {}), "address": address}} if address else rest


def with_cluster(values: Mapping[str, Any], added: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with the entry of a lower cluster added, or replaced if it is there."""
    found = clusters(values)
    replaced = [added if each.get("name") == added["name"] else each for each in found]
    return _with_clusters(values, replaced if added in replaced else [*found, added])


def without_cluster(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return values without a lower cluster; keys that become empty are removed."""
    return _with_clusters(values, [each for each in clusters(values) if each.get("name") != name])


def _with_clusters(values: Mapping[str, Any], found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    changed = copy.deepcopy(dict(values))
    own = dict(changed.pop("virtualNode", None) or {})
    own.pop("clusters", None)
    if found:
        own["clusters"] = [dict(each) for each in found]
    return {**changed, **({"virtualNode": own} if own else {})}


def node_names(found: Mapping[str, Any]) -> list[str]:
    """Return the virtual nodes of an entry of ``virtualNode.clusters``."""
    config = found.get("config") or {}
    nodes = [str(node["name"]) for node in config.get("nodes") or ()]
    return nodes or [str(config.get("nodeName") or found["name"])]


def namespaces(found: Mapping[str, Any]) -> NamespaceConfig:
    """Return the namespace settings of a cluster's entry; the default ones if they are missing.

    Raises:
        ConfigError: they are not valid.
    """
    try:
        return msgspec.convert((found.get("config") or {}).get("namespaces") or {}, NamespaceConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"namespaces of cluster {found.get('name')} in the release: {error}") from None


async def find(client: Client, namespace: str, name: str | None) -> Release:
    """Return the deployed release of this chart.

    Args:
        client: client of the upper cluster.
        namespace: namespace of the release. Other namespaces are not searched, because a user with write access
            to one could create a fake release there and so receive a kubeconfig.
        name: name of the release; None: the only one.

    Raises:
        ConfigError: no release is deployed, or several are and ``name`` is None; the message names the next
            step.
    """
    selector = f"owner=helm,name={name}" if name else "owner=helm"
    listed = await client.list(resources.SECRETS, namespace=namespace, label_selector=selector)
    ours: list[tuple[str, Release]] = []
    unreadable: list[str] = []
    for record in listed.items:
        try:
            release = decode(str((record.to_dict().get("data") or {}).get("release") or ""))
        except ValueError:
            unreadable.append(record.name)  # It may be another chart's record.
            continue
        if _is_ours(release):
            ours.append((record.labels.get("status", ""), release))
    deployed = [each for status, each in ours if status == "deployed"]
    if len(deployed) == 1:
        return deployed[0]
    if deployed:
        names = ", ".join(sorted(item.name for item in deployed))
        raise ConfigError(
            f"namespace {namespace} has several releases of the chart: choose one with --release: {names}"
        )
    if ours:
        status, one = max(ours, key=lambda pair: pair[1].revision)
        raise ConfigError(
            f"release {one.name} in namespace {namespace} is {status}: look at 'helm history {one.name} "
            f"--namespace {namespace}', then 'helm rollback' or 'helm upgrade' it"
        )
    wanted = f"release {name}" if name else f"Helm release of the chart {_CHART}"
    if unreadable:
        raise ConfigError(
            f"namespace {namespace} has no {wanted} that can be read; not a Helm release record: Secret "
            f"{', '.join(sorted(unreadable))}. Look: 'helm list --all --namespace {namespace}'"
        )
    raise ConfigError(
        f"namespace {namespace} has no {wanted}. Install the chart first, or name its namespace with --namespace: "
        f"'helm install {name or _CHART} charts/{_CHART} --namespace {namespace} --create-namespace --wait'"
    )


def require_helm() -> str:
    """Return the path of helm.

    Raises:
        ConfigError: helm is not on the PATH.
    """
    found = shutil.which("helm")
    if found is None:
        raise ConfigError(
            "helm is not on the PATH: install Helm 3.8 or newer (https://helm.sh/docs/intro/install)"
        )
    return found


def environment(kubeconfig: str) -> dict[str, str]:
    """Return our environment variables for helm, so that it works on the cluster of the upper kubeconfig, and only there.

    Variables such as HELM_KUBECONTEXT would lead helm to another cluster than the one from which we read the release.

    Args:
        kubeconfig: as of ``--kubeconfig``. It may have several paths, which helm's flag does not support.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("HELM_KUBE") and name not in {"HELM_NAMESPACE", "HELM_DRIVER"}
    }
    if kubeconfig:
        kept["KUBECONFIG"] = os.pathsep.join(
            str(at_home(path)) for path in kubeconfig.split(os.pathsep) if path
        )
    return kept


async def upgrade(
    client: Client,
    options: argparse.Namespace,
    change: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    *,
    why: str,
) -> int:
    """Upgrade the release with changed values, wait for its Deployments, and return the new revision.

    Args:
        client: client of the upper cluster.
        options: ``namespace``, ``release``, ``kubeconfig``, ``timeout`` and the flags of the impersonation.
        change: returns the new values for the user's current ones. They are read again here, because
            another command may have upgraded the release, and Helm would overwrite that command's values.
        why: description for ``helm history``.

    Raises:
        ConfigError: helm failed; the message quotes its error.
    """
    release = await find(client, options.namespace, options.release)
    values = change(release.values)
    with tempfile.TemporaryDirectory(prefix="virtual-node-helm-") as place:
        chart = Path(place) / "chart"
        for path, content in chart_files(release.chart).items():
            file = (chart / path).resolve()
            if not file.is_relative_to(chart.resolve()):
                raise ConfigError(f"release {release.name}: its chart has a file outside of it: {path}")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        given = Path(place) / "values.json"
        given.write_text(json.dumps(values), encoding="utf-8")
        argv = [
            *(require_helm(), "upgrade", release.name, str(chart), "--namespace", release.namespace),
            *("--reset-values", "--values", str(given), "--description", why),
            *("--wait", f"--timeout={int(options.timeout)}s"),
            # Also the current context, which another program may change while we work.
            *(["--kube-context", context] if (context := client.config.context_name) else []),
            *([f"--kube-as-user={options.as_user}"] if options.as_user else []),
            *(f"--kube-as-group={group}" for group in options.as_group),
        ]
        process = await asyncio.create_subprocess_exec(
            *argv,
            env=environment(options.kubeconfig),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        _, stderr = await process.communicate()
    if process.returncode:
        lines = stderr.decode(errors="replace").strip().splitlines()[-_STDERR_LINES:]
        raise ConfigError(
            f"helm upgrade {release.name} failed: {' '.join(lines)}; look: 'kubectl --namespace {release.namespace} "
            f"get pods', 'helm history {release.name} --namespace {release.namespace}'. Then run the command again, or "
            "'helm rollback'."
        )
    return release.revision + 1
